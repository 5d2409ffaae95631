#!/usr/bin/env python3
"""Compares decoding on one core with a plain loop in C over the same files, in turns.

    python3 bench/decode.py [--rows 400000] [--rounds 5] [--directory target/decode]

Both read a file into memory, verify every checksum and parse every record into columns. The C loop
(bench/decode_floor.c) assumes the layout of the records and exits if one differs, so it approximates the machine's
limit. Prints rows/s as min / median / max over all rounds, and the ratio of medians. Compressed files and
files with their features in random order have no floor.
"""

import argparse
import collections
import pathlib
import statistics
import subprocess

ROOT = pathlib.Path(__file__).resolve().parent.parent
DECODE = ROOT / "target" / "release" / "examples" / "decode_speed"


def rates(command: list) -> dict[str, float]:
    """The median by name, from a program that prints `NAME N rows, rows/s MIN MEDIAN MAX`."""
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return {line.split()[0]: float(line.split()[-2]) for line in done.stdout.splitlines()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=400_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--directory", type=pathlib.Path, default=ROOT / "target" / "decode")
    arguments = parser.parse_args()

    subprocess.run(["cargo", "build", "--release", "-p", "millstream-pipeline", "--example", "decode_speed"], check=True, cwd=ROOT)
    arguments.directory.mkdir(parents=True, exist_ok=True)
    floor = arguments.directory / "decode_floor"
    subprocess.run(["gcc", "-O3", "-march=native", "-o", floor, ROOT / "bench" / "decode_floor.c"], check=True)
    subprocess.run([DECODE, "make", arguments.directory, str(arguments.rows)], check=True)

    files = sorted(arguments.directory.glob("*.tfrecord*"))
    plain = [file for file in files if file.suffix == ".tfrecord" and "shuffled" not in file.name]
    ours, floors = collections.defaultdict(list), collections.defaultdict(list)
    for _ in range(arguments.rounds):
        for file in files:
            for name, rate in rates([DECODE, "--runs", "3", file]).items():
                ours[name].append(rate)
            if file in plain:
                for name, rate in rates([floor, "-n", "3", file]).items():
                    floors[name].append(rate)

    model = next((line.split(": ")[1] for line in open("/proc/cpuinfo") if line.startswith("model name")), "unknown")
    print(f"\n{model}; {arguments.rows} rows, {arguments.rounds} rounds; million rows/s on one core, min / median / max\n")
    print("| file | Millstream | floor in C | share |\n|---|---|---|---|")
    for name in sorted(ours):
        print(f"| {name} | {shown(ours[name])} | {shown(floors[name])} | {share(ours[name], floors[name])} |")


def shown(rates: list[float]) -> str:
    return " / ".join(f"{rate / 1e6:.2f}" for rate in (min(rates), statistics.median(rates), max(rates))) if rates else ""


def share(ours: list[float], floor: list[float]) -> str:
    return f"{statistics.median(ours) / statistics.median(floor):.0%}" if floor else ""


if __name__ == "__main__":
    main()
