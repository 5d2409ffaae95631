#!/usr/bin/env python3
"""One of several processes that train together in PyTorch, a GPU each, for `bench/gpu`.

    python3 bench/gpu_ranks.py VARIANT --workers N --rank R --meet FOLDER [--model wide_deep|dlrm] [--ids N] ... [--graph]

The ranks meet in the empty `FOLDER`, and each trains on its part of every batch, like those of `step_speed`. They communicate over
NCCL, on the CPU over Gloo. `gpu_model.py` has the model. In all variants `DistributedDataParallel` averages the gradients of
the compiled layers, with static graph and gradients in its buckets. They differ in the tables. Dense gradients of tables would
be as large as the tables, 13 GB a step, and NCCL's process group does not sum sparse ones. So

* `replicated`: every GPU has all tables. The ids and bfloat16 gradients of all ranks' lookups are gathered, and each rank
  makes all updates.
* `sharded`: every GPU has some of the tables, as in Meta's DLRM. Ids, looked-up rows and their gradients are exchanged
  all-to-all, so tables and their updates are divided among the GPUs.
* `torchrec`: TorchRec's sharded tables, with FBGEMM's fused Adagrad (`gpu_torchrec.py`).

`--graph` makes the step one CUDA graph, with its collectives; TorchRec's has other shapes every time. `--losses N` prints the
losses of N steps, equal on all ranks. Otherwise a rank prints `{"ready": true, ...}`, and for each line of standard input runs
whole passes for about `--seconds` and prints `{"rate": examples/s of whole batches}`.
"""

import argparse
import itertools
import json
import math
import os
import sys
import time
import warnings

import gpu_model
import numpy as np
import step_work as work
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

VARIANTS = ["replicated", "sharded", "torchrec"]


def arguments() -> argparse.Namespace:
    parser = gpu_model.arguments(__doc__, VARIANTS)
    parser.add_argument("--workers", type=int, required=True)
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--meet", required=True)
    parser.add_argument("--graph", action="store_true", help="make the step one CUDA graph")
    options = parser.parse_args()
    if options.batch % options.workers:
        parser.error("batches are not divisible by workers")
    if options.graph and (options.device.type == "cpu" or options.variant == "torchrec"):
        parser.error("no CUDA graph of this variant on this device")
    return options


def main() -> None:
    options = arguments()
    join(options)
    trainer = trainer_of(options)
    part = options.batch // options.workers
    rows = slice(options.rank * part, (options.rank + 1) * part)
    made = (work.batch(seed, options.batch, options.ids) for seed in range(gpu_model.batch_count(options)))
    batches = [trainer.prepared(*(array[rows] for array in batch)) for batch in made]
    if options.losses:
        losses = torch.tensor(trainer.losses(batches), device=options.device)
        dist.all_reduce(losses)
        print(json.dumps({"losses": (losses / options.workers).tolist()}), flush=True)
    else:
        answer(options, trainer, batches)
    dist.destroy_process_group()


def join(options: argparse.Namespace) -> None:
    """Makes the process group. All ranks are on this host."""
    os.environ.update(NCCL_SOCKET_IFNAME="=lo", GLOO_SOCKET_IFNAME="lo")
    # Names that only newer releases than those of the GPUs' images have.
    warnings.simplefilter("ignore", FutureWarning)
    if options.graph:
        # Handling of asynchronous errors would end the capture.
        os.environ["TORCH_NCCL_ASYNC_ERROR_HANDLING"] = "0"
    on_gpu = options.device.type == "cuda"
    if on_gpu:
        torch.cuda.set_device(options.device)
    else:
        torch.set_num_threads(1)
    meet = f"file://{os.path.abspath(options.meet)}/store"
    dist.init_process_group("nccl" if on_gpu else "gloo", init_method=meet, rank=options.rank, world_size=options.workers)


def trainer_of(options: argparse.Namespace):
    if options.variant == "torchrec":
        from gpu_torchrec import TorchRec

        return TorchRec(options, options.batch // options.workers)
    return {"replicated": Replicated, "sharded": Sharded}[options.variant](options)


def distributed(layers, device: torch.device):
    """DDP as advised for capture in a graph: made on a side stream."""
    make = lambda: DistributedDataParallel(layers, static_graph=True, gradient_as_bucket_view=True, broadcast_buffers=False)
    if device.type == "cpu":
        return make()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        made = make()
    torch.cuda.current_stream().wait_stream(side)
    return made


class Replicated(gpu_model.Trainer):
    """All tables on each rank. Order of additions differs between ranks on a GPU, so tables can drift apart by roundings."""

    # DDP measures its first steps.
    WARM_UPS = 11

    def __init__(self, options: argparse.Namespace):
        super().__init__(options, options.batch // options.workers, range(work.CATEGORICAL), "scratch")
        self.run = distributed(self.run, self.device)

    def step_table(self, table: gpu_model.Tables, gradient) -> None:
        table.step(self.gathered(self.ids), self.gathered(gradient) / self.options.workers)

    def gathered(self, part):
        whole = part.new_empty([len(part) * self.options.workers, *part.shape[1:]])
        dist.all_gather_into_tensor(whole, part)
        return whole


class Sharded(gpu_model.Trainer):
    """Tables divided among the ranks, features in order. Ids and rows of a rank are by feature, then by row of the batch."""

    WARM_UPS = 11

    def __init__(self, options: argparse.Namespace):
        ends = [work.CATEGORICAL * rank // options.workers for rank in range(options.workers + 1)]
        self.counts = [end - start for start, end in itertools.pairwise(ends)]
        own = range(*ends[options.rank : options.rank + 2])
        super().__init__(options, options.batch // options.workers, own, "scratch")
        self.run = distributed(self.run, self.device)
        # Ids that this rank's rows have for each rank, and that each rank's rows have for this one.
        self.sent = [count * self.rows for count in self.counts]
        self.received = [len(own) * self.rows] * options.workers
        self.own_ids = torch.zeros(sum(self.received), dtype=torch.int64, device=self.device)

    def prepared(self, labels, dense, ids):
        """Ids count through the tables of the rank that has them."""
        places = [place for count in self.counts for place in range(count)]
        by_feature = ids.T + self.options.ids * np.array(places)[:, None]
        return self.on_device(labels, dense, by_feature.reshape(-1))

    def step(self) -> None:
        dist.all_to_all_single(self.own_ids, self.ids, self.received, self.sent)
        super().step()

    def look_up(self, table: gpu_model.Tables):
        found = table.gather(table.weights, self.own_ids, self.kind)
        embedded = found.new_empty([len(self.ids), found.shape[1]])
        dist.all_to_all_single(embedded, found, self.sent, self.received)
        return embedded

    def by_row(self, looked_up):
        return looked_up.view(work.CATEGORICAL, self.rows, -1).transpose(0, 1)

    def step_table(self, table: gpu_model.Tables, gradient) -> None:
        own = gradient.new_empty([len(self.own_ids), gradient.shape[1]])
        dist.all_to_all_single(own, gradient, self.received, self.sent)
        table.step(self.own_ids, own / self.options.workers)


def answer(options: argparse.Namespace, trainer, batches: list) -> None:
    once = trainer.passes(batches, captured=options.graph)
    # The first pass can change inputs and cause recompilation; the second pass completes it.
    once()
    once()
    seconds = timed(trainer, once, 1)
    if options.rank == 0:
        print(json.dumps({"ready": True, "torch": torch.__version__, "graph": options.graph}), flush=True)
    for _ in sys.stdin:
        count = agreed(math.ceil(options.seconds / seconds), options.device)
        seconds = timed(trainer, once, count) / count
        assert math.isfinite(trainer.loss.item()), "the loss is not a number"
        print(json.dumps({"rate": len(batches) * options.batch / seconds}), flush=True)


def timed(trainer, once, count: int) -> float:
    """Seconds from the start of all ranks to the end of all."""
    trainer.wait()
    dist.barrier()
    started = time.perf_counter()
    for _ in range(count):
        once()
    trainer.wait()
    dist.barrier()
    return time.perf_counter() - started


def agreed(count: int, device: torch.device) -> int:
    """The count of rank 0."""
    shared = torch.tensor([count], device=device)
    dist.broadcast(shared, 0)
    return int(shared.item())


if __name__ == "__main__":
    main()
