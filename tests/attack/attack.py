#!/usr/bin/env python3
"""Attacks a daemon with damaged files and with floods, and checks that neither it nor its jobs notice.

    tests/attack/attack.py [--files N] [--seconds S] [--only FLOOD ...] [--seed SEED] [--busy]

First, N damaged files (10000) are each inspected and trained on by a daemon. Nothing may crash, hang or exceed its memory,
the daemon must survive, and a job on intact files must have the same bits throughout. Then each flood of the control
socket, the metrics and the web page lasts S seconds (20) in total beside a running job, in several turns: 99 % of `list` must
take less than 100 ms, and training must keep 95 % of its speed; with --busy, on a machine with other work, both are only
printed. One of them is a user who may only look, which needs root.

Needs the built programs and pyarrow: run tests/run first, then use target/python/bin/python. A file that breaks something
is kept below target/attack. The last line is `N passed, N failed`.

What a flood costs is compared with a process that computes and leaves the daemon alone, since any other process slows
training down: cores share caches and execution units. Both take turns, and the median of the turns counts, since the speed of
a machine varies by more than what is measured.
"""

import argparse
import concurrent.futures
import hashlib
import itertools
import json
import pathlib
import random
import shutil
import statistics
import sys
import threading
import time

import files
import floods
from host import BUILT, ROOT, Host, run

BUDGET_MIB = 64
# What a daemon may use besides the budget of its only running job.
BESIDES_MIB = 512
# Address space of `inspect`: it may use a gigabyte to decode, and has stacks and arenas besides.
INSPECT_BYTES = 6 << 30
# Files between two runs of the job on intact files.
INTACT_EVERY = 250
MOST_LIST_SECONDS = 0.1
LEAST_SPEED = 0.95
TURNS = 5

TINY = (ROOT / "tests" / "tiny_job.toml").read_text()


class Score:
    """Counts what held and what did not."""

    def __init__(self):
        self.passed = self.failed = 0

    def add(self, name: str, defects: list[str]):
        self.passed += not defects
        self.failed += bool(defects)
        print(f"{name}: {'; '.join(defects) if defects else 'held'}", flush=True)


def attack_with_files(room: pathlib.Path, count: int, seed: int, score: Score):
    intact = room / "intact"
    intact.mkdir()
    seeds = files.seeds(intact)
    host = Host(room)
    wanted = bits(host, room, intact)
    defects: list[str] = []
    ends = {0: 0, 1: 0, 2: 0}
    started = time.monotonic()

    def one(number: int):
        draw = random.Random(f"{seed}-{number}")
        name = draw.choice(list(seeds))
        place = room / f"damaged-{threading.get_ident()}"
        place.mkdir(exist_ok=True)
        path = place / name
        path.write_bytes(files.mutate(draw, seeds[name], list(seeds.values())))
        job = place / "job.toml"
        job.write_text(files.job([path, intact / name], f"{BUDGET_MIB}MiB", draw.random() < 0.5))
        inspected = run(BUILT / "millstream", "inspect", path, limit_bytes=INSPECT_BYTES)
        trained = host.command("train", job)
        found = [f"{completed.command[1]} {completed.defect()}" for completed in (inspected, trained) if completed.defect()]
        if not host.is_alive():
            found.append("the daemon died")
        ends[trained.code] = ends.get(trained.code, 0) + 1
        if found:
            kept = ROOT / "target" / "attack" / f"{seed}-{number}-{name}"
            shutil.copy(path, kept)
            defects.append(f"{kept}: {'; '.join(found)}")
            print(defects[-1], flush=True)
        shutil.rmtree(place / "checkpoints", ignore_errors=True)

    for first in range(0, count, INTACT_EVERY):
        numbers = range(first, min(first + INTACT_EVERY, count))
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            list(pool.map(one, numbers))
        if not host.is_alive():
            host.start()
        if (found := bits(host, room, intact)) != wanted:
            defects.append(f"after {numbers.stop} files, the job on intact files has other bits")
        print(f"{numbers.stop} files, {time.monotonic() - started:.0f} s, the daemon's peak is {host.peak_bytes() >> 20} MiB", flush=True)
    peak = host.peak_bytes()
    if peak > (BUDGET_MIB + BESIDES_MIB) << 20:
        defects.append(f"the daemon used {peak >> 20} MiB, with a budget of {BUDGET_MIB} MiB")
    host.stop()
    score.add(f"{count} damaged files, jobs ended {ends}, the daemon's peak {peak >> 20} MiB", defects)


def bits(host: Host, room: pathlib.Path, intact: pathlib.Path) -> str:
    """The hash of the model that a job on intact files ends with."""
    job = room / "intact.toml"
    job.write_text(files.job([intact / "snappy.parquet", intact / "plain.parquet"], f"{BUDGET_MIB}MiB", False))
    checkpoint = pathlib.Path(host.json("train", job)["checkpoint"])
    digest = hashlib.sha256((checkpoint / "model.safetensors").read_bytes()).hexdigest()
    shutil.rmtree(checkpoint.parent)
    return digest


def attack_with_floods(room: pathlib.Path, seconds: float, only: list[str], busy: bool, score: Score):
    host = Host(room)
    data = room / "train-0.parquet"
    rows = files.pyarrow.concat_tables([files.table(seed) for seed in range(200)])
    files.pyarrow.parquet.write_table(rows.select(["clicked", "x", "color"]), data)
    shutil.copy(data, room / "eval.parquet")
    long = TINY.replace("epochs = 24", "epochs = 100000").replace("every_steps = 100", "every_steps = 10000")
    (room / "tiny.toml").write_text(long)
    job = host.json("submit", room / "tiny.toml")["id"]
    while rate(host, job, 0.5) == 0:
        time.sleep(0.1)
    host.forget_peak()
    for flood in floods.FLOODS:
        if only and flood.__name__ not in only:
            continue
        alone, beside = [measure_beside(floods.nothing, host, job, seconds / TURNS)], []
        for _ in range(TURNS):
            beside.append(measure_beside(flood, host, job, seconds / TURNS))
            alone.append(measure_beside(floods.nothing, host, job, seconds / TURNS))
        turns = zip(beside, itertools.pairwise(alone))
        speeds = sorted(now[1] / statistics.mean([before[1], after[1]]) for now, (before, after) in turns if before[1] + after[1])
        speeds = speeds or [0.0]
        speed = statistics.median(speeds)
        slowest = percentile_99([time for times, _ in beside for time in times])
        defects = []
        if not host.is_alive():
            defects.append("the daemon died")
            host.start()
        if speed == 0:
            defects.append("the job stopped")
        if not busy and slowest > MOST_LIST_SECONDS:
            defects.append("`list` is slow")
        if not busy and speed < LEAST_SPEED:
            defects.append("training is slow")
        peak = host.peak_bytes() >> 20
        if peak > 1024 + BESIDES_MIB:
            defects.append("the daemon used too much memory")
        usual = percentile_99([time for times, _ in alone for time in times])
        figures = f"p99 of list {1000 * slowest:.0f} ms (without {1000 * usual:.0f})"
        figures += f", training {speed:.3f} ({speeds[0]:.3f} to {speeds[-1]:.3f}), peak {peak} MiB"
        score.add(f"{flood.__name__}: {figures}", defects)
    host.stop()


def measure_beside(flood, host: Host, job: str, seconds: float) -> tuple[list[float], float]:
    process = floods.start(flood, str(host.socket), job)
    try:
        return measure(host, job, seconds)
    finally:
        process.kill()
        process.join()


def measure(host: Host, job: str, seconds: float) -> tuple[list[float], float]:
    """The times of `list`, in seconds, and the rows per second of the job."""
    times = []
    began, rows = time.monotonic(), examples(host, job)
    while time.monotonic() - began < seconds:
        start = time.monotonic()
        host.command("list")
        times.append(time.monotonic() - start)
        time.sleep(0.02)
    passed = time.monotonic() - began
    return times, (examples(host, job) - rows) / passed


def percentile_99(times: list[float]) -> float:
    return sorted(times)[max(0, len(times) * 99 // 100 - 1)] if len(times) > 99 else max(times)


def rate(host: Host, job: str, seconds: float) -> float:
    return measure(host, job, seconds)[1]


def examples(host: Host, job: str) -> int:
    """Rows that the job has trained on; 0 if it cannot be asked."""
    shown = host.command("show", job, "--json")
    return 0 if shown.code else int(json.loads(shown.out).get("progress", {}).get("examples", 0))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--only", nargs="*", default=[], choices=[flood.__name__ for flood in floods.FLOODS])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--busy", action="store_true")
    options = parser.parse_args()
    room = ROOT / "target" / "attack"
    shutil.rmtree(room, ignore_errors=True)
    score = Score()
    for name in ("files", "floods"):
        (room / name).mkdir(parents=True)
    if options.files:
        attack_with_files(room / "files", options.files, options.seed, score)
    if options.seconds:
        attack_with_floods(room / "floods", options.seconds, options.only, options.busy, score)
    print(f"\n{score.passed} passed, {score.failed} failed")
    return int(score.failed > 0)


if __name__ == "__main__":
    sys.exit(main())
