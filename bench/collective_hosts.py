#!/usr/bin/env python3
"""Measures collective operations between hosts: UCX over TCP, on links of several speeds.

    cargo build --release --workspace --example collective_speed
    sudo python3 bench/collective_hosts.py [--hosts 2 4] [--rounds 3] [--out bench/results/NAME.md]

Each host is a network namespace of this machine on one bridge, with one rank. Needs root, UCX (Debian package libucx0) and
iproute2. All hosts share the CPUs, so times without a limit are those of this machine. A limit is that of each host in each
direction (token bucket). `floor` is the time in which the bytes that each host sends pass the limit.

Times are those of rank 0, from the call to its result (trainer/backend/examples/collective_speed.rs).

* `sum`: the sum of fp32 numbers on all ranks (all-reduce). `sum as bf16`: the numbers travel as bf16.
* `exchange`: all-to-all of equal parts; the size is that of all parts of a rank.
"""

import argparse
import collections
import contextlib
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

ROOT = pathlib.Path(__file__).resolve().parent.parent
PROGRAM = ROOT / "target" / "release" / "examples" / "collective_speed"
BRIDGE = "mscbr"
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

    report = [heading(options.rounds)]
    for count in options.hosts:
        report += [f"### {count} hosts\n", "Milliseconds, min / median / max.\n"]
        report += ["| operation | size | link | ms | floor, ms |", "|---|---:|---|---:|---:|"]
        seconds = collections.defaultdict(list)
        with network(count):
            for link, limit in LIMITS.items():
                limited(count, limit)
                # Few repetitions fill a slow link.
                for number in range(options.rounds if limit is None else 1):
                    print(f"{count} hosts, {link}, round {number + 1}", file=sys.stderr)
                    for line in run(options.program, count, 15 if limit is None else 3):
                        seconds[line["operation"], line["bytes"], link] += line["seconds"]
        report += rows(count, seconds)
        report.append("")
    text = "\n".join(report)
    print(text)
    if options.out:
        options.out.write_text(text)


def sh(line: str) -> None:
    subprocess.run(line, shell=True, check=True)


@contextlib.contextmanager
def network(count: int):
    """Hosts on one bridge."""
    clean(count)
    try:
        sh(f"ip link add {BRIDGE} type bridge && ip link set {BRIDGE} up")
        for number in range(count):
            space, link = f"msc{number}", f"mscv{number}"
            sh(f"ip netns add {space}")
            sh(f"ip link add {link} type veth peer name eth0 netns {space}")
            sh(f"ip link set {link} master {BRIDGE} up")
            sh(f"ip -n {space} addr add 10.78.1.{number + 1}/24 dev eth0")
            sh(f"ip -n {space} link set eth0 up && ip -n {space} link set lo up")
        yield
    finally:
        clean(count)


def clean(count: int) -> None:
    for number in range(count):
        subprocess.run(f"ip netns del msc{number}; ip link del mscv{number}", shell=True, stderr=subprocess.DEVNULL)
    subprocess.run(f"ip link del {BRIDGE}", shell=True, stderr=subprocess.DEVNULL)


def limited(count: int, limit: int | None) -> None:
    """Limits what each host sends, and what the bridge sends to it."""
    for number in range(count):
        for tc in (f"ip netns exec msc{number} tc qdisc {{}} dev eth0 root", f"tc qdisc {{}} dev mscv{number} root"):
            if limit:
                sh(tc.format("replace") + f" tbf rate {limit}bit burst 256kb latency 50ms")


def run(program: pathlib.Path, count: int, repetitions: int) -> list[dict]:
    """Runs a rank on each host; returns what rank 0 printed."""
    with tempfile.TemporaryDirectory() as directory:
        processes = [
            subprocess.Popen(
                ["ip", "netns", "exec", f"msc{rank}", program, "--network", "eth0", "--repetitions", str(repetitions)]
                + [directory, str(rank), str(count), *map(str, SIZES)],
                stdout=subprocess.PIPE if rank == 0 else subprocess.DEVNULL,
                text=True,
            )
            for rank in range(count)
        ]
        output = processes[0].communicate()[0]
        if any([process.wait() for process in processes]):
            sys.exit(f"{count} hosts failed")
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
    information = pathlib.Path("/proc/cpuinfo").read_text()
    processor = re.search(r"model name\s*: (.*)", information).group(1)
    family = re.search(r"cpu family\s*: (.*)", information).group(1)
    ucx = subprocess.run(["dpkg-query", "-W", "-f", "${Version}", "libucx0"], capture_output=True, text=True).stdout
    return (
        f"## Collective operations between hosts, {datetime.date.today()}\n\n"
        f"{processor} (family {family}), {os.cpu_count()} CPUs, Linux {platform.release()}; libucx0 {ucx or '?'}. "
        f"`python3 bench/collective_hosts.py`, {rounds} rounds without a limit, one with; load average at the start "
        f"{os.getloadavg()[0]:.1f}.\n"
    )


def name(size: int) -> str:
    return f"{size >> 20} MiB" if size >= 1 << 20 else f"{size >> 10} KiB"


if __name__ == "__main__":
    main()
