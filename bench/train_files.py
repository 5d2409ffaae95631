#!/usr/bin/env python3
"""Compares training from files with TensorFlow and PyTorch, each with its best loader and its best step: same rows, model,
optimizer, batch size and number of threads, in the same run.

    python -m venv target/bench-python && target/bench-python/bin/pip install -r bench/requirements.txt
    target/bench-python/bin/python bench/train_files.py [--rows 2000000] [--runs 3] [--out bench/results/NAME.md]

One epoch of Wide & Deep (tables of 100,000 rows of 16 numbers, layers of 256, 128, 64 and 1, Adagrad, batches of 4096)
over the clicks of `millstream generate` with integer ids, shuffled over 100,000 rows. From TFRecord:

* `tf function`, `tf jit`, `tf keras`: the steps of `bench/step_rival_tf.py`, fed by the fastest tf.data pipeline of
  `bench/ingest_rival.py`.

From Parquet (PyTorch does not read TFRecord):

* `torch compiled`, `torch manual`: the steps of `bench/step_rival_torch.py`, fed by the pyarrow loader of
  `bench/ingest_rival.py` in one or two processes of a DataLoader. `torch fbgemm` runs if `--fbgemm` names a Python.

Millstream hashes ids and computes logarithms of counts; rivals use ids modulo the number of rows, which is faster. Their
compilation is not timed, and rows of partial batches do not count. Files come from the page cache. The programs alternate.
Figures are examples/s, min / median / max over the runs; ratios are of medians.

3 runs of 2,000,000 rows on two idle cores take about 12 minutes.
"""

import argparse
import datetime
import json
import pathlib
import statistics
import subprocess
import sys

import step

ROOT = pathlib.Path(__file__).resolve().parent.parent
SHARDS = 16
NUMERIC = [f"i{i}" for i in range(1, 14)]
CATEGORICAL = [f"c{i}" for i in range(1, 27)]
# Rival: variant, worker processes.
RIVALS = {
    "tfrecord": {"tf function": 1, "tf jit": 1, "tf keras": 1},
    "parquet": {"torch compiled": 1, "torch compiled, 2 readers": 2, "torch manual": 1, "torch fbgemm": 1},
}
ADAGRAD = '{ kind = "adagrad", learning_rate = 0.01 }'


def generate(directory: pathlib.Path, rows: int, suffix: str, millstream: pathlib.Path) -> list[pathlib.Path]:
    """Generates missing files, and reads all of them once."""
    folder = directory / f"{rows}-{suffix}"
    if not (folder / "whole").exists():
        folder.mkdir(parents=True, exist_ok=True)
        command = [millstream, "generate", "--rows", str(rows), "--shards", str(SHARDS), "--ids", "integer", folder / f"clicks.{suffix}"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        (folder / "whole").touch()
    files = sorted(folder.glob(f"*.{suffix}"))
    assert len(files) == SHARDS, f"{folder} has {len(files)} files of {SHARDS}"
    for path in files:
        path.read_bytes()
    return files


def job(files: list[pathlib.Path], suffix: str, threads: int) -> pathlib.Path:
    features = [f'{name} = {{ kind = "numeric", normalize = "log1p", missing = 0 }}' for name in NUMERIC]
    features += [f'{name} = {{ kind = "hashed", buckets = 100000 }}' for name in CATEGORICAL]
    text = "\n".join([
        'name = "train-files"',
        "[data]", f'train = ["*.{suffix}"]', "batch_size = 4096", "shuffle_rows = 100000", 'memory_budget = "1GiB"',
        "[label]", 'column = "clicked"',
        "[features]", *features,
        "[model]", 'kind = "wide_deep"',
        f"wide.features = {json.dumps(CATEGORICAL)}", f"wide.optimizer = {ADAGRAD}",
        f"deep.features = {json.dumps(NUMERIC + CATEGORICAL)}", "deep.embedding_dim = 16", "deep.hidden = [256, 128, 64]",
        f"deep.optimizer = {ADAGRAD}",
        "[training]", f"threads = {threads}",
        "[checkpoint]", 'directory = "checkpoints"', "every_steps = 1000000", "keep = 1", "",
    ])
    path = files[0].parent / "job.toml"
    path.write_text(text)
    return path


def ours(path: pathlib.Path, options: argparse.Namespace) -> float:
    done = subprocess.run([options.millstream, "train", path, "--json"], check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    subprocess.run(["rm", "-rf", path.parent / "checkpoints"], check=True)
    return json.loads(done.stdout)["examples_per_second"]


def rival(name: str, workers: int, files: list[pathlib.Path], rows: int, options: argparse.Namespace) -> float:
    shape = ["--threads", options.threads, "--workers", workers, "--files", *files]
    command = [str(word) for word in [*step.program(name.split(",")[0], options), *shape]]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=1800)
    if done.returncode:
        raise RuntimeError(f"{name} failed: {done.stderr.decode()[-2000:]}")
    report = json.loads(done.stdout.splitlines()[-1])
    # Partial batches of a file or reader do not count.
    assert 0.9 * rows < report["rows"] <= rows, report
    return report["rate"]


def contest(suffix: str, options: argparse.Namespace) -> list[str]:
    files = generate(options.data, options.rows, suffix, options.millstream)
    path = job(files, suffix, options.threads)
    rivals = {name: workers for name, workers in RIVALS[suffix].items() if name != "torch fbgemm" or options.fbgemm}
    rates: dict[str, list[float]] = {step.OURS: [], **{name: [] for name in rivals}}
    for number in range(options.runs):
        for name, found in rates.items():
            found.append(ours(path, options) if name == step.OURS else rival(name, rivals[name], files, options.rows, options))
            print(f"{suffix}: {name}, run {number + 1}: {found[-1]:,.0f}", file=sys.stderr, flush=True)
    lines = [f"### From {suffix}", "", "| | examples/s, min / median / max | ratio |", "|---|---|---|"]
    medians = {name: statistics.median(found) for name, found in rates.items()}
    for name, found in rates.items():
        ratio = "" if name == step.OURS else f"{medians[step.OURS] / medians[name]:.2f}x"
        lines.append(f"| {name} | {min(found):,.0f} / {medians[name]:,.0f} / {max(found):,.0f} | {ratio} |")
    best = max(rivals, key=medians.get)
    return lines + ["", f"Against the best, {best}: {medians[step.OURS] / medians[best]:.2f}x (wanted: 3x).", ""]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--only", nargs="*", choices=list(RIVALS), default=list(RIVALS))
    parser.add_argument("--data", type=pathlib.Path, default=ROOT / "target" / "bench" / "train_files", help="directory of the generated files")
    parser.add_argument("--millstream", type=pathlib.Path, help="the built program; built by default")
    parser.add_argument("--fbgemm", type=pathlib.Path, help="a Python with fbgemm-gpu-cpu")
    parser.add_argument("--out", type=pathlib.Path, help="also write the report here")
    options = parser.parse_args()
    if options.millstream is None:
        subprocess.run(["cargo", "build", "--release", "--workspace", "--bin", "millstream"], check=True, cwd=ROOT)
        options.millstream = ROOT / "target" / "release" / "millstream"
    lines = [
        f"## Training from files, {options.rows:,} rows, {options.runs} runs, {options.threads} threads",
        "",
        f"{datetime.date.today()}; {step.machine()}; {step.versions(options)}.",
        f"Command: `python bench/train_files.py {' '.join(sys.argv[1:])}`.",
        "",
    ]
    for suffix in options.only:
        lines += contest(suffix, options)
    report = "\n".join(lines)
    print(report)
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(report)


if __name__ == "__main__":
    main()
