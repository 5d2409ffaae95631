#!/usr/bin/env python3
"""One training step from memory in PyTorch, for `bench/step.py`; `bench/step_work.py` defines the protocol.

    python bench/step_rival_torch.py VARIANT --model wide_deep|dlrm [--ids N] [--dim N] [--batch N] [--threads N]

* `bags`: as in tutorials: one `nn.EmbeddingBag` per feature, sparse gradients, `optim.Adagrad`. Eager.
* `batched`: all tables merged, one lookup per step, sparse gradients, `optim.Adagrad`, fused on the layers. Eager.
* `manual`: all tables merged, outside autograd. The gradient of the lookup is combined by row (`unique`, `index_add_`),
  and Adagrad is written out on those rows; `optim.Adagrad(fused=True)` on the layers. Eager.
* `compiled`: `manual`, with layers, loss and their backward pass under `torch.compile`, and the row update as one
  compiled kernel. Operations that PyTorch compiles badly (`unique`, `index_add_`) are eager.
* `fbgemm`: FBGEMM's table-batched embeddings with Adagrad fused into their backward pass (as in TorchRec), and the layers
  of `compiled`. Needs the package fbgemm-gpu-cpu and the matching torch.
"""

import os

import numpy as np
import step_work as work

VARIANTS = ["bags", "batched", "manual", "compiled", "fbgemm"]
OPTIONS = work.arguments(__doc__, VARIANTS)
os.environ["OMP_NUM_THREADS"] = str(OPTIONS.threads)

import torch  # noqa: E402
from torch import nn  # noqa: E402

from step_torch import stack  # noqa: E402

torch.set_num_threads(OPTIONS.threads)
IDS, DIM, FEATURES = OPTIONS.ids, OPTIONS.dim, work.CATEGORICAL
IS_WIDE = OPTIONS.model == "wide_deep"


def fill(tables) -> None:
    """Fills embeddings, `[ids, dim]` each: with shared weights to compare losses, otherwise from PyTorch's generator."""
    with torch.no_grad():
        for feature, part in enumerate(tables):
            if OPTIONS.losses:
                part.copy_(torch.from_numpy(work.first_table(OPTIONS.model, feature, IDS, DIM)))
            else:
                part.uniform_(-0.05, 0.05)


def table(dim: int) -> torch.Tensor:
    """All tables merged, `[26 * ids, dim]`; those of the wide part, of dimension 1, start at 0."""
    weights = torch.zeros(FEATURES * IDS, dim)
    if dim == DIM:
        fill(weights.chunk(FEATURES))
    return weights


class Layers(nn.Module):
    """Everything except lookups: embeddings `[B, 26, dim]`, wide `[B]` (0 for DLRM) and dense `[B, 13]` to the mean loss."""

    def __init__(self):
        super().__init__()
        first = work.first_layers(OPTIONS.model, DIM)
        self.stacks = nn.ModuleDict({name: stack(layers) for name, layers in first.items()})
        self.bias = nn.Parameter(torch.zeros(()), requires_grad=IS_WIDE)
        pairs = torch.tril_indices(FEATURES + 1, FEATURES + 1, -1)
        self.register_buffer("pairs", pairs[0] * (FEATURES + 1) + pairs[1])

    def forward(self, embedded, wide, dense, labels):
        if IS_WIDE:
            logits = self.stacks["deep"][:-1](torch.cat([embedded.flatten(1), dense], dim=1))[:, 0] + wide + self.bias
        else:
            bottom = self.stacks["bottom"](dense)
            vectors = torch.cat([bottom[:, None], embedded], dim=1)
            products = torch.bmm(vectors, vectors.transpose(1, 2)).flatten(1)[:, self.pairs]
            logits = self.stacks["top"][:-1](torch.cat([bottom, products], dim=1))[:, 0]
        return nn.functional.binary_cross_entropy_with_logits(logits, labels)


def adagrad(parameters, fused: bool = False) -> torch.optim.Optimizer:
    return torch.optim.Adagrad(parameters, work.RATE, initial_accumulator_value=work.ACCUMULATOR, eps=work.EPSILON, fused=fused or None)


def wanted(layers: Layers) -> list[nn.Parameter]:
    return [parameter for parameter in layers.parameters() if parameter.requires_grad]


class Bags:
    """`bags` and `batched`: autograd and `optim.Adagrad`."""

    def __init__(self):
        self.layers, self.is_batched = Layers(), OPTIONS.variant == "batched"
        deep, wide = table(DIM), table(1) if IS_WIDE else None
        if self.is_batched:
            self.deep = nn.Embedding.from_pretrained(deep, freeze=False, sparse=True)
            self.wide = nn.EmbeddingBag.from_pretrained(wide, freeze=False, mode="sum", sparse=True) if IS_WIDE else None
            tables = [self.deep, *([self.wide] if IS_WIDE else [])]
        else:
            bags = lambda whole: [nn.EmbeddingBag.from_pretrained(part, freeze=False, mode="sum", sparse=True) for part in whole.chunk(FEATURES)]
            self.deep, self.wide = bags(deep), bags(wide) if IS_WIDE else []
            tables = [*self.deep, *self.wide]
        self.optimizers = [adagrad([table.weight for table in tables]), adagrad(wanted(self.layers), fused=self.is_batched)]

    def prepare(self, labels, dense, ids):
        if self.is_batched:
            ids = ids + np.arange(FEATURES) * IDS
            return torch.from_numpy(labels), torch.from_numpy(dense), torch.from_numpy(ids)
        columns = [torch.from_numpy(np.ascontiguousarray(column))[:, None] for column in ids.T]
        return torch.from_numpy(labels), torch.from_numpy(dense), columns

    def step(self, prepared):
        labels, dense, ids = prepared
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=True)
        if self.is_batched:
            embedded, wide = self.deep(ids), self.wide(ids)[:, 0] if IS_WIDE else 0.0
        else:
            embedded = torch.stack([bag(column) for bag, column in zip(self.deep, ids)], dim=1)
            wide = sum(bag(column) for bag, column in zip(self.wide, ids))[:, 0] if IS_WIDE else 0.0
        loss = self.layers(embedded, wide, dense, labels)
        loss.backward()
        for optimizer in self.optimizers:
            optimizer.step()
        return loss


def update_rows(weights, accumulators, rows, gradient):
    """Adagrad on distinct rows."""
    grown = accumulators[rows] + gradient * gradient
    accumulators[rows] = grown
    weights[rows] = weights[rows] - work.RATE * gradient / (grown.sqrt() + work.EPSILON)


class Manual:
    """`manual` and `compiled`: the table update written out."""

    def __init__(self):
        self.layers, self.update = Layers(), update_rows
        self.run = self.layers
        if OPTIONS.variant == "compiled":
            self.run = torch.compile(self.layers, dynamic=False)
            self.update = torch.compile(update_rows, dynamic=True)
        self.tables = [(whole, torch.full_like(whole, work.ACCUMULATOR)) for whole in ([table(DIM), table(1)] if IS_WIDE else [table(DIM)])]
        self.optimizer = adagrad(wanted(self.layers), fused=True)

    def prepare(self, labels, dense, ids):
        flat = (ids + np.arange(FEATURES) * IDS).reshape(-1)
        return torch.from_numpy(labels), torch.from_numpy(dense), torch.from_numpy(flat)

    def step(self, prepared):
        labels, dense, ids = prepared
        self.optimizer.zero_grad(set_to_none=True)
        embedded = nn.functional.embedding(ids, self.tables[0][0]).view(-1, FEATURES, DIM).requires_grad_()
        wide = 0.0
        if IS_WIDE:
            wide = nn.functional.embedding(ids, self.tables[1][0]).view(-1, FEATURES).sum(1).requires_grad_()
        loss = self.run(embedded, wide, dense, labels)
        loss.backward()
        self.optimizer.step()
        with torch.no_grad():
            rows, places = torch.unique(ids, return_inverse=True)
            gradients = [embedded.grad.view(-1, DIM)]
            if IS_WIDE:
                gradients.append(wide.grad.repeat_interleave(FEATURES)[:, None])
            for (weights, accumulators), gradient in zip(self.tables, gradients):
                combined = torch.zeros(len(rows), gradient.shape[1]).index_add_(0, places, gradient)
                self.update(weights, accumulators, rows, combined)
        return loss


class Fbgemm:
    """FBGEMM's tables, updated in their backward pass."""

    def __init__(self):
        from fbgemm_gpu.split_embedding_configs import EmbOptimType
        from fbgemm_gpu.split_table_batched_embeddings_ops_training import ComputeDevice, EmbeddingLocation, SplitTableBatchedEmbeddingBagsCodegen

        def tables(dim: int):
            bags = SplitTableBatchedEmbeddingBagsCodegen(
                [(IDS, dim, EmbeddingLocation.HOST, ComputeDevice.CPU)] * FEATURES,
                optimizer=EmbOptimType.EXACT_ADAGRAD, learning_rate=work.RATE, eps=work.EPSILON,
            )
            bags.momentum1_host.data.fill_(work.ACCUMULATOR)
            bags.weights_host.data.zero_()
            if dim == DIM:
                fill(bags.split_embedding_weights())
            return bags

        self.layers = Layers()
        self.run = torch.compile(self.layers, dynamic=False)
        self.deep = tables(DIM)
        # FBGEMM's rows have at least 4 numbers; the first is the weight of the wide part.
        self.wide = tables(4) if IS_WIDE else None
        self.optimizer = adagrad(wanted(self.layers), fused=True)

    def prepare(self, labels, dense, ids):
        by_feature = torch.from_numpy(np.ascontiguousarray(ids.T).reshape(-1))
        return torch.from_numpy(labels), torch.from_numpy(dense), by_feature, torch.arange(ids.size + 1)

    def step(self, prepared):
        labels, dense, ids, offsets = prepared
        self.optimizer.zero_grad(set_to_none=True)
        embedded = self.deep(ids, offsets).view(-1, FEATURES, DIM)
        wide = self.wide(ids, offsets).view(-1, FEATURES, 4)[:, :, 0].sum(1) if IS_WIDE else 0.0
        loss = self.run(embedded, wide, dense, labels)
        loss.backward()
        self.optimizer.step()
        return loss


def train_files(entrant) -> int:
    """One pass over Parquet files, read by pyarrow in `--workers` processes; the shuffle is that of `ingest_rival.py`."""
    import ingest_rival as ingest

    workers, files = OPTIONS.workers, OPTIONS.files
    pool = ingest.SHUFFLE // workers // ingest.BATCH * ingest.BATCH

    class Rows(torch.utils.data.IterableDataset):
        def __iter__(self):
            share = torch.utils.data.get_worker_info().id
            for dense, ids, labels in ingest.pooled(files[share::workers], pool, threads=False):
                # Compiled for one batch size; the rest of a file does not count.
                if len(labels) == ingest.BATCH:
                    yield entrant.prepare(labels.astype(np.float32), np.log1p(dense), ids % IDS)

    batches = 0
    for batch in torch.utils.data.DataLoader(Rows(), batch_size=None, num_workers=workers, prefetch_factor=4):
        entrant.step(batch)
        batches += 1
    return batches * ingest.BATCH


def main() -> None:
    torch.manual_seed(1)
    kind = {"bags": Bags, "batched": Bags, "manual": Manual, "compiled": Manual, "fbgemm": Fbgemm}[OPTIONS.variant]
    entrant = kind()
    if OPTIONS.files:
        work.train_once(OPTIONS, lambda batch: entrant.step(entrant.prepare(*batch)), lambda: train_files(entrant))
        return
    made = [entrant.prepare(*batch) for batch in work.batches(OPTIONS)]

    def one_pass(batches) -> None:
        for batch in batches:
            entrant.step(batch)

    work.answer(OPTIONS, made, one_pass, lambda batch: entrant.step(batch).item())


if __name__ == "__main__":
    main()
