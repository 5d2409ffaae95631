#!/usr/bin/env python3
"""Compares the clicks job with tf.data, Keras and PyTorch: same files, same machine, same run.

    python -m venv target/bench-python && target/bench-python/bin/pip install -r bench/requirements.txt
    target/bench-python/bin/python bench/clicks.py [--rows 2000000] [--runs 5] [--out bench/results/NAME.md]

The programs alternate, so that a slow phase of the machine affects all of them. Figures are
min / median / max over the runs; ratios are of medians.
"""

import argparse
import datetime
import json
import os
import pathlib
import platform
import statistics
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
JOB = ROOT / "examples" / "clicks" / "job.toml"
DATA = JOB.parent / "data"
MILLSTREAM = ROOT / "target" / "release" / "millstream"


def millstream(*arguments: str) -> dict:
    done = subprocess.run([MILLSTREAM, *arguments, "--json"], check=True, stdout=subprocess.PIPE, cwd=ROOT)
    return json.loads(done.stdout)


def rival(name: str) -> dict:
    command = [sys.executable, ROOT / "bench" / "clicks_rival.py", name, JOB]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd=ROOT)
    return json.loads(done.stdout.splitlines()[-1])


def generate(rows: int) -> dict:
    """Generates the data unless it exists; returns the number of rows and the best held-out metrics."""
    stamp = DATA / "rows.json"
    if stamp.exists() and (made := json.loads(stamp.read_text()))["rows"] == rows:
        return made
    DATA.mkdir(parents=True, exist_ok=True)
    for old in DATA.iterdir():
        old.unlink()
    for suffix in ("tfrecord", "parquet"):
        millstream("generate", "--rows", str(rows), "--shards", "16", str(DATA / f"train.{suffix}"))
        held_out = millstream("generate", "--rows", str(rows // 10), "--first-row", str(rows), "--shards", "4", str(DATA / f"eval.{suffix}"))
    stamp.write_text(json.dumps({"rows": rows, "best": held_out["best"]}))
    return json.loads(stamp.read_text())


def ingest() -> dict:
    return {"rate": millstream("bench", "ingest", str(JOB))["rows_per_second"]}


def train() -> dict:
    report = millstream("train", str(JOB))
    return {"rate": report["examples_per_second"], "auc": report["eval"]["auc"], "wait": report["input_wait_fraction"]}


def beside(name: str):
    def run() -> dict:
        report = rival(name)
        return {"rate": report["rows_per_second"], **({"auc": report["auc"]} if "auc" in report else {})}

    return run


CONTESTS = {
    "Ingest: TFRecord to shuffled, hashed batches": {"Millstream": ingest, "tf.data": beside("tfdata")},
    "Training, from files": {"Millstream": train, "Keras": beside("keras"), "PyTorch": beside("torch")},
}


def table(title: str, results: dict[str, list[dict]]) -> list[str]:
    ours = statistics.median(run["rate"] for run in results["Millstream"])
    lines = [f"### {title}", "", "| | rows/s, min / median / max | ratio | held-out AUC |", "|---|---|---|---|"]
    for name, runs in results.items():
        rates = [run["rate"] for run in runs]
        middle = statistics.median(rates)
        auc = f"{statistics.median(run['auc'] for run in runs):.4f}" if "auc" in runs[0] else ""
        ratio = "" if name == "Millstream" else f"{ours / middle:.1f}x"
        lines.append(f"| {name} | {min(rates):,.0f} / {middle:,.0f} / {max(rates):,.0f} | {ratio} | {auc} |")
    waits = [run["wait"] for run in results["Millstream"] if "wait" in run]
    if waits:
        lines += ["", f"Millstream waited for input {statistics.median(waits):.1%} of its training time."]
    return lines + [""]


def machine() -> str:
    model = next((line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")), "")
    return f"{os.cpu_count()} cores of {model or platform.processor()}, {platform.system()}, Python {platform.python_version()}"


def versions() -> str:
    from importlib.metadata import PackageNotFoundError, version

    found = []
    for package in ("tensorflow-cpu", "keras", "torch", "pyarrow"):
        try:
            found.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            found.append(f"{package} absent")
    return ", ".join(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--out", type=pathlib.Path, help="also write the report here")
    options = parser.parse_args()
    subprocess.run(["cargo", "build", "--release", "--workspace", "--bin", "millstream"], check=True, cwd=ROOT)
    made = generate(options.rows)
    lines = [
        f"## examples/clicks, {options.rows:,} rows, batch 4096, {options.runs} runs",
        "",
        f"{datetime.date.today()}; {machine()}; {versions()}.",
        f"The best possible AUC on the held-out rows: {made['best']['auc']:.4f}.",
        "",
    ]
    for title, contestants in CONTESTS.items():
        results: dict[str, list[dict]] = {name: [] for name in contestants}
        for number in range(options.runs):
            for name, run in contestants.items():
                results[name].append(run())
                print(f"{title}: {name}, run {number + 1}: {results[name][-1]}", file=sys.stderr)
        lines += table(title, results)
    report = "\n".join(lines)
    print(report)
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(report + "\n")


if __name__ == "__main__":
    main()
