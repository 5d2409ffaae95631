#!/usr/bin/env python3
"""Compares feeds with PyTorch's DataLoader and Hugging Face datasets over the same Parquet files, in turns.

    python3 bench/feed.py [--rows 1000000] [--rounds 5] [--only TABLE...] [--directory target/bench/feed] [--package target/site]

Needs bench/requirements.txt, and the package linked by `python/link target/site target/release`. Each measurement runs in a
separate process; the order alternates. Prints medians:

* rows/s into tensors of PyTorch, shuffled in a pool of 65,536 rows, for rows of 40 numbers ("clicks") and of one vector of 256 floats
  ("vectors"). DataLoader reads row groups by pyarrow in two processes, and shuffles and cuts whole arrays, the fastest way known
  to us; datasets streams and shuffles rows, of which the first 28,672 are taken;
* the time to take a batch that is ready and to have tensors of all columns;
* the same for batches of 1, 16 and 64 MiB, as arrays of NumPy and tensors of PyTorch, with the 99th percentile ("sizes"): one
  after another; each after 2 ms of computing, when the caches hold other things; and so while ingest fills the slots of the batches that were
  dropped, on the same CPUs. In the first two, batches are kept, so nothing else runs. Checks that nothing is copied;
* the time from the start of the loader to the first batch, at the start and at a state after 99 % of an epoch. DataLoader has no such
  states.
"""

import argparse
import itertools
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time

BATCH = 4_096
POOL = 65_536
NUMBERS = [f"n{place}" for place in range(13)]
IDS = [f"c{place}" for place in range(26)]
SHAPES = ("clicks", "vectors")
TABLES = ("rates", "ready", "sizes")
MIB = 1 << 20
SIZES_MIB, SLOTS, FILLS = (1, 16, 64), 8, 16


def make(directory: pathlib.Path, rows: int) -> None:
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    random, files = np.random.default_rng(1), 16
    for shape in SHAPES:
        (directory / shape).mkdir(parents=True, exist_ok=True)
        for number in range(files):
            count = rows // files
            table = {"label": random.integers(0, 2, count)}
            if shape == "clicks":
                table |= {name: random.random(count, dtype=np.float32) for name in NUMBERS}
                table |= {name: random.integers(0, 100_000, count) for name in IDS}
            else:
                flat = pa.array(random.random(count * 256, dtype=np.float32))
                offsets = pa.array(np.arange(count + 1, dtype=np.int32) * 256)
                table["vector"] = pa.ListArray.from_arrays(offsets, flat)
            path = directory / shape / f"{number:02}.parquet"
            pq.write_table(pa.table(table), path, row_group_size=16_384, compression="zstd")


def feed(directory: pathlib.Path, shape: str, **more):
    import millstream as ms

    columns = {"label": ms.tensor("label", "int64")}
    if shape == "clicks":
        columns |= {name: ms.tensor(name, "float32") for name in NUMBERS}
        columns |= {name: ms.tensor(name, "int64") for name in IDS}
    else:
        columns["vector"] = ms.tensor("vector", "float32", [256])
    options = {"batch_size": BATCH, "shuffle_rows": POOL, "epochs": 2, **more}
    return ms.Feed(train=str(directory / shape / "*.parquet"), columns=columns, **options)


def rate(batches) -> float:
    """Rows/s after the first batch."""
    rows, began = 0, None
    for batch in batches:
        tensors = list(batch.values())
        if began is None:
            began = time.perf_counter()
        else:
            rows += len(tensors[0])
    return rows / (time.perf_counter() - began)


def millstream(directory: pathlib.Path, shape: str) -> float:
    from millstream.torch import Loader

    return rate(Loader(feed(directory, shape, epochs=1)))


def dataloader(directory: pathlib.Path, shape: str) -> float:
    import numpy as np
    import pyarrow.parquet as pq
    import torch

    def arrays(table):
        return {
            name: column.combine_chunks().flatten().to_numpy().reshape(len(column), -1)
            if name == "vector"
            else column.to_numpy()
            for name, column in zip(table.column_names, table.columns)
        }

    class Rows(torch.utils.data.IterableDataset):
        def __iter__(self):
            worker = torch.utils.data.get_worker_info()
            random, pool, held = np.random.default_rng(worker.id), [], 0
            for path in sorted((directory / shape).glob("*.parquet"))[worker.id :: worker.num_workers]:
                file = pq.ParquetFile(path)
                for group in range(file.num_row_groups):
                    pool.append(arrays(file.read_row_group(group, use_threads=False)))
                    held += len(pool[-1]["label"])
                    if held >= POOL // worker.num_workers:
                        yield from self.cut(pool, random)
                        pool, held = [], 0
            if pool:
                yield from self.cut(pool, random)

        def cut(self, pool, random):
            whole = {name: np.concatenate([part[name] for part in pool]) for name in pool[0]}
            order = random.permutation(len(whole["label"]))
            for start in range(0, len(order), BATCH):
                chosen = order[start : start + BATCH]
                yield {name: torch.from_numpy(array[chosen]) for name, array in whole.items()}

    return rate(torch.utils.data.DataLoader(Rows(), batch_size=None, num_workers=2, prefetch_factor=4))


def datasets(directory: pathlib.Path, shape: str) -> float:
    import datasets as hf
    import torch

    rows = hf.load_dataset("parquet", data_files=str(directory / shape / "0[01].parquet"), split="train", streaming=True)
    rows = rows.shuffle(seed=1, buffer_size=POOL // 8).with_format("torch")
    loader = torch.utils.data.DataLoader(rows, batch_size=BATCH, num_workers=2, prefetch_factor=4)
    return rate(itertools.islice(loader, 7))


def ready(directory: pathlib.Path, shape: str) -> dict[str, float]:
    """The median and the longest time to take a batch that is ready, in microseconds."""
    from millstream.torch import Loader

    loader, times = Loader(feed(directory, shape, epochs=1, prefetch=8)), []
    for _ in range(16):
        iterator = iter(loader)
        next(iterator)
        time.sleep(0.5)
        for _ in range(5):
            began = time.perf_counter()
            batch = next(iterator)
            tensors = list(batch.values())
            times.append(1e6 * (time.perf_counter() - began))
            del batch, tensors
    return {"median": statistics.median(times), "longest": max(times)}


def sizes(directory: pathlib.Path, framework: str, size_mib: str, how: str) -> dict[str, float]:
    """The median and the 99th percentile of the time to take a batch that is ready, in microseconds."""
    import millstream as ms
    import millstream.torch

    loader_of = millstream.torch.Loader if framework == "torch" else ms.Loader
    # A row has 256 floats.
    more = {"batch_size": int(size_mib) * MIB // 1024, "epochs": 10_000, "prefetch": SLOTS, "memory_budget": "8GiB"}
    loader, times, kept = loader_of(feed(directory, "vectors", **more), tail="drop"), [], []
    batches = (batch for _ in loader.epochs for batch in loader)
    next(batches)
    first, length = loader._client.memory
    for _ in range(FILLS):
        await_idle()
        # A batch that is kept beyond these would be copied.
        for place in range(SLOTS - 2):
            if how != "one after another":
                compute()
            began = time.perf_counter()
            batch = next(batches)
            values = batch["vector"], batch["label"]
            took = 1e6 * (time.perf_counter() - began)
            # The processor wakes up in the first one.
            if how != "one after another" or place:
                times.append(took)
            address = values[0].data_ptr() if framework == "torch" else values[0].ctypes.data
            assert values[0].shape == (batch.rows, 256) and first <= address < first + length, "it is a copy"
            kept.append((batch, values))
            if how == "while ingest runs":
                kept.clear()
            del batch, values
        kept.clear()
    cuts = statistics.quantiles(times, n=100, method="inclusive")
    return {"median": statistics.median(times), "p99": cuts[98], "longest": max(times), "batches": len(times)}


def await_idle() -> None:
    """Waits until the process that hosts the feed has filled all slots: its threads have all slept for 50 ms."""
    (host,) = pathlib.Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    idle, before = 0, None
    while idle < 10:
        # The state, and the time that it has run.
        stats = [path.read_text().rpartition(")")[2].split() for path in pathlib.Path(f"/proc/{host}/task").glob("*/stat")]
        now = [(stat[0], stat[11], stat[12]) for stat in stats]
        idle = idle + 1 if now == before and {state for state, _, _ in now} == {"S"} else 0
        before = now
        time.sleep(0.005)


def compute(seconds: float = 0.002) -> None:
    """What the step of a training does."""
    import numpy as np

    end = time.perf_counter() + seconds
    matrix = np.ones((64, 64), np.float32)
    while time.perf_counter() < end:
        matrix @ matrix


def resume(directory: pathlib.Path, shape: str) -> dict[str, float]:
    from millstream.torch import Loader

    def first(state):
        began = time.perf_counter()
        loader = Loader(feed(directory, shape))
        loader.load_state_dict(state)
        batch = next(iter(loader))
        return time.perf_counter() - began, batch

    at_start, _ = first(None)
    loader = Loader(feed(directory, shape))
    wanted = int(0.99 * len(loader))
    state = next(batch.state_dict() for batch in loader if batch.number == wanted)
    loader.close()
    resumed, batch = first(state)
    assert batch.number == wanted + 1
    return {"start": at_start, "resumed": resumed}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--directory", type=pathlib.Path, default=pathlib.Path("target/bench/feed"))
    parser.add_argument("--package", type=pathlib.Path, default=pathlib.Path("target/site"))
    parser.add_argument("--only", nargs="+", choices=TABLES, default=TABLES)
    parser.add_argument("--one", nargs="+", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        measure, *rest = arguments.one
        print(json.dumps(globals()[measure](arguments.directory, *rest)))
        return
    if not (arguments.directory / "vectors").exists():
        make(arguments.directory, arguments.rows)

    def measure(*what: str):
        command = [sys.executable, __file__, "--directory", arguments.directory, "--one", *what]
        environment = {**os.environ, "PYTHONPATH": str(arguments.package.resolve()), "OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment)
        return json.loads(done.stdout.splitlines()[-1])

    model = next((line.split(": ")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")), "")
    print(f"{model}, {os.cpu_count()} CPUs; {arguments.rows:,} rows, {arguments.rounds} rounds, medians")
    reports = {"rates": report_rates, "ready": report_ready, "sizes": report_sizes}
    for table in arguments.only:
        print(flush=True)
        reports[table](measure, arguments.rounds)


def median(of: list[dict[str, float]], key: str) -> float:
    return statistics.median(one[key] for one in of)


def report_rates(measure, rounds: int) -> None:
    print("| rows | Millstream, rows/s | DataLoader | datasets |\n|---|---|---|---|")
    for shape in SHAPES:
        rates = {what: [] for what in ("millstream", "dataloader", "datasets")}
        for _ in range(rounds):
            for what, of in rates.items():
                of.append(measure(what, shape))
        ours, *others = (statistics.median(of) for of in rates.values())
        cells = " | ".join(f"{other:,.0f} ({ours / other:.1f}x)" for other in others)
        print(f"| {shape} | {ours:,.0f} | {cells} |", flush=True)


def report_ready(measure, rounds: int) -> None:
    print("| rows | a ready batch, us: median, longest | first batch, s: at the start, at 99 % |\n|---|---|---|")
    for shape in SHAPES:
        taken = [measure("ready", shape) for _ in range(rounds)]
        began = [measure("resume", shape) for _ in range(rounds)]
        batches = f"{median(taken, 'median'):.0f}, {median(taken, 'longest'):.0f}"
        firsts = f"{median(began, 'start'):.2f}, {median(began, 'resumed'):.2f}"
        print(f"| {shape} | {batches} | {firsts} |", flush=True)


def report_sizes(measure, rounds: int) -> None:
    print("| a ready batch, us | batches | median | 99th percentile | longest |\n|---|---|---|---|---|")
    for how in ("one after another", "after computing", "while ingest runs"):
        for framework in ("NumPy", "torch"):
            for size in SIZES_MIB:
                taken = [measure("sizes", framework, str(size), how) for _ in range(rounds)]
                cells = " | ".join(f"{median(taken, key):.0f}" for key in ("batches", "median", "p99", "longest"))
                print(f"| {size} MiB, {framework}, {how} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
