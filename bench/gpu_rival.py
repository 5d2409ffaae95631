#!/usr/bin/env python3
"""One training step in PyTorch on a GPU, as fast as we could write it, for `bench/gpu`.

    python3 bench/gpu_rival.py VARIANT --model wide_deep|dlrm [--ids N] [--dim N] [--batch N] [--hidden N,...] [--bottom N,...]

Model, initial weights and batches are those of `trainer/examples/step_speed/`. Batches are in device memory. Layers,
loss and their backward pass are compiled, in bfloat16 by autocast; tables, layer weights and Adagrad's state are fp32.
All tables are merged into one outside autograd: a compiled kernel gathers rows into bfloat16, and each row of a batch is
updated once, with the sum of its gradients. All shapes are static, so the whole step, from the gather to the last
update, is one CUDA graph:

* `sorted`: sorts ids, sums gradients of equal rows into as many places as there are ids, and runs Adagrad over these in
  one compiled kernel.
* `scratch`: accumulates gradients in a separate table, which is zero between steps. Each place of a batch computes the
  update of its row from there, so repeated rows are computed repeatedly, with the same result.
* `all`: runs each variant in its own process, and the faster one again with `max-autotune`.

`--losses N` prints the losses of N steps instead of rates, in `--precision fp32`, to compare with ours. FBGEMM's tables
are absent: no FBGEMM package matches the PyTorch and CUDA versions of these GPUs' images.
"""

import argparse
import json
import os
import subprocess
import sys
import time

import numpy as np
import step_work as work

VARIANTS = ["sorted", "scratch"]
# Time limit of a variant in seconds, including compilation.
LIMIT = int(os.environ.get("MILLSTREAM_RIVAL_SECONDS", "150"))


def arguments() -> argparse.Namespace:
    widths = lambda text: [int(width) for width in text.split(",")]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("variant", choices=[*VARIANTS, "all"])
    parser.add_argument("--model", choices=["wide_deep", "dlrm"], default="dlrm")
    parser.add_argument("--ids", type=int, default=1_000_000)
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--batch", type=int, default=65_536)
    parser.add_argument("--examples", type=int, default=work.EXAMPLES, help="total number of examples")
    parser.add_argument("--hidden", type=widths, default=[1024, 1024, 512, 256])
    parser.add_argument("--bottom", type=widths, default=[512, 256])
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="bf16")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--losses", type=int, default=0)
    parser.add_argument("--tune", action="store_true", help="compile with max-autotune")
    return parser.parse_args()


def run_all() -> int:
    """Prints one line per variant; a failed variant prints its error."""
    rest = [word for word in sys.argv[1:] if word != "all"]
    rates = {}

    def run(variant: str, *more: str) -> None:
        try:
            done = subprocess.run([sys.executable, __file__, variant, *rest, *more], stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=LIMIT)
            line = done.stdout.decode().strip()
            if done.returncode:
                raise RuntimeError(done.stderr.decode()[-400:])
            rates[variant] = max(json.loads(line)["rates"])
        except (RuntimeError, subprocess.TimeoutExpired, ValueError, KeyError) as error:
            line = json.dumps({"variant": " ".join([variant, *more]), "failed": str(error)})
        print(line, flush=True)

    for variant in VARIANTS:
        run(variant)
    if rates:
        run(max(rates, key=rates.get), "--tune")
    return 0 if rates else 1


class Tables:
    """Tables of one width merged into `[26 * ids + 1, dim]`; the last row is padding."""

    def __init__(self, weights, variant: str, compiled):
        self.weights, self.sums = weights, torch.full_like(weights, work.ACCUMULATOR)
        self.scratch = torch.zeros_like(weights) if variant == "scratch" else None
        self.gather = compiled(lambda weights, ids, kind: torch.nn.functional.embedding(ids, weights).to(kind))
        self.step = compiled(self.sorted_step) if variant == "sorted" else self.scratch_step
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


def updated(weights, sums, gradient):
    """Adagrad."""
    grown = sums + gradient * gradient
    return weights - work.RATE * gradient / (grown.sqrt() + work.EPSILON), grown


def layers_step(parameters, sums, gradients):
    for parameter, own, gradient in zip(parameters, sums, gradients):
        weights, grown = updated(parameter, own, gradient.float())
        parameter.copy_(weights)
        own.copy_(grown)


class Rival:
    def __init__(self, options: argparse.Namespace):
        self.options, self.device = options, torch.device(options.device)
        mode = "max-autotune-no-cudagraphs" if options.tune else None
        self.compiled = lambda function: torch.compile(function, dynamic=False, mode=mode)
        self.kind = torch.bfloat16 if options.precision == "bf16" else torch.float32
        self.is_wide = options.model == "wide_deep"
        self.layers = Layers(options).to(self.device)
        self.run, self.update = self.compiled(self.layers), self.compiled(layers_step)
        self.parameters = [parameter for parameter in self.layers.parameters() if parameter.requires_grad]
        self.sums = [torch.full_like(parameter, work.ACCUMULATOR) for parameter in self.parameters]
        tables = [self.table(options.dim), *([self.table(1)] if self.is_wide else [])]
        self.tables = [Tables(weights, options.variant, self.compiled) for weights in tables]
        rows, width = options.batch, work.CATEGORICAL
        self.labels, self.dense = (torch.zeros(shape, device=self.device) for shape in ([rows], [rows, work.DENSE]))
        self.ids = torch.zeros(rows * width, dtype=torch.int64, device=self.device)
        self.loss = torch.zeros((), device=self.device)

    def table(self, dim: int):
        options = self.options
        weights = torch.zeros(work.CATEGORICAL * options.ids + 1, dim, device=self.device)
        if dim == options.dim:
            for feature, part in enumerate(weights[:-1].chunk(work.CATEGORICAL)):
                if options.losses:
                    part.copy_(torch.from_numpy(work.first_table(options.model, feature, options.ids, dim)))
                else:
                    part.uniform_(-0.05, 0.05)
        return weights

    def prepared(self, labels, dense, ids):
        flat = (ids + np.arange(work.CATEGORICAL) * self.options.ids).reshape(-1)
        return [torch.from_numpy(array).to(self.device) for array in (labels, dense, flat)]

    def take(self, batch) -> None:
        for to, array in zip((self.labels, self.dense, self.ids), batch):
            to.copy_(array)

    def step(self) -> None:
        """Adagrad on the gathered rows."""
        for parameter in self.parameters:
            parameter.grad = None
        looked_up = [table.gather(table.weights, self.ids, self.kind).requires_grad_() for table in self.tables]
        rows = self.options.batch
        embedded = looked_up[0].view(rows, work.CATEGORICAL, self.options.dim)
        wide = looked_up[1].view(rows, work.CATEGORICAL) if self.is_wide else None
        mixed = self.kind != torch.float32
        # Casts must not be cached between replays of a graph.
        with torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=mixed, cache_enabled=False):
            loss = self.run(embedded, wide, self.dense, self.labels)
        loss.backward()
        with torch.no_grad():
            self.loss.copy_(loss)
            self.update(self.parameters, self.sums, [parameter.grad for parameter in self.parameters])
            for table, found in zip(self.tables, looked_up):
                table.step(self.ids, found.grad)

    def wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def captured(self):
        """The step as one CUDA graph, following PyTorch's notes on CUDA graphs."""
        if self.device.type == "cpu":
            return self.step
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                self.step()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.step()
        return graph.replay


def measure(rival: Rival, batches: list) -> list[float]:
    options = rival.options
    rival.take(batches[0])
    step = rival.captured()

    def once() -> None:
        for batch in batches:
            rival.take(batch)
            step()

    # The first pass can change inputs and cause recompilation; the second pass completes it.
    once()
    once()
    rival.wait()
    rates = []
    for _ in range(options.runs):
        started, examples = time.perf_counter(), 0
        while time.perf_counter() - started < options.seconds:
            once()
            rival.wait()
            examples += len(batches) * options.batch
        rates.append(examples / (time.perf_counter() - started))
    assert torch.isfinite(rival.loss).item(), "the loss is not a number"
    return rates


def main() -> None:
    rival = Rival(OPTIONS)
    count = OPTIONS.losses or -(-OPTIONS.examples // OPTIONS.batch)
    batches = [rival.prepared(*work.batch(seed, OPTIONS.batch, OPTIONS.ids)) for seed in range(count)]
    report = {"variant": OPTIONS.variant + (" --tune" if OPTIONS.tune else ""), "torch": torch.__version__}
    if OPTIONS.losses:
        losses = []
        for batch in batches:
            rival.take(batch)
            rival.step()
            losses.append(rival.loss.item())
        report["losses"] = losses
    else:
        report["rates"] = measure(rival, batches)
    print(json.dumps(report), flush=True)


OPTIONS = arguments()
if OPTIONS.variant == "all":
    sys.exit(run_all())

import torch  # noqa: E402
from torch import nn  # noqa: E402

from step_torch import stack  # noqa: E402


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


main()
