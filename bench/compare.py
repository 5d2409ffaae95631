#!/usr/bin/env python3
"""Compares two commits: the bits they train, and their speed.

    python bench/compare.py bits BEFORE [AFTER]
    python bench/compare.py speed BEFORE [AFTER] [--rounds 9] [--only WORD ...]

BEFORE and AFTER (default: HEAD) are commits, or folders with the built programs (`target/release`). Commits are
checked out and built in `target/compare`. Needs only Python's standard library.

`bits` trains `examples/census` and `examples/clicks` (200,000 rows) with both, on the CPU with one and two threads, in
fp32 and bf16, and prints the SHA-256 of each final checkpoint: its tensors, step and data position. It fails if any
differ.

`speed` alternates between the two, so that a slow phase of the machine affects both. Steps: Wide & Deep and DLRM with
26 tables of 100,000 x 16, batches of 1024 and 4096, turns of one second. Ingest: the contests of `bench/ingest.py`
without rivals, one run per turn. It prints rates as min / median / max, and the median ratio of AFTER to BEFORE in the
same turn.
"""

import argparse
import hashlib
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile

import ingest

ROOT = pathlib.Path(__file__).resolve().parent.parent
PLACE = ROOT / "target" / "compare"
CLICKS = {"train": (200_000, 0), "eval": (20_000, 200_000)}
JOBS = ["census", "clicks"]
THREADS = [1, 2]
PRECISIONS = ["fp32", "bf16"]
MODELS = ["wide_deep", "dlrm"]
BATCHES = [1024, 4096]
SIDES = ["before", "after"]


def built(name: str) -> pathlib.Path:
    """The folder of a commit's programs. Builds them unless `name` is a folder that contains them."""
    folder = pathlib.Path(name)
    if (folder / "millstream").exists():
        return folder.resolve()
    commit = output("git", "rev-parse", "--short=12", f"{name}^{{commit}}").strip()
    tree = PLACE / commit
    if not tree.exists():
        run("git", "worktree", "add", "--detach", str(tree), commit)
    target = tree / "target"
    for selection in (["--workspace", "--bins"], ["-p", "millstream-trainer", "--example", "step_speed"]):
        run("cargo", "build", "--release", "--locked", "--target-dir", str(target), *selection, cwd=tree)
    return target / "release"


def run(*command: str, cwd: pathlib.Path = ROOT) -> None:
    subprocess.run(command, check=True, cwd=cwd, stdout=sys.stderr)


def output(*command: str | pathlib.Path, cwd: pathlib.Path = ROOT) -> str:
    return subprocess.run(command, check=True, cwd=cwd, stdout=subprocess.PIPE, text=True).stdout


def bits(programs: dict[str, pathlib.Path], _: argparse.Namespace) -> int:
    """Trains each job with both commits; returns the number of differing checkpoints."""
    print(f"| job | threads | precision | {' | '.join(SIDES)} | |\n|---|---|---|---|---|---|")
    differing = 0
    with tempfile.TemporaryDirectory() as room:
        examples = pathlib.Path(room) / "examples"
        shutil.copytree(ROOT / "examples", examples, ignore=shutil.ignore_patterns("checkpoints"))
        data = examples / "clicks" / "data"
        shutil.rmtree(data, ignore_errors=True)
        data.mkdir()
        for name, (rows, first) in CLICKS.items():
            arguments = ["--rows", str(rows), "--first-row", str(first), "--shards", "4", str(data / f"{name}.tfrecord")]
            output(programs["before"] / "millstream", "generate", *arguments)
        for job in JOBS:
            for threads in THREADS:
                for precision in PRECISIONS:
                    found = [final(programs[side], examples / job, threads, precision) for side in SIDES]
                    differing += found[0] != found[1]
                    verdict = "same" if found[0] == found[1] else "DIFFERENT"
                    hashes = " | ".join(f"`{value[:16]}`" for value in found)
                    print(f"| {job} | {threads} | {precision} | {hashes} | {verdict} |", flush=True)
    print(f"\n{differing} of {len(JOBS) * len(THREADS) * len(PRECISIONS)} checkpoints differ.")
    return differing


def final(programs: pathlib.Path, place: pathlib.Path, threads: int, precision: str) -> str:
    """The hash of the last checkpoint of a training run: tensors, step and data position."""
    settings = [f"training.threads={threads}", f"training.precision={precision}"]
    flags = [word for setting in settings for word in ("--set", setting)]
    document = json.loads(output(programs / "millstream", "train", str(place / "job.toml"), "--json", *flags))
    checkpoint = pathlib.Path(document["checkpoint"])
    snapshot = json.loads((checkpoint / "manifest.json").read_text())["snapshot"]
    digest = hashlib.sha256(json.dumps([snapshot["step"], snapshot["position"]]).encode())
    tensors = sorted(checkpoint.glob("*.safetensors"))
    assert tensors, f"{checkpoint} holds no tensors"
    for path in tensors:
        digest.update(path.name.encode() + path.read_bytes())
    shutil.rmtree(checkpoint.parent)
    return digest.hexdigest()


class Stepper:
    """A `step_speed` process that runs one turn per call."""

    def __init__(self, programs: pathlib.Path, model: str, batch: int):
        options = ["--model", model, "--batch", str(batch), "--seconds", "1", "--threads", str(os.cpu_count())]
        command = [programs / "examples" / "step_speed", *options, "--json", "--wait"]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self.process.stdout.readline()

    def turn(self) -> float:
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())["rate"]


def steps(programs: dict[str, pathlib.Path], model: str, batch: int, rounds: int) -> dict[str, list[float]]:
    steppers = {side: Stepper(programs[side], model, batch) for side in SIDES}
    try:
        return turns(rounds, lambda side: steppers[side].turn())
    finally:
        for stepper in steppers.values():
            stepper.process.kill()
            stepper.process.wait()


def ingests(programs: dict[str, pathlib.Path], title: str, rows: int, rounds: int) -> dict[str, list[float]]:
    ingest.MILLSTREAM = programs["before"] / "millstream"
    name, work, _ = ingest.CONTESTS[title]
    directory = ROOT / "target" / "bench" / "ingest" / str(rows)
    ingest.generate(directory, rows, {name})
    paths = ingest.files_of(directory, name)
    ingest.read_once(paths)
    job = directory / f"{name.split('.')[0]}-{work}.toml"
    job.write_text(ingest.job_text(f"{paths[0].parent}/*{name[name.index('.'):]}", work))

    def turn(side: str) -> float:
        ingest.MILLSTREAM = programs[side] / "millstream"
        return ingest.ours(job, rows)["rate"]

    return turns(rounds, turn)


def turns(rounds: int, turn) -> dict[str, list[float]]:
    """Rates of both sides; the side that goes first alternates."""
    rates: dict[str, list[float]] = {side: [] for side in SIDES}
    for number in range(rounds):
        for side in SIDES if number % 2 == 0 else reversed(SIDES):
            rates[side].append(turn(side))
    return rates


def speed(programs: dict[str, pathlib.Path], options: argparse.Namespace) -> int:
    print(f"{ingest.machine()}; {options.rounds} turns each, in alternation.\n")
    print(f"| | {' | '.join(SIDES)} | after / before |\n|---|---|---|---|")
    contests = {f"step, {model}, batch {batch}": lambda m=model, b=batch: steps(programs, m, b, options.rounds) for model in MODELS for batch in BATCHES}
    contests |= {f"ingest, {title}": lambda t=title: ingests(programs, t, options.rows, options.rounds) for title in ingest.CONTESTS}
    chosen = {title: measure for title, measure in contests.items() if all(word in title for word in options.only)}
    assert chosen, f"no contest matches {options.only}; contests are {list(contests)}"
    for title, measure in chosen.items():
        rates = measure()
        ratio = statistics.median(after / before for before, after in zip(rates["before"], rates["after"], strict=True))
        cells = [f"{min(found):,.0f} / {statistics.median(found):,.0f} / {max(found):,.0f}" for found in rates.values()]
        print(f"| {title} | {' | '.join(cells)} | {ratio:.3f} |", flush=True)
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["bits", "speed"])
    parser.add_argument("before", help="a commit, or a folder of built programs")
    parser.add_argument("after", nargs="?", default="HEAD")
    parser.add_argument("--rounds", type=int, default=9, help="turns per side")
    parser.add_argument("--rows", type=int, default=500_000, help="rows of the ingest files")
    parser.add_argument("--only", nargs="*", default=[], help="run only contests whose names contain all these words")
    options = parser.parse_args()
    programs = {"before": built(options.before), "after": built(options.after)}
    return {"bits": bits, "speed": speed}[options.what](programs, options)


if __name__ == "__main__":
    sys.exit(main())
