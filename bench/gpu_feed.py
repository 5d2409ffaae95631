#!/usr/bin/env python3
"""Checks and measures feeds on a GPU, through PyTorch.

    python3 bench/gpu_feed.py leases|copies|steps [--megabytes N] [--batches N] [--package target/site]

leases   copies are delayed on the GPU while the host refills the ring as fast as it can: all rows must arrive unchanged
copies   GB/s of copies from the pinned ring and, of the same batch, from memory that is not pinned
steps    the time of a step with batches of a loader, beside the same step on a tensor that is already on the GPU: their
         ratio says how much of the copy is not hidden, also at the border of epochs

Prints one JSON object. Exits with 1 if rows are wrong.
"""

import argparse
import json
import os
import pathlib
import statistics
import sys
import tempfile
import time

ROW_VALUES = 4_096
# About 5 ms of an H200.
CYCLES = 10_000_000

# Megabytes of a batch, and batches of an epoch. Those of `steps` are few enough that reading is not the bottleneck.
SIZES = {"leases": (32, 50), "copies": (64, 5), "steps": (4, 200)}


def write(directory: pathlib.Path, rows: int) -> str:
    """Rows of consecutive numbers: row `n` has n, n + 1, .. modulo 2^23, which fp32 holds exactly."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    files = 8
    for number in range(files):
        first, last = number * rows // files, (number + 1) * rows // files
        rows_of_file = np.arange(first, last)
        values = (rows_of_file[:, None] + np.arange(ROW_VALUES)) % (1 << 23)
        flat = pa.array(values.astype(np.float32).ravel())
        offsets = pa.array(np.arange(last - first + 1, dtype=np.int32) * ROW_VALUES)
        table = pa.table({"number": rows_of_file, "x": pa.ListArray.from_arrays(offsets, flat)})
        pq.write_table(table, directory / f"{number}.parquet", row_group_size=256)
    return str(directory / "*.parquet")


def feed(data: str, rows: int, **more):
    import millstream as ms

    columns = {"x": ms.tensor("x", "float32", [ROW_VALUES]), "number": ms.tensor("number", "int64")}
    # Three slots, the fewest: one is filled while two copies may be in flight.
    options = {"batch_size": rows, "shuffle_rows": 0, "prefetch": 3, "memory_budget": "8GiB", **more}
    return ms.Feed(train=data, columns=columns, **options)


def leases(data: str, rows: int, batches: int) -> dict:
    import torch
    from millstream.torch import Loader

    loader = Loader(feed(data, rows), device="cuda")
    places = torch.arange(ROW_VALUES, device="cuda")
    wrong = torch.zeros((), dtype=torch.int64, device="cuda")
    seen = 0
    iterator = iter(loader)
    while True:
        if loader._reader is not None:
            # The next copy begins late.
            with torch.cuda.stream(loader._reader._stream):
                torch.cuda._sleep(CYCLES)
        batch = next(iterator, None)
        if batch is None:
            break
        expected = (batch["number"][:, None] + places) % (1 << 23)
        wrong += (batch["x"] != expected.float()).sum()
        seen += batch.rows
    wrong = wrong.item()
    if wrong or seen != rows * batches:
        sys.exit(f"{wrong:,} values are wrong; {seen:,} of {rows * batches:,} rows arrived")
    return {"batches": batches, "bytes": rows * ROW_VALUES * 4, "wrong": wrong}


def copies(data: str, rows: int, batches: int) -> dict:
    import torch
    from millstream.torch import Ahead, Loader

    loader = Loader(feed(data, rows))
    batch = next(iter(loader))
    target = torch.empty_like(batch["x"], device="cuda")

    def rate() -> float:
        rates = []
        for _ in range(20):
            torch.cuda.synchronize()
            began = time.perf_counter()
            target.copy_(batch["x"], non_blocking=True)
            torch.cuda.synchronize()
            rates.append(batch["x"].nbytes / (time.perf_counter() - began) / 1e9)
        return statistics.median(rates)

    pageable = rate()
    began = time.perf_counter()
    ahead = Ahead(loader._reader, loader._client.memory, torch.device("cuda", 0))
    pinning = time.perf_counter() - began
    if not batch["x"].is_pinned():
        sys.exit("the ring is not pinned")
    pinned = rate()
    ahead.close()
    return {"pageable_gb_s": pageable, "pinned_gb_s": pinned, "pinning_ms": 1e3 * pinning}


def steps(data: str, rows: int, batches: int) -> dict:
    import torch
    from millstream.torch import Loader

    def step(x):
        began = time.perf_counter()
        torch.cuda._sleep(CYCLES)
        # As a program that looks at its loss.
        x[0, 0].item()
        return 1e3 * (time.perf_counter() - began)

    loader = Loader(feed(data, rows, epochs=3, prefetch=8), device="cuda")
    fixed = torch.zeros(rows, ROW_VALUES, device="cuda")
    alone = [step(fixed) for _ in range(batches)][10:]
    fed, borders = [], []
    for epoch in loader.epochs:
        began = time.perf_counter()
        for batch in loader:
            step(batch["x"])
            taken = 1e3 * (time.perf_counter() - began)
            (borders if batch.number == 0 and epoch else fed).append(taken)
            # The loop's own time, with that of taking the next batch.
            began = time.perf_counter()
    result = {"alone_ms": statistics.median(alone), "fed_ms": statistics.median(fed[10:])}
    result |= {"fed_p99_ms": sorted(fed[10:])[int(0.99 * len(fed[10:]))], "border_ms": max(borders)}
    return result | {"ratio": result["fed_ms"] / result["alone_ms"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=list(SIZES))
    parser.add_argument("--megabytes", type=int, help="size of a batch")
    parser.add_argument("--batches", type=int, help="batches of an epoch")
    parser.add_argument("--package", type=pathlib.Path, default=pathlib.Path("target/site"))
    arguments = parser.parse_args()
    package = str(arguments.package.resolve())
    sys.path.insert(0, package)
    # For the process that reads the data.
    os.environ["PYTHONPATH"] = package
    megabytes = arguments.megabytes or SIZES[arguments.what][0]
    batches = arguments.batches or SIZES[arguments.what][1]
    rows = (megabytes << 20) // (ROW_VALUES * 4)
    with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR")) as directory:
        data = write(pathlib.Path(directory), rows * batches)
        print(json.dumps({"megabytes": megabytes, **globals()[arguments.what](data, rows, batches)}))


if __name__ == "__main__":
    main()
