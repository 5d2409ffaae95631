#!/usr/bin/env python3
"""Measures the gain of the local cache: ingest without a cache, with an empty one and with a full one.

    python3 bench/cache.py JOB.toml --train URL_OR_GLOB [--cache DIRECTORY] [--runs 5] [--out bench/results/NAME.md]

JOB defines the features; `--train` names the data, for example in a store limited to 100 MB/s. The three kinds of
passes alternate. Figures are min / median / max over the runs; ratios are of medians.
"""

import argparse
import datetime
import json
import os
import pathlib
import platform
import shutil
import statistics
import subprocess

ROOT = pathlib.Path(__file__).resolve().parent.parent
MILLSTREAM = ROOT / "target" / "release" / "millstream"
KINDS = ["without a cache", "first pass, cache written", "second pass, cache read"]


def ingest(job: str, train: str | None, cache: pathlib.Path | None) -> float:
    """Rows per second of one pass."""
    overrides = ["data.epochs=1", "data.eval=[]"]
    if train:
        overrides.append(f"data.train={json.dumps([train])}")
    if cache:
        overrides += [f"data.cache.directory={cache.resolve()}", "data.cache.max_bytes=1TiB"]
    sets = [part for override in overrides for part in ("--set", override)]
    done = subprocess.run([MILLSTREAM, "bench", "ingest", job, *sets, "--json"], check=True, stdout=subprocess.PIPE)
    return json.loads(done.stdout)["rows_per_second"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("job")
    parser.add_argument("--train")
    parser.add_argument("--cache", type=pathlib.Path, default=ROOT / "target" / "cache_bench")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--out", type=pathlib.Path)
    options = parser.parse_args()

    rates: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for _ in range(options.runs):
        shutil.rmtree(options.cache, ignore_errors=True)
        for kind, cache in zip(KINDS, [None, options.cache, options.cache]):
            rates[kind].append(ingest(options.job, options.train, cache))
    shutil.rmtree(options.cache, ignore_errors=True)

    lines = [
        f"# The local cache, {datetime.date.today()}",
        "",
        f"{platform.machine()}, {os.cpu_count()} cores, {options.runs} runs in turn; {options.job} over {options.train or 'its data'}.",
        "",
        "| pass | rows/s min | median | max |",
        "|---|---:|---:|---:|",
    ]
    for kind, each in rates.items():
        lines.append(f"| {kind} | {min(each):,.0f} | {statistics.median(each):,.0f} | {max(each):,.0f} |")
    median = {kind: statistics.median(each) for kind, each in rates.items()}
    lines += ["", f"Second pass against first: {median[KINDS[2]] / median[KINDS[1]]:.1f} times."]
    print("\n".join(lines))
    if options.out:
        options.out.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
