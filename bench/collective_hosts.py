#!/usr/bin/env python3
"""Measures collective operations between hosts: UCX over TCP, on links of several speeds.

    cargo build --release --workspace --example collective_speed
    sudo python3 bench/collective_hosts.py [--hosts 2 4] [--rounds 3] [--out bench/results/NAME.md]

Each host is a network namespace of this machine on one bridge (`host_lab.py`), with one rank. Needs root, UCX (Debian
package libucx0) and iproute2. All hosts share the CPUs, so times without a limit are those of this machine. A limit is
that of each host in each direction (token bucket). `floor` is the time in which the bytes that each host sends pass the
limit.

Times are those of rank 0, from the call to its result (trainer/backend/examples/collective_speed.rs).

* `sum`: the sum of fp32 numbers on all ranks (all-reduce). `sum as bf16`: the numbers travel as bf16.
* `exchange`: all-to-all of equal parts; the size is that of all parts of a rank.
"""

import argparse
import collections
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

from host_lab import PROGRAMS, Host, enter, machine, network, today

PROGRAM = PROGRAMS / "examples" / "collective_speed"
SIZES = [1 << 10, 1 << 20, 64 << 20]
OPERATIONS = ["sum", "sum as bf16", "exchange"]
# Bits per second of each host.
LIMITS = {"no limit": None, "1 Gbit/s": 1_000_000_000, "100 Mbit/s": 100_000_000}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--program", type=pathlib.Path, default=PROGRAM)
    parser.add_argument("--out", type=pathlib.Path)
    options = parser.parse_args()
    enter()

    report = [heading(options.rounds)]
    for count in options.hosts:
        report += [f"### {count} hosts\n", "Milliseconds, min / median / max.\n"]
        report += ["| operation | size | link | ms | floor, ms |", "|---|---:|---|---:|---:|"]
        seconds = collections.defaultdict(list)
        hosts = [Host(number) for number in range(count)]
        with network(hosts):
            for link, limit in LIMITS.items():
                for host in hosts:
                    host.limit(f"{limit}bit" if limit else "none")
                # Few repetitions fill a slow link.
                for number in range(options.rounds if limit is None else 1):
                    print(f"{count} hosts, {link}, round {number + 1}", file=sys.stderr)
                    for line in run(options.program, hosts, 15 if limit is None else 3):
                        seconds[line["operation"], line["bytes"], link] += line["seconds"]
        report += rows(count, seconds)
        report.append("")
    text = "\n".join(report)
    print(text)
    if options.out:
        options.out.write_text(text)


def run(program: pathlib.Path, hosts: list[Host], repetitions: int) -> list[dict]:
    """Runs a rank on each host; returns what rank 0 printed."""
    with tempfile.TemporaryDirectory() as directory:
        processes = [
            subprocess.Popen(
                ["ip", "netns", "exec", host.space, program, "--network", "eth0", "--repetitions", str(repetitions)]
                + [directory, str(rank), str(len(hosts)), *map(str, SIZES)],
                stdout=subprocess.PIPE if rank == 0 else subprocess.DEVNULL,
                text=True,
            )
            for rank, host in enumerate(hosts)
        ]
        output = processes[0].communicate()[0]
        if any([process.wait() for process in processes]):
            sys.exit(f"{len(hosts)} hosts failed")
    lines = [json.loads(line) for line in output.splitlines()]
    if len(lines) != len(SIZES) * len(OPERATIONS):
        sys.exit(f"{program} printed {len(lines)} results")
    return lines


def sent_bytes(operation: str, size: int, count: int) -> float:
    """The bytes that a host sends to others: all parts but its own; in a sum once for the parts and once for the sums."""
    rounds = {"sum": 2, "sum as bf16": 1, "exchange": 1}[operation]
    return rounds * size * (count - 1) / count


def rows(count: int, seconds: dict) -> list[str]:
    lines = []
    for operation in OPERATIONS:
        for size in SIZES:
            for link, limit in LIMITS.items():
                times = [1e3 * each for each in seconds[operation, size, link]]
                figures = f"{min(times):,.2f} / {statistics.median(times):,.2f} / {max(times):,.2f}"
                floor = f"{8e3 * sent_bytes(operation, size, count) / limit:,.2f}" if limit and size >= 1 << 20 else "-"
                lines.append(f"| {operation} | {name(size)} | {link} | {figures} | {floor} |")
    return lines


def heading(rounds: int) -> str:
    ucx = subprocess.run(["dpkg-query", "-W", "-f", "${Version}", "libucx0"], capture_output=True, text=True).stdout
    return (
        f"## Collective operations between hosts, {today()}\n\n"
        f"{machine()}; libucx0 {ucx or '?'}. "
        f"`python3 bench/collective_hosts.py`, {rounds} rounds without a limit, one with; load average at the start "
        f"{os.getloadavg()[0]:.1f}.\n"
    )


def name(size: int) -> str:
    return f"{size >> 20} MiB" if size >= 1 << 20 else f"{size >> 10} KiB"


if __name__ == "__main__":
    main()
