#!/usr/bin/env python3
"""Kills and stops random workers of a job at random moments, and compares its result with that of an undisturbed run.

    cargo build --release
    python bench/worker_faults.py [--kills 50] [--stops 20] [--workers 2 3 4] [--seed 1] [--out bench/results/NAME.md]

Needs UCX (Debian package libucx0). Each run trains the Census example (examples/census) with `workers.reproducible` = 4, or without
it on three workers, with a checkpoint every 100 steps. A fault is a SIGKILL, or a SIGSTOP that only `workers.timeout_seconds` = 2
ends, of a random worker. Runs with all numbers of workers alternate until there were as many faults as asked for. Each run must

* succeed, and train on each row once an epoch,
* have the bits of the undisturbed run in the model and the optimizer's state,
* leave no process,
* leave nothing of the dead workers behind: no memory file or socket in the daemon, no file in /dev/shm, no System V segment; nor
  more descriptors of a kind in the daemon than the first generation needed.

The report has the time from a fault until no worker of that generation exists, and until the next generation has restored its
checkpoint and is fed.
"""

import argparse
import collections
import datetime
import hashlib
import json
import os
import pathlib
import platform
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
PROGRAM = ROOT / "target" / "release" / "millstream"
JOB = ROOT / "examples" / "census" / "job.toml"
EPOCHS, CHECKPOINT_STEPS, TIMEOUT = 12, 100, 2
PATIENCE = 60
# Less than a step, to many steps.
PAUSES = (0.05, 1.5)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--stops", type=int, default=20)
    parser.add_argument("--workers", type=int, nargs="+", default=[2, 3, 4])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=pathlib.Path)
    options = parser.parse_args()

    draw = random.Random(options.seed)
    expected = {workers: run(workers, None)[0] for workers in options.workers}
    report = [heading(options)]
    for name, number, wanted in [("SIGKILL", signal.SIGKILL, options.kills), ("SIGSTOP", signal.SIGSTOP, options.stops)]:
        times, runs = [], 0
        while len(times) < wanted:
            workers = options.workers[runs % len(options.workers)]
            runs += 1
            result, found = run(workers, (draw, number, wanted - len(times)))
            if result != expected[workers]:
                sys.exit(f"{name}, {workers} workers: {result}, not {expected[workers]}")
            times += found
            print(f"{name}: {len(times)} of {wanted} after {runs} runs", file=sys.stderr)
        report.append(row(name, runs, times))
    text = "\n".join(report) + "\n"
    print(text)
    if options.out:
        options.out.write_text(text)


def run(workers: int, faults: tuple | None) -> tuple[dict, list]:
    """Trains a job; returns its result, and the two times of each fault."""
    with tempfile.TemporaryDirectory() as directory:
        # Three workers do not divide a power of two.
        parts = ["workers.reproducible=4"] if 4 % workers == 0 else []
        settings = [
            f"checkpoint.directory={directory}/checkpoints",
            f"checkpoint.every_steps={CHECKPOINT_STEPS}",
            f"data.epochs={EPOCHS}",
            f"workers.per_host={workers}",
            f"workers.timeout_seconds={TIMEOUT}",
            *parts,
        ]
        command = [PROGRAM, "train", JOB, "--json", *(word for setting in settings for word in ("--set", setting))]
        environment = {**os.environ, "MILLSTREAM_LOG": "info"}
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
        )
        lines = Lines(process.stderr)
        times = []
        if faults:
            draw, number, most = faults
            usual, committed, unsaved = {}, 0, 0
            while len(times) < most and (victims := wait_for_workers(process, workers)):
                until = time.monotonic() + draw.uniform(*PAUSES)
                while not times and time.monotonic() < until:
                    usual = most_of(usual, descriptors(process.pid))
                    time.sleep(0.01)
                time.sleep(max(0, until - time.monotonic()))
                # A third death without a new checkpoint would end the job.
                if unsaved == 2:
                    wait(lambda: lines.count(COMMITTED) > committed, process)
                fed, before = lines.count(FED), Possessions(victims)
                began = time.monotonic()
                if process.poll() is not None or not send(draw.choice(victims), number):
                    continue
                unsaved = unsaved + 1 if lines.count(COMMITTED) == committed else 1
                committed = lines.count(COMMITTED)
                gone = wait(lambda: not any(map(is_alive, victims)), process)
                again = wait(lambda: lines.count(FED) > fed, process)
                wait(lambda: not before.left(process.pid), process, lambda: f"left behind: {before.left(process.pid)}")
                wait(
                    lambda: not beyond(usual, descriptors(process.pid)),
                    process,
                    lambda: f"{descriptors(process.pid)}, at first {usual}",
                )
                if gone and (process.poll() is None or process.returncode == 0):
                    times.append((gone - began, again - began if again else None))
        output, _ = process.communicate(timeout=20 * PATIENCE)
        lines.join()
        if process.returncode:
            sys.exit(f"a run failed:\n{lines.tail()}")
        report = json.loads(output)
        checkpoint = pathlib.Path(report["checkpoint"])
        parts = [(checkpoint / part).read_bytes() for part in ("model.safetensors", "optimizer.safetensors")]
        result = {
            "examples": report["examples"],
            "steps": report["steps"],
            "digest": hashlib.sha256(b"".join(parts)).hexdigest()[:16],
        }
        return result, times


# A generation has restored its checkpoint, and its rings are about to be filled.
FED = re.compile(r"resumes from step|starts from scratch")
COMMITTED = re.compile(r"checkpoint at step")


class Lines(threading.Thread):
    """The lines that a program prints on standard error."""

    def __init__(self, stream) -> None:
        super().__init__(daemon=True)
        self.stream, self.lines = stream, []
        self.start()

    def run(self) -> None:
        for line in self.stream:
            self.lines.append(line)

    def count(self, pattern: re.Pattern) -> int:
        return sum(bool(pattern.search(line)) for line in self.lines)

    def tail(self) -> str:
        return "".join(self.lines[-20:])


def wait_for_workers(process: subprocess.Popen, count: int) -> list[int]:
    """The workers of a complete generation; none if the job has ended."""
    wait(lambda: len(children(process.pid)) == count, process)
    return children(process.pid) if process.poll() is None else []


def wait(is_so, process: subprocess.Popen, why=lambda: "a job hangs") -> float | None:
    """The moment from which it is so; nothing if the program has ended before. After too long, the program ends with the reason."""
    deadline = time.monotonic() + PATIENCE
    while not is_so():
        if process.poll() is not None:
            return time.monotonic() if is_so() else None
        if time.monotonic() > deadline:
            process.kill()
            sys.exit(why())
        time.sleep(0.001)
    return time.monotonic()


def children(parent: int) -> list[int]:
    text = pathlib.Path(f"/proc/{parent}/task")
    try:
        lists = [(thread / "children").read_text() for thread in text.iterdir()]
    except OSError:
        return []
    return [int(pid) for pids in lists for pid in pids.split() if is_alive(int(pid))]


def is_alive(pid: int) -> bool:
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


class Possessions:
    """What the workers of a generation hold that can outlive them."""

    def __init__(self, pids: list[int]) -> None:
        self.pids = set(pids)
        self.memory, self.sockets, self.shared = set(), set(), set()
        for pid in pids:
            for number, target in opened(pid):
                if target.startswith("/memfd:") and (file := inode(pid, number)):
                    self.memory.add(file)
                elif socket := re.fullmatch(r"socket:\[(\d+)\]", target):
                    self.sockets.add(socket.group(1))
            for line in read(f"/proc/{pid}/maps").splitlines():
                if "/memfd:" in line:
                    self.memory.add(line.split()[4])
                self.shared.update(re.findall(r"/dev/shm/[^ ]+", line))

    def left(self, daemon: int) -> list[str]:
        """What is left of it, once they have ended."""
        held = {inode(daemon, number): target for number, target in opened(daemon) if target.startswith("/memfd:")}
        mapped = {line.split()[4] for line in read(f"/proc/{daemon}/maps").splitlines() if "/memfd:" in line}
        sockets = {line.split()[6] for line in read("/proc/net/unix").splitlines()[1:]}
        segments = [line.split() for line in read("/proc/sysvipc/shm").splitlines()[1:]]
        return [
            *(f"memory file {held.get(file, file)}" for file in self.memory & ({*held} | mapped)),
            *(f"socket {number}" for number in self.sockets & sockets),
            *(path for path in self.shared if os.path.exists(path)),
            *(f"segment {fields[1]} of process {fields[4]}" for fields in segments if int(fields[4]) in self.pids),
        ]


def descriptors(pid: int) -> dict[str, int]:
    """The number of a process's descriptors, by kind. Files come and go as data is read."""
    kept = (target for _, target in opened(pid) if target.startswith("/memfd:") or not target.startswith("/"))
    return dict(collections.Counter(re.sub(r":\[\d+\]| \(deleted\)$", "", target) for target in kept))


def most_of(one: dict[str, int], other: dict[str, int]) -> dict[str, int]:
    return {kind: max(one.get(kind, 0), other.get(kind, 0)) for kind in one | other}


def beyond(usual: dict[str, int], now: dict[str, int]) -> dict[str, int]:
    return {kind: count for kind, count in now.items() if count > usual.get(kind, 0)}


def opened(pid: int) -> list[tuple[str, str]]:
    """The descriptors of a process, with what each refers to."""
    found = []
    try:
        for number in os.listdir(f"/proc/{pid}/fd"):
            found.append((number, os.readlink(f"/proc/{pid}/fd/{number}")))
    except OSError:
        # The process, or the descriptor, has just been closed.
        pass
    return found


def inode(pid: int, number: str) -> str:
    try:
        return str(os.stat(f"/proc/{pid}/fd/{number}").st_ino)
    except OSError:
        return ""


def read(path: str) -> str:
    try:
        return pathlib.Path(path).read_text()
    except OSError:
        return ""


def send(pid: int, number: int) -> bool:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


def heading(options: argparse.Namespace) -> str:
    information = pathlib.Path("/proc/cpuinfo").read_text()
    processor, family = (re.search(rf"{key}\s*: (.*)", information).group(1) for key in ("model name", "cpu family"))
    return (
        f"## Faults of workers, {datetime.date.today()}\n\n"
        f"{processor} (family {family}), {os.cpu_count()} CPUs, Linux {platform.release()}. `python bench/worker_faults.py --kills "
        f"{options.kills} --stops {options.stops} --seed {options.seed}`, workers {options.workers}. All runs ended with the rows "
        f"and the bits of the undisturbed ones, and nothing of a dead worker was left behind. Times in ms, median / maximum; a "
        f"stopped worker is found after {TIMEOUT} s.\n\n"
        "| fault | faults | runs | until all workers are gone | until the next generation is fed |\n|---|---:|---:|---:|---:|"
    )


def row(name: str, runs: int, times: list) -> str:
    def spread(values: list[float]) -> str:
        return f"{1e3 * statistics.median(values):,.0f} / {1e3 * max(values):,.0f}" if values else "-"

    gone, fed = [gone for gone, _ in times], [fed for _, fed in times if fed is not None]
    return f"| {name} | {len(times)} | {runs} | {spread(gone)} | {spread(fed)} |"


if __name__ == "__main__":
    main()
