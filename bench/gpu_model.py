"""DLRM and Wide & Deep in PyTorch for `bench/gpu`, one process of any number.

Shared by gpu_rival.py (one GPU) and gpu_ranks.py (several). Model, initial weights and batches are those of
`trainer/examples/step_speed/`; batches are in the device's memory. Layers, loss and their backward pass are compiled, in
bfloat16 by autocast; tables, layer weights and Adagrad's state are fp32. All tables are merged into one outside autograd: a
compiled kernel gathers rows into bfloat16, and each row of a batch is updated once, with the sum of its gradients. All shapes
are static, so the whole step, from the gather to the last update, can be one CUDA graph.
"""

import argparse

import numpy as np
import step_work as work
import torch
from step_torch import stack
from torch import nn

# How a table is updated; see `Tables`.
UPDATES = ["sorted", "scratch"]


def arguments(doc: str, variants: list[str]) -> argparse.ArgumentParser:
    widths = lambda text: [int(width) for width in text.split(",")]
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("variant", choices=variants)
    parser.add_argument("--model", choices=["wide_deep", "dlrm"], default="dlrm")
    parser.add_argument("--ids", type=int, default=1_000_000)
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--batch", type=int, default=65_536)
    parser.add_argument("--examples", type=int, default=work.EXAMPLES, help="total number of examples")
    parser.add_argument("--hidden", type=widths, default=[1024, 1024, 512, 256])
    parser.add_argument("--bottom", type=widths, default=[512, 256])
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="bf16")
    parser.add_argument("--device", type=torch.device, default="cuda", help="cpu, or cuda with or without a number")
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--losses", type=int, default=0, help="print the losses of N steps instead of rates")
    return parser


def batch_count(options: argparse.Namespace) -> int:
    return options.losses or -(-options.examples // options.batch)


class Layers(nn.Module):
    """Everything except lookups: embeddings `[B, 26, dim]`, wide `[B, 26]` and dense `[B, 13]` to the mean loss."""

    def __init__(self, options: argparse.Namespace):
        super().__init__()
        first = work.first_layers(options.model, options.dim, options.hidden, options.bottom)
        self.stacks = nn.ModuleDict({name: stack(layers) for name, layers in first.items()})
        self.is_wide = options.model == "wide_deep"
        self.bias = nn.Parameter(torch.zeros(()), requires_grad=self.is_wide)
        vectors = work.CATEGORICAL + 1
        pairs = torch.tril_indices(vectors, vectors, -1)
        self.register_buffer("pairs", pairs[0] * vectors + pairs[1])

    def forward(self, embedded, wide, dense, labels):
        dense = dense.to(embedded.dtype)
        if self.is_wide:
            logits = self.stacks["deep"][:-1](torch.cat([embedded.flatten(1), dense], dim=1))[:, 0]
            logits = logits.float() + wide.float().sum(1) + self.bias
        else:
            bottom = self.stacks["bottom"](dense)
            vectors = torch.cat([bottom[:, None], embedded], dim=1)
            products = torch.bmm(vectors, vectors.transpose(1, 2)).flatten(1)[:, self.pairs]
            logits = self.stacks["top"][:-1](torch.cat([bottom, products], dim=1))[:, 0].float()
        return nn.functional.binary_cross_entropy_with_logits(logits, labels)


def updated(weights, sums, gradient):
    """Adagrad."""
    grown = sums + gradient * gradient
    return weights - work.RATE * gradient / (grown.sqrt() + work.EPSILON), grown


def layers_step(parameters, sums, gradients):
    for parameter, own, gradient in zip(parameters, sums, gradients):
        weights, grown = updated(parameter, own, gradient.float())
        parameter.copy_(weights)
        own.copy_(grown)


def fill(part, options: argparse.Namespace, feature: int) -> None:
    """Fills the embeddings of a feature, `[ids, dim]`: with the shared weights to compare losses, otherwise at random."""
    if options.losses:
        part.copy_(torch.from_numpy(work.first_table(options.model, feature, options.ids, options.dim)))
    else:
        part.uniform_(-0.05, 0.05)


class Tables:
    """Tables of one width merged into `[features * ids + 1, dim]`; the last row is padding.

    * `sorted`: sorts ids, sums gradients of equal rows into as many places as there are ids, and runs Adagrad over these in
      one compiled kernel.
    * `scratch`: accumulates gradients in a separate table, which is zero between steps. Each place of a batch computes the
      update of its row from there, so repeated rows are computed repeatedly, with the same result.
    """

    def __init__(self, weights, update: str, compiled):
        self.weights, self.sums = weights, torch.full_like(weights, work.ACCUMULATOR)
        self.scratch = torch.zeros_like(weights) if update == "scratch" else None
        self.gather = compiled(lambda weights, ids, kind: nn.functional.embedding(ids, weights).to(kind))
        self.step = compiled(self.sorted_step) if update == "sorted" else self.scratch_step
        self.updated = compiled(updated)

    def sorted_step(self, ids, gradient):
        rows, places = torch.sort(ids)
        is_first = torch.cat([torch.ones_like(rows[:1], dtype=torch.bool), rows[1:] != rows[:-1]])
        group = is_first.cumsum(0) - 1
        total = torch.zeros(gradient.shape, dtype=torch.float32, device=ids.device).index_add_(0, group, gradient[places].float())
        distinct = torch.full_like(rows, len(self.weights) - 1).index_copy_(0, group, rows)
        weights, sums = updated(self.weights[distinct], self.sums[distinct], total)
        self.weights.index_copy_(0, distinct, weights)
        self.sums.index_copy_(0, distinct, sums)

    def scratch_step(self, ids, gradient):
        self.scratch.index_add_(0, ids, gradient.float())
        weights, sums = self.updated(self.weights[ids], self.sums[ids], self.scratch[ids])
        # Places of the same row write equal values.
        self.weights.index_copy_(0, ids, weights)
        self.sums.index_copy_(0, ids, sums)
        self.scratch.index_fill_(0, ids, 0.0)


class Trainer:
    """Trains on `rows` rows of each batch, with the tables of `features`. A subclass exchanges what processes share."""

    # Steps before the step is captured as a CUDA graph.
    WARM_UPS = 3

    def __init__(self, options: argparse.Namespace, rows: int, features: range, update: str, mode: str | None = None):
        self.options, self.device, self.rows, self.features = options, options.device, rows, features
        self.compiled = lambda function: torch.compile(function, dynamic=False, mode=mode)
        self.kind = torch.bfloat16 if options.precision == "bf16" else torch.float32
        self.is_wide = options.model == "wide_deep"
        layers = Layers(options).to(self.device)
        self.run, self.update = self.compiled(layers), self.compiled(layers_step)
        self.parameters = [parameter for parameter in layers.parameters() if parameter.requires_grad]
        self.sums = [torch.full_like(parameter, work.ACCUMULATOR) for parameter in self.parameters]
        dims = [options.dim, *([1] if self.is_wide else [])]
        self.tables = [Tables(self.table(dim), update, self.compiled) for dim in dims]
        self.labels, self.dense = (torch.zeros(shape, device=self.device) for shape in ([rows], [rows, work.DENSE]))
        self.ids = torch.zeros(rows * work.CATEGORICAL, dtype=torch.int64, device=self.device)
        self.loss = torch.zeros((), device=self.device)

    def table(self, dim: int):
        """First weights; those of the wide part, of dimension 1, are 0."""
        weights = torch.zeros(len(self.features) * self.options.ids + 1, dim, device=self.device)
        if dim == self.options.dim:
            for feature, part in zip(self.features, weights[:-1].split(self.options.ids)):
                fill(part, self.options, feature)
        return weights

    def prepared(self, labels, dense, ids):
        """A batch on the device. Ids count through the merged tables, row by row."""
        flat = (ids + np.arange(work.CATEGORICAL) * self.options.ids).reshape(-1)
        return self.on_device(labels, dense, flat)

    def on_device(self, *arrays):
        return [torch.from_numpy(np.ascontiguousarray(array)).to(self.device) for array in arrays]

    def take(self, batch) -> None:
        for to, array in zip((self.labels, self.dense, self.ids), batch):
            to.copy_(array)

    def look_up(self, table: Tables):
        """The rows of the batch's ids, `[rows * 26, dim]`."""
        return table.gather(table.weights, self.ids, self.kind)

    def step_table(self, table: Tables, gradient) -> None:
        """Updates a table with the gradient of what `look_up` returned."""
        table.step(self.ids, gradient)

    def by_row(self, looked_up):
        """`[rows, 26, dim]`, a view of what `look_up` returned."""
        return looked_up.view(self.rows, work.CATEGORICAL, -1)

    def step(self) -> None:
        for parameter in self.parameters:
            parameter.grad = None
        looked_up = [self.look_up(table).requires_grad_() for table in self.tables]
        embedded, wide = [*map(self.by_row, looked_up), None][:2]
        mixed = self.kind != torch.float32
        # Casts must not be cached between replays of a graph.
        with torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=mixed, cache_enabled=False):
            loss = self.run(embedded, None if wide is None else wide[:, :, 0], self.dense, self.labels)
        loss.backward()
        with torch.no_grad():
            self.loss.copy_(loss)
            self.update(self.parameters, self.sums, [parameter.grad for parameter in self.parameters])
            for table, found in zip(self.tables, looked_up):
                self.step_table(table, found.grad)

    def wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def losses(self, batches: list) -> list[float]:
        """The mean loss of each batch, with a step each."""
        losses = []
        for batch in batches:
            self.take(batch)
            self.step()
            losses.append(self.loss.item())
        return losses

    def passes(self, batches: list, captured: bool):
        """Returns a function that steps through all batches; the steps are one CUDA graph if `captured`."""
        self.take(batches[0])
        step = self.graph() if captured else self.step

        def once() -> None:
            for batch in batches:
                self.take(batch)
                step()

        return once

    def graph(self):
        """The step as one CUDA graph, following PyTorch's notes on CUDA graphs."""
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(self.WARM_UPS):
                self.step()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.step()
        return graph.replay
