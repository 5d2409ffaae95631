#!/usr/bin/env python3
"""Compares feeds with PyTorch's DataLoader, Hugging Face datasets, torchdata and `millstream train`, over the same files, in turns.

    python3 bench/feed.py [--rows 1000000] [--rounds 5] [--only TABLE...] [--directory target/bench/feed] [--package target/site]
                          [--program target/release/millstream]

Needs bench/requirements.txt, and the package linked by `python/link target/site target/release`. `bench/feed_rival.py` describes
the rivals; one that is not installed is reported as absent. Each measurement runs in a separate process; the order alternates. Rows
have 40 numbers ("clicks") or a label and one vector of 256 floats ("vectors"), in Parquet. Prints medians:

* rates: rows/s into tensors of PyTorch, shuffled in a pool of 65,536 rows. datasets streams and shuffles rows, of which the first
  28,672 are taken;
* ready: the time to take a batch that is ready and to have tensors of all columns;
* sizes: the same for batches of 1, 16 and 64 MiB, as arrays of NumPy and tensors of PyTorch, with the 99th percentile: one after
  another; each after 2 ms of computing, when the caches hold other things; and so while ingest fills the slots of the batches that
  were dropped, on the same CPUs. In the first two, batches are kept, so nothing else runs. Checks that nothing is copied;
* clicks: rows/s and CPU time of "clicks", beside `millstream bench ingest`, the ingest of `millstream train` alone, with the same
  columns, shuffle, batch size, memory budget and threads. Its ids have 32 bits. Feeds are measured with ids of 64 bits, as in the
  files, and of 32; with tensors of all columns, and with batches that are dropped unread. The first of the epochs does not count;
* resume: the time from the start of a loader to its first batch: at the start of an epoch, and after 10, 50 and 99 % of it, by the
  loader's own state. Imports do not count. Checks that the batch is the one that followed;
* memory: of 8 ranks, their worker processes and the process that reads for them, beyond 8 programs that only import PyTorch,
  without the batches in shared memory. Batches have 4,096 rows in all. Millstream reads 16 or 4 files side by side; DataLoader has
  two workers per rank, and a pool of 65,536 rows per rank, or in all.
"""

import argparse
import hashlib
import itertools
import json
import os
import pathlib
import pickle
import resource
import statistics
import subprocess
import sys
import time

import feed_memory
import feed_rival
from feed_data import BATCH, IDS, NUMBERS, POOL, SHAPES, feed, files_of, make

MIB = 1 << 20
SIZES_MIB, SLOTS, FILLS = (1, 16, 64), 8, 16
# Of "clicks", each after one that does not count.
EPOCHS = 8
MEMORY_BUDGET = "1GiB"
# In percent of an epoch.
PLACES = (0, 10, 50, 99)


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
    return rate(feed_rival.dataloader(directory, shape))


def datasets(directory: pathlib.Path, shape: str) -> float:
    return rate(itertools.islice(feed_rival.datasets(directory, shape), 7))


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


def host_of_feed() -> str:
    """The process that hosts the only feed of this one."""
    (host,) = pathlib.Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    return host


def await_idle() -> None:
    """Waits until the process that hosts the feed has filled all slots: its threads have all slept for 50 ms."""
    host, idle, before = host_of_feed(), 0, None
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


def clicks(directory: pathlib.Path, ids: str, what: str) -> dict[str, float]:
    """Rows/s, and CPU seconds per million rows of the process that hosts the feed and of this one, after the first epoch."""
    from millstream.torch import Loader

    # One epoch more is read, so that reading ahead is the same at both ends.
    loader = Loader(feed(directory, "clicks", ids, epochs=EPOCHS + 2, memory_budget=MEMORY_BUDGET))
    rows, ends = 0, []
    for epoch in loader.epochs:
        for batch in loader:
            if what == "tensors":
                list(batch.values())
            rows += batch.rows if epoch > 0 else 0
        ends.append((time.perf_counter(), cpu_seconds(host_of_feed()), time.process_time()))
        if epoch == EPOCHS:
            break
    took, host, own = (after - before for before, after in zip(ends[0], ends[-1]))
    return {"rate": rows / took, "cpu": 1e6 * host / rows, "own": 1e6 * own / rows}


def cpu_seconds(pid: str) -> float:
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


JOB = """name = "clicks"
[data]
train = ["{files}"]
eval = []
batch_size = {batch}
shuffle_rows = {pool}
memory_budget = "{memory}"
[label]
column = "label"
[features]
{features}
[model]
kind = "wide_deep"
wide.features = {wide}
deep.features = {deep}
"""


def ingest(directory: pathlib.Path, program: str) -> dict[str, float] | None:
    """The same of the ingest of a job, which runs in the program that measures it."""
    if not pathlib.Path(program).exists():
        return None
    features = [f'{name} = {{ kind = "numeric", normalize = "none" }}' for name in NUMBERS]
    features += [f'{name} = {{ kind = "identity", buckets = 100000 }}' for name in IDS]
    text = JOB.format(
        files=directory.resolve() / "clicks" / "*.parquet", batch=BATCH, pool=POOL, memory=MEMORY_BUDGET,
        features="\n".join(features), wide=json.dumps(IDS[:1]), deep=json.dumps(NUMBERS + IDS),
    )  # fmt: skip
    job = directory / "clicks.toml"
    job.write_text(text)

    def run(epochs: int) -> tuple[float, float, float]:
        """Rows, seconds, and seconds of CPU time."""
        command = [program, "bench", "ingest", job, "--epochs", str(epochs), "--json"]
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        report = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        return report["rows"], report["rows"] / report["rows_per_second"], cpu

    # Without the first epoch, and the start and the end of the program, as in the measurement of feeds.
    rows, seconds, cpu = (long - short for long, short in zip(run(EPOCHS + 1), run(1)))
    return {"rate": rows / seconds, "cpu": 1e6 * cpu / rows, "own": 0}


def resumable(directory: pathlib.Path, shape: str):
    from millstream.torch import Loader

    return Loader(feed(directory, shape))


RESUMABLE = {
    "millstream": resumable,
    "iterable": feed_rival.stateful_iterable,
    "map": feed_rival.stateful_map,
}


def digest(batch) -> str:
    """Of the contents of a batch."""
    found = hashlib.sha256()
    for name in sorted(batch):
        found.update(batch[name].numpy())
    return found.hexdigest()


def states(directory: pathlib.Path, shape: str, what: str) -> bool:
    """Writes the states of a loader at the places, each with the digest of the batch that follows."""
    import pyarrow.parquet as pq

    rows = sum(pq.read_metadata(path).num_rows for path in files_of(directory, shape))
    wanted = {rows * place // (100 * BATCH): place for place in PLACES}
    if what == "map":
        feed_rival.write_arrays(directory, shape)
    loader, state = RESUMABLE[what](directory, shape), None
    for number, batch in enumerate(loader):
        if number in wanted:
            path = directory / f"{shape}-{what}-{wanted[number]}.state"
            path.write_bytes(pickle.dumps((state, digest(batch))))
        # The state after the batch that comes before.
        if number + 1 in wanted:
            state = loader.state_dict()
        if number == max(wanted):
            return True
    raise AssertionError(f"an epoch of {what} has only {number + 1} batches")


def resume(directory: pathlib.Path, shape: str, what: str, place: str) -> float:
    """Seconds from the start of a loader to its first batch."""
    import pyarrow.parquet  # noqa: F401
    import torch  # noqa: F401

    if what == "millstream":
        import millstream.torch  # noqa: F401
    else:
        import torchdata.stateful_dataloader  # noqa: F401
    state, expected = pickle.loads((directory / f"{shape}-{what}-{place}.state").read_bytes())
    began = time.perf_counter()
    loader = RESUMABLE[what](directory, shape)
    if state is not None:
        loader.load_state_dict(state)
    batch = next(iter(loader))
    took = time.perf_counter() - began
    assert digest(batch) == expected, "it is another batch"
    return took


def memory(directory: pathlib.Path, shape: str, what: str) -> dict[str, float]:
    return feed_memory.of_ranks(directory, shape, what)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--directory", type=pathlib.Path, default=pathlib.Path("target/bench/feed"))
    parser.add_argument("--package", type=pathlib.Path, default=pathlib.Path("target/site"))
    parser.add_argument("--program", type=pathlib.Path, default=pathlib.Path("target/release/millstream"))
    parser.add_argument("--only", nargs="+", choices=REPORTS, default=list(REPORTS))
    parser.add_argument("--one", nargs="+", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        measure, *rest = arguments.one
        try:
            print(json.dumps(globals()[measure](arguments.directory, *rest)))
        except ModuleNotFoundError as error:
            if error.name == "millstream":
                raise
            print("null")
        return
    if not (arguments.directory / "vectors").exists():
        make(arguments.directory, arguments.rows)

    def measure(*what: str):
        command = [sys.executable, __file__, "--directory", arguments.directory, "--one", *what]
        # Without a daemon that serves others, too.
        environment = {**os.environ, "MILLSTREAM_FEED_SOCKET": "none", "OMP_NUM_THREADS": "1"}
        environment["PYTHONPATH"] = str(arguments.package.resolve())
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment)
        return json.loads(done.stdout.splitlines()[-1])

    model = next((line.split(": ")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")), "")
    print(f"{model}, {os.cpu_count()} CPUs; {arguments.rows:,} rows, {arguments.rounds} rounds, medians")
    for table in arguments.only:
        print(flush=True)
        more = [str(arguments.program.resolve())] if table == "clicks" else []
        REPORTS[table](measure, arguments.rounds, *more)


def in_turns(measure, rounds: int, measures: list[tuple[str, ...]]) -> dict[tuple[str, ...], list]:
    """The results of each measure, by round."""
    results = {what: [] for what in measures}
    for number in range(rounds):
        for what in measures if number % 2 == 0 else reversed(measures):
            results[what].append(measure(*what))
            print(number, *what, results[what][-1], file=sys.stderr, flush=True)
    return results


def median(of: list[dict[str, float]], key: str) -> float:
    return statistics.median(one[key] for one in of)


def report_rates(measure, rounds: int) -> None:
    print("| rows | Millstream, rows/s | DataLoader | datasets |\n|---|---|---|---|")
    for shape in SHAPES:
        results = in_turns(measure, rounds, [(what, shape) for what in ("millstream", "dataloader", "datasets")])
        ours, *others = results.values()
        ours = statistics.median(ours)
        cells = []
        for other in others:
            middle = None if None in other else statistics.median(other)
            cells.append(f"{middle:,.0f} ({ours / middle:.1f}x)" if middle else "absent")
        print(f"| {shape} | {ours:,.0f} | {' | '.join(cells)} |", flush=True)


def report_ready(measure, rounds: int) -> None:
    print("| rows | a ready batch, us: median | longest |\n|---|---|---|")
    for shape in SHAPES:
        taken = [measure("ready", shape) for _ in range(rounds)]
        print(f"| {shape} | {median(taken, 'median'):.0f} | {median(taken, 'longest'):.0f} |", flush=True)


def report_sizes(measure, rounds: int) -> None:
    print("| a ready batch, us | batches | median | 99th percentile | longest |\n|---|---|---|---|---|")
    for how in ("one after another", "after computing", "while ingest runs"):
        for framework in ("NumPy", "torch"):
            for size in SIZES_MIB:
                taken = [measure("sizes", framework, str(size), how) for _ in range(rounds)]
                cells = " | ".join(f"{median(taken, key):.0f}" for key in ("batches", "median", "p99", "longest"))
                print(f"| {size} MiB, {framework}, {how} | {cells} |", flush=True)


def report_clicks(measure, rounds: int, program: str) -> None:
    names = {("ingest", program): "ingest of `train`"}
    for what in ("tensors", "dropped"):
        for ids in ("int64", "int32"):
            names["clicks", ids, what] = f"feed, ids of {ids[3:]} bits, {what}"
    results = in_turns(measure, rounds, list(names))
    train = results["ingest", program]
    print("| clicks | rows/s | lowest, highest | of `train` | CPU s per million rows: ingest, program |\n|---|---|---|---|---|")
    for what, of in results.items():
        if None in of:
            print(f"| {names[what]} | absent | | | |")
            continue
        rates = [one["rate"] for one in of]
        share = "" if None in train else f"{statistics.median(rates) / median(train, 'rate'):.0%}"
        spread = f"{min(rates):,.0f}, {max(rates):,.0f}"
        used = f"{median(of, 'cpu'):.2f}, {median(of, 'own'):.2f}"
        print(f"| {names[what]} | {statistics.median(rates):,.0f} | {spread} | {share} | {used} |", flush=True)


def report_resume(measure, rounds: int) -> None:
    names = {
        "millstream": "Millstream",
        "iterable": "StatefulDataLoader, iterable",
        "map": "StatefulDataLoader, map-style",
    }
    print(f"| first batch, s | at the start | {' | '.join(f'at {place} %' for place in PLACES[1:])} |\n|---|---|---|---|---|")
    for shape in SHAPES:
        present = {what: measure("states", shape, what) for what in RESUMABLE}
        measures = [("resume", shape, what, str(place)) for what in RESUMABLE if present[what] for place in PLACES]
        results = in_turns(measure, rounds, measures)
        for what, name in names.items():
            cells = ["absent"] + [""] * (len(PLACES) - 1)
            if present[what]:
                cells = [f"{statistics.median(results['resume', shape, what, str(place)]):.2f}" for place in PLACES]
            print(f"| {shape}: {name} | {' | '.join(cells)} |", flush=True)


def report_memory(measure, rounds: int) -> None:
    names = {
        "millstream": "Millstream, 16 lanes, as by default",
        "millstream_4_lanes": "Millstream, 4 lanes",
        "divided": f"DataLoader, a pool of {POOL // feed_memory.RANKS:,} rows per rank",
        "each": f"DataLoader, a pool of {POOL:,} rows per rank",
    }
    print("| 8 ranks, MiB | processes | batches | all else | highest | Millstream needs |\n|---|---|---|---|---|---|")
    for shape in SHAPES:
        results = in_turns(measure, rounds, [("memory", shape, what) for what in ("bare", *names)])
        bare = median(results["memory", shape, "bare"], "pss")
        ours = []
        for what, name in names.items():
            of = results["memory", shape, what]
            # The whole ring, also what was never written.
            shared = median(of, "rings") or median(of, "shared")
            more, most = (median(of, key) - bare - shared for key in ("pss", "peak"))
            if what in feed_memory.LANES:
                ours.append(more)
            cells = " | ".join(f"{bytes / MIB:,.0f}" for bytes in (shared, more, most))
            times = "" if what in feed_memory.LANES else ", ".join(f"{one / more:.2f}" for one in ours) + " of that"
            print(f"| {shape}: {name} | {median(of, 'processes'):.0f} | {cells} | {times} |", flush=True)


REPORTS = {
    "rates": report_rates,
    "ready": report_ready,
    "sizes": report_sizes,
    "clicks": report_clicks,
    "resume": report_resume,
    "memory": report_memory,
}

if __name__ == "__main__":
    main()
