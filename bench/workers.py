#!/usr/bin/env python3
"""Measures the training steps of several workers of this host against those of one worker with as many threads.

    cargo build --release -p millstream-trainer --example step_speed
    python bench/workers.py [--workers 2] [--rounds 5] [--gradients bf16] [--before PROGRAM] [--out bench/results/NAME.md]

Needs UCX (Debian package libucx0). Wide & Deep and DLRM as in `bench/step.py`: 13 numbers, 26 tables of 100,000 x 16, layers of
256, 128, 64 and 1, Adagrad, fp32, batches of 4096 rows from memory. Entrants alternate, one second per turn:

* one worker with N threads,
* N workers with a thread each, which share every batch,
* with `--gradients`, the same with gradients that travel in this precision,
* with `--before`, the step_speed of an earlier commit: one worker with N threads.

Figures are examples/s of whole batches, min / median / max over the rounds; ratios are of medians.
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

ROOT = pathlib.Path(__file__).resolve().parent.parent
PROGRAM = ROOT / "target" / "release" / "examples" / "step_speed"
MODELS = {"wide_deep": "Wide & Deep", "dlrm": "DLRM"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--gradients", choices=["bf16"])
    parser.add_argument("--before", type=pathlib.Path)
    parser.add_argument("--out", type=pathlib.Path)
    options = parser.parse_args()

    count = options.workers
    one, several = f"one worker, {count} threads", f"{count} workers, a thread each"
    entrants = {one: (PROGRAM, 1, count, []), several: (PROGRAM, count, 1, [])}
    if options.gradients:
        entrants[f"{several}, {options.gradients}"] = (PROGRAM, count, 1, ["--gradients", options.gradients])
    if options.before:
        entrants["one worker before"] = (options.before, 1, count, [])
    rates = collections.defaultdict(list)
    for number in range(options.rounds):
        for model in MODELS:
            for entrant, (program, workers, threads, more) in entrants.items():
                print(f"round {number + 1}: {model}, {entrant}", file=sys.stderr)
                rates[model, entrant].append(measure(program, model, workers, threads, more))
    text = "\n".join([heading(options.rounds), table(rates, list(entrants)), ""])
    print(text)
    if options.out:
        options.out.write_text(text)


def measure(program: pathlib.Path, model: str, workers: int, threads: int, more: list[str]) -> float:
    """The rate of one turn, from all workers of it."""
    shape = ["--model", model, "--threads", str(threads), "--runs", "1", "--json", *more]
    with tempfile.TemporaryDirectory() as directory:
        meet = lambda rank: ["--workers", str(workers), "--rank", str(rank), "--meet", directory]
        processes = [
            subprocess.Popen([program, *shape, *(meet(rank) if workers > 1 else [])], stdout=subprocess.PIPE, text=True)
            for rank in range(workers)
        ]
        outputs = [process.communicate()[0] for process in processes]
        if any(process.returncode for process in processes):
            sys.exit(f"{model} on {workers} workers failed")
    found = [json.loads(line) for line in outputs[0].splitlines()]
    return next(line["rate"] for line in found if "rate" in line)


def heading(rounds: int) -> str:
    information = pathlib.Path("/proc/cpuinfo").read_text()
    processor, family = (re.search(rf"{key}\s*: (.*)", information).group(1) for key in ("model name", "cpu family"))
    return (
        f"## Steps of several workers, {datetime.date.today()}\n\n"
        f"{processor} (family {family}), {os.cpu_count()} CPUs, Linux {platform.release()}. `python bench/workers.py`, {rounds} "
        f"rounds; load average at the end {os.getloadavg()[0]:.1f}.\n"
    )


def table(rates: dict, entrants: list[str]) -> str:
    lines = ["| model | entrant | examples/s | of one worker |", "|---|---|---:|---:|"]
    for model, name in MODELS.items():
        for entrant in entrants:
            found = rates[model, entrant]
            ratio = statistics.median(found) / statistics.median(rates[model, entrants[0]])
            spread = " / ".join(f"{rate:,.0f}" for rate in (min(found), statistics.median(found), max(found)))
            lines.append(f"| {name} | {entrant} | {spread} | {ratio:.2f} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
