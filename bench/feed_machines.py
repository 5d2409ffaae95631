#!/usr/bin/env python3
"""Measures what several machines read for one training: all data each, or a shard each (`Loader(shard=True)`).

    python3 bench/feed_machines.py [--rows 1000000] [--rounds 5] [--machines 1 2 4] [--directory target/bench/feed]
                                   [--package target/site]

The machines are processes of this one, with a rank and a host of feeds each, so they share its CPUs: with shards, the same CPUs
read each row once instead of once per machine. Ranks wait for each other at the end of each epoch, not at every step. The rows are "clicks" of
bench/feed.py. Prints medians of one epoch, after one that does not count: rows/s of all machines together, CPU seconds of all
hosts per million rows, bytes that they read per byte of the files, and steps; of the rates also the lowest and the highest.
"""

import argparse
import itertools
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

from feed_data import files_of, make

BATCH, POOL = 8_192, 65_536


def gather_in(directory: pathlib.Path, rank: int, world: int):
    """A function that gathers the texts of all ranks, by files."""
    numbers = itertools.count()

    def gather(text: str) -> list[str]:
        number = next(numbers)
        mine = directory / f"{number}-{rank}"
        mine.with_suffix(".new").write_text(text)
        mine.with_suffix(".new").rename(mine)
        paths = [directory / f"{number}-{rank}" for rank in range(world)]
        while not all(path.exists() for path in paths):
            time.sleep(0.001)
        return [path.read_text() for path in paths]

    return gather


def usage(pid: str) -> tuple[float, int]:
    """CPU seconds of a process, and bytes that it has read."""
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    read = int(pathlib.Path(f"/proc/{pid}/io").read_text().split()[1])
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"), read


def take(directory: pathlib.Path, meeting: pathlib.Path, rank: int, world: int, shard: bool) -> None:
    """Takes the batches of a rank; prints the time and the resources of the second epoch."""
    import millstream as ms
    from feed_data import feed

    gather = gather_in(meeting, rank, world)
    # An epoch more is read, so that reading ahead is the same at both ends.
    of = feed(directory, "clicks", epochs=3, batch_size=BATCH, shuffle_rows=POOL, memory_budget="1GiB")
    more = {"shard": True, "gather": gather} if shard and world > 1 else {}
    loader = ms.Loader(of, rank=rank, world=world, local_world=1, tail="pad", run=f"{meeting} {rank}", **more)
    ends, rows, steps = [], 0, 0
    for epoch in loader.epochs:
        for batch in loader:
            rows += batch.rows if epoch == 1 else 0
            steps += epoch == 1
        gather("")
        (host,) = pathlib.Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
        ends.append((time.perf_counter(), *usage(host)))
        if epoch == 1:
            break
    seconds, cpu, read = (after - before for before, after in zip(*ends))
    print(json.dumps({"rows": rows, "steps": steps, "seconds": seconds, "cpu": cpu, "read": read}), flush=True)


def measure(arguments: argparse.Namespace, machines: int, shard: bool) -> dict[str, float]:
    environment = {**os.environ, "MILLSTREAM_FEED_SOCKET": "none", "PYTHONPATH": str(arguments.package.resolve())}
    with tempfile.TemporaryDirectory() as meeting:
        command = [sys.executable, __file__, "--directory", arguments.directory, "--meeting", meeting]
        command += ["--shard"] if shard else []
        ranks = [
            subprocess.Popen([*command, "--rank", str(rank), "--machines", str(machines)],
                             stdout=subprocess.PIPE, text=True, env=environment)
            for rank in range(machines)
        ]  # fmt: skip
        printed = [rank.communicate()[0] for rank in ranks]
    found = [json.loads(text) for text in printed]
    rows, stored = sum(one["rows"] for one in found), sum(path.stat().st_size for path in files_of(arguments.directory, "clicks"))
    return {
        "rate": rows / max(one["seconds"] for one in found),
        "cpu": 1e6 * sum(one["cpu"] for one in found) / rows,
        "read": sum(one["read"] for one in found) / stored,
        "steps": max(one["steps"] for one in found),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--machines", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--directory", type=pathlib.Path, default=pathlib.Path("target/bench/feed"))
    parser.add_argument("--package", type=pathlib.Path, default=pathlib.Path("target/site"))
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--meeting", type=pathlib.Path, help=argparse.SUPPRESS)
    parser.add_argument("--shard", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.rank is not None:
        take(arguments.directory, arguments.meeting, arguments.rank, arguments.machines[0], arguments.shard)
        return
    if not (arguments.directory / "clicks").exists():
        make(arguments.directory, arguments.rows)
    model = next((line.split(": ")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")), "")
    print(f"{model}, {os.cpu_count()} CPUs; batches of {BATCH:,} rows, {arguments.rounds} rounds, medians")
    print("| machines | reads | rows/s | lowest, highest | CPU s per million rows | bytes per byte of the files | steps |\n|---|---|---|---|---|---|---|")
    cases = [(machines, shard) for machines in arguments.machines for shard in ([False, True] if machines > 1 else [False])]
    results = {case: [] for case in cases}
    for number in range(arguments.rounds):
        for case in cases if number % 2 == 0 else reversed(cases):
            results[case].append(measure(arguments, *case))
            print(number, *case, results[case][-1], file=sys.stderr, flush=True)
    for (machines, shard), of in results.items():
        rate, cpu, read, steps = (statistics.median(one[key] for one in of) for key in ("rate", "cpu", "read", "steps"))
        rates = [one["rate"] for one in of]
        spread = f"{min(rates):,.0f}, {max(rates):,.0f}"
        print(f"| {machines} | {'a shard' if shard else 'all data'} | {rate:,.0f} | {spread} | {cpu:.2f} | {read:.2f} | {steps:.0f} |")


if __name__ == "__main__":
    main()
