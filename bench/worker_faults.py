#!/usr/bin/env python3
"""Kills and stops random workers of a job at random moments, and compares its result with that of an undisturbed run.

    cargo build --release
    python bench/worker_faults.py [--kills 50] [--stops 20] [--workers 2 3 4] [--seed 1] [--out bench/results/NAME.md]
        [--device cpu] [--programs target/release] [--epochs 12] [--timeout 2] [--json]

Needs UCX (Debian package libucx0). Each run trains the Census example (examples/census) in a daemon, with a checkpoint every 100
steps. On the CPU `workers.reproducible` is 4, except with three workers. A fault is a SIGKILL, or a SIGSTOP that only
`workers.timeout_seconds` = `--timeout` ends, of a random worker. Runs with all numbers of workers alternate until there were as many
faults as asked for. Each run must

* succeed, and train on each row once an epoch,
* have the bits of the undisturbed run in the model and the optimizer's state,
* leave no process,
* leave nothing of the dead workers behind: no memory file or socket in the daemon, no file in /dev/shm, no System V segment; nor
  more descriptors of a kind in the daemon than the first generation needed.

The report has the time from a fault until no worker of that generation exists, until the next generation has restored its
checkpoint and is fed, and until the daemon reports its first steps, which it does every 100 ms. `--json` prints all times instead.

`--device cuda` gives each worker a GPU, and NCCL sums their gradients. It does not promise the order of sums, so more than two workers
need not repeat bits. Their start takes longer than most runs of the CPU, so faults fall on workers that have begun to step.
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
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from typing import NamedTuple, Self

ROOT = pathlib.Path(__file__).resolve().parent.parent
JOB = ROOT / "examples" / "census" / "job.toml"
CHECKPOINT_STEPS = 100
PATIENCE = 60
# Runs for each fault. Some end before one.
MOST_RUNS = 10
# Less than a step, to many steps.
PAUSES = (0.05, 1.5)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--stops", type=int, default=20)
    parser.add_argument("--workers", type=int, nargs="+", default=[2, 3, 4])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--programs", type=pathlib.Path, default=ROOT / "target" / "release")
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--timeout", type=int, default=2)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--out", type=pathlib.Path)
    options = parser.parse_args()

    draw = random.Random(options.seed)
    expected = {workers: run(options, workers, None)[0] for workers in options.workers}
    faults = []
    for name, number, wanted in [("SIGKILL", signal.SIGKILL, options.kills), ("SIGSTOP", signal.SIGSTOP, options.stops)]:
        times, runs = [], 0
        while len(times) < wanted:
            workers = options.workers[runs % len(options.workers)]
            runs += 1
            if runs > MOST_RUNS * wanted:
                sys.exit(f"{name}: only {len(times)} faults in {runs - 1} runs; a run is too short: use more --epochs")
            result, found = run(options, workers, (draw, number, wanted - len(times)))
            if result != expected[workers]:
                sys.exit(f"{name}, {workers} workers: {result}, not {expected[workers]}")
            times += found
            print(f"{name}: {len(times)} of {wanted} after {runs} runs", file=sys.stderr)
        faults.append((name, runs, times))
    if options.json:
        for name, runs, times in faults:
            print(json.dumps({"fault": name, "workers": options.workers, "runs": runs, "seconds": [time._asdict() for time in times]}))
        return
    text = "\n".join([heading(options), *(row(*found) for found in faults)]) + "\n"
    print(text)
    if options.out:
        options.out.write_text(text)


class Times(NamedTuple):
    """Seconds from a fault. No step follows if the checkpoint was the last one."""

    gone: float
    fed: float
    stepped: float | None


def run(options: argparse.Namespace, workers: int, faults: tuple | None) -> tuple[dict, list[Times]]:
    """Trains a job; returns its result, and the times of each fault."""
    with tempfile.TemporaryDirectory() as directory, Job(options, workers, pathlib.Path(directory)) as job:
        times = inject(options, job, workers, *faults) if faults else []
        report = job.report()
        checkpoint = pathlib.Path(report["checkpoint"])
        result = {"examples": report["examples"], "steps": report["steps"]}
        if options.device == "cpu" or workers <= 2:
            parts = [(checkpoint / part).read_bytes() for part in ("model.safetensors", "optimizer.safetensors")]
            result["digest"] = hashlib.sha256(b"".join(parts)).hexdigest()[:16]
        return result, times


def inject(options: argparse.Namespace, job: "Job", workers: int, draw: random.Random, number: int, most: int) -> list[Times]:
    """Sends the signal to random workers of a job until it ends, or has had the most faults."""
    times, usual, committed, unsaved = [], {}, 0, 0
    while len(times) < most and (victims := job.wait_for_workers(workers)):
        if options.device == "cuda" and not job.wait_for_step():
            break
        until = time.monotonic() + draw.uniform(*PAUSES)
        while not times and time.monotonic() < until:
            usual = most_of(usual, descriptors(job.daemon.pid))
            time.sleep(0.01)
        time.sleep(max(0, until - time.monotonic()))
        # A third death without a new checkpoint would end the job.
        if unsaved == 2:
            job.wait(lambda: job.lines.count(COMMITTED) > committed)
        fed, before = job.lines.count(FED), Possessions(victims)
        began = time.monotonic()
        if job.has_ended() or not send(draw.choice(victims), number):
            continue
        unsaved = unsaved + 1 if job.lines.count(COMMITTED) == committed else 1
        committed = job.lines.count(COMMITTED)
        gone = job.wait(lambda: not any(map(is_alive, victims)))
        again = job.wait(lambda: job.lines.count(FED) > fed)
        stepped = job.wait_for_step() if again else None
        job.wait(lambda: not before.left(job.daemon.pid), lambda: f"left behind: {before.left(job.daemon.pid)}")
        job.wait(lambda: not beyond(usual, descriptors(job.daemon.pid)), lambda: f"{descriptors(job.daemon.pid)}, at first {usual}")
        # Without a next generation the fault came too late: the job had ended.
        if again:
            times.append(Times(gone - began, again - began, stepped and stepped - began))
    return times


class Job:
    """A job in a separate daemon, and the client that waits for it."""

    def __init__(self, options: argparse.Namespace, workers: int, directory: pathlib.Path) -> None:
        # Three workers do not divide a power of two, and with `reproducible` NCCL would have nothing to sum.
        parts = ["workers.reproducible=4"] if options.device == "cpu" and 4 % workers == 0 else []
        settings = [
            f"checkpoint.directory={directory}/checkpoints",
            f"checkpoint.every_steps={CHECKPOINT_STEPS}",
            f"data.epochs={options.epochs}",
            f"training.device={options.device}",
            f"workers.per_host={workers}",
            f"workers.timeout_seconds={options.timeout}",
            *parts,
        ]
        socket_path, self.metrics = directory / "socket", f"127.0.0.1:{free_port()}"
        words = ["--socket", socket_path, "--state", directory / "state", "--metrics", self.metrics]
        environment = {**os.environ, "MILLSTREAM_LOG": "info"}
        self.daemon = subprocess.Popen(
            [options.programs / "millstreamd", *words], stderr=subprocess.PIPE, text=True, env=environment
        )
        self.lines = Lines(self.daemon.stderr)
        # Until there is a client, an end of the daemon is that of the job.
        self.client = self.daemon
        self.wait(socket_path.exists)
        command = [options.programs / "millstream", "train", JOB, "--daemon", "--socket", socket_path, "--json"]
        command += [word for setting in settings for word in ("--set", setting)]
        self.client = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_) -> None:
        # The kernel ends the workers of a daemon that is killed.
        for process in (self.client, self.daemon):
            process.kill()
            process.wait()

    def has_ended(self) -> bool:
        return self.client.poll() is not None

    def report(self) -> dict:
        """Waits for the end of the job, which leaves no worker."""
        output, _ = self.client.communicate(timeout=20 * PATIENCE)
        if self.client.returncode:
            sys.exit(f"a run failed:\n{self.lines.tail()}")
        self.wait(lambda: not children(self.daemon.pid), lambda: f"workers left: {children(self.daemon.pid)}")
        return json.loads(output)

    def wait(self, is_so, why=lambda: "a job hangs") -> float | None:
        """The moment from which it is so; nothing if the job has ended before. After too long, the program ends with the reason."""
        deadline = time.monotonic() + PATIENCE
        while not is_so():
            if self.has_ended():
                return time.monotonic() if is_so() else None
            if time.monotonic() > deadline:
                sys.exit(f"{why()}\n{self.lines.tail()}")
            time.sleep(0.001)
        return time.monotonic()

    def wait_for_workers(self, count: int) -> list[int]:
        """The workers of a complete generation; none if the job has ended."""
        self.wait(lambda: len(children(self.daemon.pid)) == count)
        return [] if self.has_ended() else children(self.daemon.pid)

    def wait_for_step(self) -> float | None:
        """The moment when the daemon reports other steps than now; nothing if the job has ended before."""
        now = self.step()
        return self.wait(lambda: self.step() != now)

    def step(self) -> str | None:
        """The step of the job in the daemon's metrics, if it has one."""
        try:
            with urllib.request.urlopen(f"http://{self.metrics}/metrics", timeout=PATIENCE) as answer:
                found = re.search(r"^millstream_job_step\{.*\} (.*)$", answer.read().decode(), re.MULTILINE)
        except urllib.error.URLError:
            return None
        return found and found.group(1)


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


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
                elif found := re.fullmatch(r"socket:\[(\d+)\]", target):
                    self.sockets.add(found.group(1))
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
    bits = "the bits" if options.device == "cpu" else "(by two workers) the bits"
    return (
        f"## Faults of workers, {datetime.date.today()}\n\n"
        f"{processor} (family {family}), {os.cpu_count()} CPUs, Linux {platform.release()}. `python bench/worker_faults.py --kills "
        f"{options.kills} --stops {options.stops} --seed {options.seed} --device {options.device}`, workers {options.workers}. All runs ended with the rows "
        f"and {bits} of the undisturbed ones, and nothing of a dead worker was left behind. Times in ms, median / maximum; a "
        f"stopped worker is found after {options.timeout} s.\n\n"
        "| fault | faults | runs | until all workers are gone | until the next generation is fed | until its steps are reported |\n"
        "|---|---:|---:|---:|---:|---:|"
    )


def row(name: str, runs: int, times: list[Times]) -> str:
    def spread(values: list[float | None]) -> str:
        known = [value for value in values if value is not None]
        return f"{1e3 * statistics.median(known):,.0f} / {1e3 * max(known):,.0f}" if known else "-"

    return f"| {name} | {len(times)} | {runs} | {' | '.join(spread([*values]) for values in zip(*times)) or '- | - | -'} |"


if __name__ == "__main__":
    main()
