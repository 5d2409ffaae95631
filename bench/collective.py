#!/usr/bin/env python3
"""Compares collective operations between processes of this host with Gloo's, as PyTorch uses it.

    python -m venv target/bench-python && target/bench-python/bin/pip install -r bench/requirements.txt
    cargo build --release -p millstream-backend --example collective_speed
    target/bench-python/bin/python bench/collective.py [--ranks 2 4] [--rounds 3] [--out bench/results/NAME.md]

Needs UCX (Debian package libucx0). Each round starts the processes of one program, then those of the other; each repeats
an operation for all sizes (trainer/backend/examples/collective_speed.rs, bench/collective_rival.py). Times are those of rank
0, from the call to its result.

* `sum`: the sum of fp32 numbers on all ranks (all-reduce).
* `sum as bf16`: here, fp32 numbers that travel as bf16 and are added in fp32; in PyTorch, the sum of a bf16 tensor, which adds
  in bf16.
* `exchange`: all-to-all of equal parts; the size is that of all parts of a rank.
"""

import argparse
import collections
import datetime
import json
import os
import pathlib
import platform
import re
import statistics
import subprocess
import sys
import tempfile
from importlib.metadata import version

ROOT = pathlib.Path(__file__).resolve().parent.parent
OURS = ROOT / "target" / "release" / "examples" / "collective_speed"
RIVAL = ROOT / "bench" / "collective_rival.py"
SIZES = [1 << 10, 4 << 10, 64 << 10, 1 << 20, 16 << 20, 64 << 20, 256 << 20]
OPERATIONS = ["sum", "sum as bf16", "exchange"]
PROGRAMS = ["millstream", "gloo"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=pathlib.Path)
    options = parser.parse_args()

    report = [heading(options.rounds)]
    for ranks in options.ranks:
        seconds = collections.defaultdict(list)
        for number in range(options.rounds):
            for program in PROGRAMS:
                print(f"{ranks} ranks, round {number + 1}: {program}", file=sys.stderr)
                for line in run(program, ranks):
                    seconds[program, line["operation"], line["bytes"]] += line["seconds"]
        report.append(table(ranks, seconds))
    text = "\n".join(report)
    print(text)
    if options.out:
        options.out.write_text(text)


def run(program: str, ranks: int) -> list[dict]:
    """Runs the ranks of a program; returns what rank 0 printed."""
    with tempfile.TemporaryDirectory() as directory:
        start = {
            "millstream": [str(OURS), directory],
            "gloo": [sys.executable, str(RIVAL), os.path.join(directory, "meet")],
        }[program]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
        processes = [
            subprocess.Popen(
                [*start, str(rank), str(ranks), *map(str, SIZES)],
                stdout=subprocess.PIPE if rank == 0 else subprocess.DEVNULL,
                env=environment,
                text=True,
            )
            for rank in range(ranks)
        ]
        output = processes[0].communicate()[0]
        if any([process.wait() for process in processes]):
            sys.exit(f"{program} with {ranks} ranks failed")
    lines = [json.loads(line) for line in output.splitlines()]
    if len(lines) != len(SIZES) * len(OPERATIONS):
        sys.exit(f"{program} printed {len(lines)} results")
    return lines


def heading(rounds: int) -> str:
    processor = re.search(r"model name\s*: (.*)", pathlib.Path("/proc/cpuinfo").read_text()).group(1)
    family = re.search(r"cpu family\s*: (.*)", pathlib.Path("/proc/cpuinfo").read_text()).group(1)
    ucx = subprocess.run(["dpkg-query", "-W", "-f", "${Version}", "libucx0"], capture_output=True, text=True).stdout
    return (
        f"## Collective operations between processes, {datetime.date.today()}\n\n"
        f"{processor} (family {family}), {os.cpu_count()} CPUs, Linux {platform.release()}; libucx0 {ucx or '?'}, torch "
        f"{version('torch')}. `python bench/collective.py`, {rounds} rounds; load average at the start {os.getloadavg()[0]:.1f}.\n"
    )


def table(ranks: int, seconds: dict) -> str:
    lines = [
        f"### {ranks} processes\n",
        "Microseconds, min / median / max; GB/s is the size divided by the median.\n",
        "| operation | size | millstream, µs | gloo, µs | millstream, GB/s | gloo, GB/s | gloo / millstream |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for operation in OPERATIONS:
        for size in SIZES:
            times = [seconds[program, operation, size] for program in PROGRAMS]
            ours, rival = (statistics.median(each) for each in times)
            ranges = [f"{min(each) * 1e6:,.0f} / {statistics.median(each) * 1e6:,.0f} / {max(each) * 1e6:,.0f}" for each in times]
            lines.append(
                f"| {operation} | {name(size)} | {ranges[0]} | {ranges[1]} | {size / ours / 1e9:.2f} | "
                f"{size / rival / 1e9:.2f} | {rival / ours:.1f} |"
            )
    return "\n".join(lines) + "\n"


def name(size: int) -> str:
    return f"{size >> 20} MiB" if size >= 1 << 20 else f"{size >> 10} KiB"


if __name__ == "__main__":
    main()
