"""Measures collective operations of PyTorch's process group over Gloo. bench/collective.py starts it once per rank.

    python bench/collective_rival.py FILE RANK RANKS SIZE...

The ranks meet in FILE. The operations, repetitions and output are those of trainer/backend/examples/collective_speed.rs.
"""

import datetime
import json
import sys
import time

import torch
import torch.distributed as dist

WARM_UP = 5
BUDGET_BYTES = 512 << 20
LEAST_REPETITIONS = 15
MOST_REPETITIONS = 500


def main() -> None:
    file, rank, ranks, *sizes = sys.argv[1:]
    rank, ranks = int(rank), int(ranks)
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{file}",
        rank=rank,
        world_size=ranks,
        timeout=datetime.timedelta(seconds=60),
    )
    for size in map(int, sizes):
        numbers = torch.zeros(size // 4)
        measure(rank, "sum", size, lambda: dist.all_reduce(numbers))
        halves = torch.zeros(size // 4, dtype=torch.bfloat16)
        measure(rank, "sum as bf16", size, lambda: dist.all_reduce(halves))
        sent = torch.zeros(size // ranks * ranks, dtype=torch.uint8)
        received = torch.empty_like(sent)
        measure(rank, "exchange", size, lambda: dist.all_to_all_single(received, sent))
    dist.destroy_process_group()


def measure(rank: int, operation: str, size: int, run) -> None:
    repetitions = min(max(BUDGET_BYTES // max(size, 1), LEAST_REPETITIONS), MOST_REPETITIONS)
    for _ in range(WARM_UP):
        run()
    dist.barrier()
    seconds = []
    for _ in range(repetitions):
        began = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - began)
    if rank == 0:
        print(json.dumps({"operation": operation, "bytes": size, "seconds": seconds}), flush=True)


if __name__ == "__main__":
    main()
