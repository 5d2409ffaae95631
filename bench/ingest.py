#!/usr/bin/env python3
"""Compares ingest with tf.data, pyarrow, Polars, PyTorch and Hugging Face datasets: same files, same machine, same run.

    python -m venv target/bench-python && target/bench-python/bin/pip install -r bench/requirements.txt
    target/bench-python/bin/python bench/ingest.py [--rows 2000000] [--runs 5] [--only WORD ...]
                                             [--out bench/results/NAME.md]

Rows have the shape of Criteo's click log: 13 numeric and 26 categorical columns. Every program delivers batches of 4096
rows, shuffled over 100,000 rows. The programs alternate, so that a slow phase of the machine affects all of them; the
slowest read an eighth of the files. Time includes listing files and reading footers. Files come from the page cache.
Figures are rows/s, min / median / max over the runs; ratios are of medians. `bench/ingest_rival.py` describes the rivals.

Two kinds of work:

* hashed: `log1p` of the numbers; ids are Fingerprint64 of the text modulo 100,000.
* raw: unchanged numbers and integer ids.

Random order: the features of each record are shuffled, as C++ and Go write them.

`--only` selects contests by words in their names, such as `Parquet` or `gzip`.
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
MILLSTREAM = ROOT / "target" / "release" / "millstream"
DECODE = ROOT / "target" / "release" / "examples" / "decode_speed"
BATCH, SHUFFLE, BUCKETS, SHARDS = 4096, 100_000, 100_000, 16
NUMERIC = [f"i{i}" for i in range(1, 14)]
CATEGORICAL = [f"c{i}" for i in range(1, 27)]

# The arguments of `millstream generate` for each set of files.
DATA = {
    "integer.tfrecord": ["--ids", "integer"],
    "shuffled.tfrecord": ["--ids", "integer"],
    "integer-gzip.tfrecord.gz": ["--ids", "integer"],
    "integer-zstd.parquet": ["--ids", "integer", "--compression", "zstd"],
    "integer-snappy.parquet": ["--ids", "integer", "--compression", "snappy"],
    "hex.tfrecord": ["--ids", "hex"],
    "hex-gzip.tfrecord.gz": ["--ids", "hex"],
    "hex-zstd.parquet": ["--ids", "hex", "--compression", "zstd"],
    "hex-snappy.parquet": ["--ids", "hex", "--compression", "snappy"],
}

TFRECORD = ["tfdata", "tfdata-blocks", "tfdata-guide"]
PARQUET = ["pyarrow", "polars", "torch", "huggingface"]

# Slow rivals, measured on an eighth of the files.
SLOW = {"tfdata-guide", "huggingface"}

# Title: files, work, rivals.
CONTESTS = {
    "TFRecord, integers, hashed": ("integer.tfrecord", "hashed", TFRECORD),
    "TFRecord, integers, raw": ("integer.tfrecord", "raw", TFRECORD),
    "TFRecord, integers in random order, hashed": ("shuffled.tfrecord", "hashed", TFRECORD),
    "TFRecord, strings, hashed": ("hex.tfrecord", "hashed", TFRECORD),
    "TFRecord gzip, integers, raw": ("integer-gzip.tfrecord.gz", "raw", TFRECORD),
    "TFRecord gzip, strings, hashed": ("hex-gzip.tfrecord.gz", "hashed", TFRECORD),
    "Parquet zstd, integers, raw": ("integer-zstd.parquet", "raw", PARQUET),
    "Parquet snappy, integers, raw": ("integer-snappy.parquet", "raw", PARQUET),
    "Parquet zstd, strings": ("hex-zstd.parquet", "hashed", PARQUET),
    "Parquet snappy, strings": ("hex-snappy.parquet", "hashed", PARQUET),
}

# Minimum ratio of Millstream's median to a rival's: `(word of the contest, rival): ratio`.
TARGETS = {
    ("TFRecord,", "tfdata"): 10,
    ("TFRecord,", "tfdata-blocks"): 10,
    ("TFRecord,", "tfdata-guide"): 15,
    ("gzip", "tfdata"): 3,
    ("gzip", "tfdata-blocks"): 3,
    ("gzip", "tfdata-guide"): 3,
    ("Parquet", "pyarrow"): 2,
    ("Parquet", "polars"): 0.6,
    ("Parquet", "huggingface"): 20,
}

JOB = """name = "ingest"
[data]
train = ["{pattern}"]
batch_size = {batch}
epochs = 1
shuffle_rows = {shuffle}
memory_budget = "1GiB"
[label]
column = "clicked"
[features]
{features}
[model]
kind = "wide_deep"
wide.features = {wide}
deep.features = {deep}
"""


def job_text(pattern: str, work: str) -> str:
    normalize = "log1p" if work == "hashed" else "none"
    # `generate` makes 32-bit ids; the last two collide with the id of missing values.
    ids = f'kind = "hashed", buckets = {BUCKETS}' if work == "hashed" else 'kind = "identity", buckets = 4294967293, out_of_range = "missing"'
    lines = [f'{name} = {{ kind = "numeric", normalize = "{normalize}", missing = 0 }}' for name in NUMERIC]
    lines += [f"{name} = {{ {ids} }}" for name in CATEGORICAL]
    return JOB.format(
        pattern=pattern, batch=BATCH, shuffle=SHUFFLE, features="\n".join(lines),
        wide=json.dumps(CATEGORICAL[:1]), deep=json.dumps(NUMERIC + CATEGORICAL),
    )


def millstream(*arguments: str) -> dict:
    done = subprocess.run([MILLSTREAM, *arguments, "--json"], check=True, stdout=subprocess.PIPE, cwd=ROOT)
    return json.loads(done.stdout)


def generate(directory: pathlib.Path, rows: int, needed: set[str]) -> None:
    """Generates missing files."""
    for name in sorted(needed):
        made = directory / name.split(".")[0] / name
        if (made.parent / "whole").exists():
            continue
        made.parent.mkdir(parents=True, exist_ok=True)
        for old in made.parent.iterdir():
            old.unlink()
        print(f"generating {made}", file=sys.stderr)
        millstream("generate", "--rows", str(rows), "--shards", str(SHARDS), *DATA[name], str(made))
        if name.startswith("shuffled"):
            shuffle_features(files_of(directory, name))
        (made.parent / "whole").touch()


def shuffle_features(paths: list[pathlib.Path]) -> None:
    """Rewrites files with the features of each record in random order."""
    for path in paths:
        ordered = path.rename(path.with_suffix(".ordered"))
        subprocess.run([DECODE, "shuffle", ordered, path], check=True)
        ordered.unlink()


def files_of(directory: pathlib.Path, name: str) -> list[pathlib.Path]:
    folder = directory / name.split(".")[0]
    found = sorted(path for path in folder.iterdir() if path.name.endswith(name[name.index("."):]))
    assert found, f"no files of {name} in {folder}"
    return found


def read_once(paths: list[pathlib.Path]) -> int:
    """Reads files into the page cache; returns their total size."""
    total = 0
    for path in paths:
        with path.open("rb", buffering=0) as file:
            while chunk := file.read(1 << 24):
                total += len(chunk)
    return total


def ours(job: pathlib.Path, rows: int) -> dict:
    report = millstream("bench", "ingest", str(job))
    assert report["rows"] == rows, report
    return {"rate": report["rows"] / (report["planning_seconds"] + report["seconds"]), "stages": report["stages"]}


def rival(name: str, paths: list[pathlib.Path], work: str, rows: int) -> dict:
    script = ROOT / "bench" / "ingest_rival.py"
    if name in SLOW:
        paths, rows = paths[: len(paths) // 8], rows // 8
    command = [sys.executable, script, name, work, *paths]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT)
    if done.returncode:
        raise RuntimeError(f"{name} failed: {done.stderr.decode()[-2000:]}")
    report = json.loads(done.stdout.splitlines()[-1])
    # A rival's last partial batches do not count; file sizes differ by one row.
    assert rows - 2 * BATCH <= report["rows"] <= rows + SHARDS, report
    return {"rate": report["rows"] / report["seconds"]}


def target(title: str, name: str) -> str:
    wanted = [times for (word, rival), times in TARGETS.items() if word in title and rival == name]
    return f"{wanted[0]:g}x" if wanted else ""


def table(title: str, results: dict[str, list[dict]], size: int) -> list[str]:
    ours = statistics.median(run["rate"] for run in results["Millstream"])
    lines = [f"### {title}", "", f"{size / 1e6:,.0f} MB of files.", "", "| | rows/s, min / median / max | ratio | wanted |", "|---|---|---|---|"]
    for name, runs in results.items():
        rates = [run["rate"] for run in runs]
        middle = statistics.median(rates)
        ratio = "" if name == "Millstream" else f"{ours / middle:.2f}x"
        lines.append(f"| {name} | {min(rates):,.0f} / {middle:,.0f} / {max(rates):,.0f} | {ratio} | {target(title, name)} |")
    stages = results["Millstream"][-1]["stages"]
    busy = ", ".join(f"{name} {stage['busy_seconds']:.2f}" for name, stage in stages.items() if isinstance(stage, dict) and stage.get("busy_seconds"))
    return lines + ["", f"Busy seconds of Millstream's threads in its last run: {busy}.", ""]


def machine() -> str:
    model = next((line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")), "")
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return f"{os.cpu_count()} cores of {model or platform.processor()}, {memory:.0f} GiB, {platform.system()}, Python {platform.python_version()}"


def versions() -> str:
    from importlib.metadata import PackageNotFoundError, version

    found = []
    for package in ("tensorflow-cpu", "pyarrow", "polars", "torch", "datasets", "numpy"):
        try:
            found.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            found.append(f"{package} absent")
    return ", ".join(found)


def contest(title: str, options: argparse.Namespace, directory: pathlib.Path) -> list[str]:
    name, work, rivals = CONTESTS[title]
    paths = files_of(directory, name)
    size = read_once(paths)
    job = directory / f"{name.split('.')[0]}-{work}.toml"
    job.write_text(job_text(f"{paths[0].parent}/*{name[name.index('.'):]}", work))
    results: dict[str, list[dict]] = {"Millstream": [], **{rival: [] for rival in rivals}}
    for number in range(options.runs):
        for entrant, runs in results.items():
            runs.append(ours(job, options.rows) if entrant == "Millstream" else rival(entrant, paths, work, options.rows))
            print(f"{title}: {entrant}, run {number + 1}: {runs[-1]['rate']:,.0f} rows/s", file=sys.stderr)
    return table(title, results, size)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--only", nargs="*", default=[], help="run only contests whose names contain all these words")
    parser.add_argument("--data", type=pathlib.Path, default=ROOT / "target" / "bench" / "ingest", help="directory of the generated files")
    parser.add_argument("--out", type=pathlib.Path, help="also write the report here")
    options = parser.parse_args()
    titles = [title for title in CONTESTS if all(word in title for word in options.only)]
    assert titles, f"no contest has all of {options.only} in its name: {list(CONTESTS)}"
    programs = ["--bin", "millstream", "--example", "decode_speed"]
    subprocess.run(["cargo", "build", "--release", "--workspace", *programs], check=True, cwd=ROOT)
    directory = options.data.absolute() / str(options.rows)
    generate(directory, options.rows, {CONTESTS[title][0] for title in titles})
    lines = [
        f"## Ingest, {options.rows:,} rows, shuffle {SHUFFLE:,}, batch {BATCH}, {options.runs} runs",
        "",
        f"{datetime.date.today()}; {machine()}; {versions()}.",
        "",
        f"Command: `python bench/ingest.py {' '.join(sys.argv[1:])}`. Files in the page cache; {SHARDS} of each kind.",
        "",
    ]
    for title in titles:
        lines += contest(title, options, directory)
    report = "\n".join(lines)
    print(report)
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(report)


if __name__ == "__main__":
    main()
