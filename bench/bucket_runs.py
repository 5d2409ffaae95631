#!/usr/bin/env python3
"""Runs in a bucket beside runs in a directory: the time of a checkpoint, and the time to resume after a death.

    cargo build --release --workspace --bins
    python bench/bucket_runs.py [--rounds 5] [--deaths 5] [--programs target/release] [--out bench/results/NAME.md]

The bucket is the test server of the repository (`millstream-test-storage`) on this host, with Amazon's interface. So the
figures have the cost of Millstream, not that of a network or a service, and the server takes the same CPUs.

* *Checkpoint*: `millstream checkpoint` of a job with two tables of 500,000 x 64 (512 MB of weights and optimizer state), from the
  request to the commit, while it trains. Directory and bucket alternate; the directory is on a memory file system.
* *Resume*: `millstream train` of the Census example is killed (SIGKILL) at a random moment after its first checkpoint, and
  `--resume` continues it. From its start until it trains: on the same host, where the earlier process is seen to be gone, and as on
  another host, in a namespace of process ids from which it is not seen (needs root), so that its lease has to expire. The last run goes on
  to its end, and its checkpoint must have the bits of an undisturbed run.
"""

import argparse
import json
import os
import pathlib
import random
import re
import shutil
import signal
import statistics
import subprocess
import sys
import time

from host_lab import PROGRAMS, ROOT, Storage, free_address, machine, room, today, wait

CENSUS = ROOT / "examples" / "census" / "job.toml"
BUCKET = "s3://models"
# Long enough to be killed again and again.
EPOCHS = 4000

LARGE = """name = "large"
[data]
train = ["{data}"]
batch_size = 512
epochs = 1000
[label]
column = "clicked"
[features]
a = {{ kind = "hashed", column = "c15", buckets = 500000 }}
b = {{ kind = "hashed", column = "c16", buckets = 500000 }}
[model]
kind = "wide_deep"
deep.features = ["a", "b"]
deep.embedding_dim = 64
deep.hidden = [16]
deep.optimizer = {{ kind = "adagrad", learning_rate = 0.01 }}
[training]
threads = 1
[checkpoint]
every_steps = 1000000000
keep = 1
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--deaths", type=int, default=5)
    parser.add_argument("--programs", type=pathlib.Path, default=PROGRAMS)
    parser.add_argument("--out", type=pathlib.Path)
    options = parser.parse_args()
    with room() as directory:
        case = Case(options.programs.resolve(), directory)
        try:
            parts = [heading(), checkpoints(case, options.rounds), resumes(case, options.deaths)]
        finally:
            case.end()
    text = "\n".join(parts)
    print(text)
    if options.out:
        options.out.write_text(text)


class Case:
    """A bucket, and what reaches it."""

    def __init__(self, programs: pathlib.Path, directory: pathlib.Path) -> None:
        self.programs, self.directory = programs, directory
        self.storage = Storage(programs, free_address())
        self.environment = self.storage.environment

    def keys(self, prefix: str) -> list[str]:
        return self.storage.keys("models", prefix)

    def get(self, key: str) -> bytes:
        return self.storage.get("models", key)

    def start(self, line: list, before: tuple = ()) -> subprocess.Popen:
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        return subprocess.Popen([*before, *map(str, line)], env=self.environment, start_new_session=True, **quiet)

    def run(self, line: list) -> str:
        ended = subprocess.run(list(map(str, line)), env=self.environment, capture_output=True, text=True, check=False)
        if ended.returncode:
            sys.exit(f"{line}: {ended.stderr}")
        return ended.stdout

    def end(self) -> None:
        self.storage.end()


def checkpoints(case: Case, rounds: int) -> str:
    millstream, here = case.programs / "millstream", case.directory
    data, job = here / "data.parquet", here / "large.toml"
    case.run([millstream, "generate", data, "--rows", 200_000])
    job.write_text(LARGE.format(data=data))
    control = [millstream, "--socket", here / "socket"]
    daemon = case.start([case.programs / "millstreamd", "--socket", here / "socket", "--state", here / "state"])
    places = {"directory": here / "runs", "bucket": f"{BUCKET}/runs"}
    seconds = {place: [] for place in places}
    try:
        wait("the daemon answers", lambda: subprocess.run([*control, "list"], capture_output=True).returncode == 0)
        for _ in range(rounds):
            for place, directory in places.items():
                submit = [*control, "submit", job, "--json", "--set", f"checkpoint.directory={directory}"]
                identity = json.loads(case.run(submit))["id"]
                show = lambda: json.loads(case.run([*control, "show", identity, "--json"]))
                wait("it trains", lambda: show()["progress"]["step"] > 0)
                for _ in range(3):
                    began = time.monotonic()
                    case.run([*control, "checkpoint", identity])
                    seconds[place].append(time.monotonic() - began)
                case.run([*control, "cancel", identity])
                if place == "directory":
                    shutil.rmtree(directory)
    finally:
        daemon.terminate()
        daemon.wait()
    lines = ["## Time of a checkpoint of 512 MB\n", "| place | checkpoints | seconds: minimum / median / maximum |", "|---|---:|---:|"]
    lines += [f"| {place} | {len(found)} | {spread(found, '.2f')} |" for place, found in seconds.items()]
    return "\n".join(lines) + "\n"


def resumes(case: Case, deaths: int) -> str:
    millstream = case.programs / "millstream"
    line = lambda place, epochs: [
        millstream, "train", CENSUS, "--set", f"checkpoint.directory={place}", "--set", f"data.epochs={epochs}",
        "--set", "checkpoint.every_steps=100", "--set", "training.threads=1",
    ]
    hosts = {"the same host": (), "another host": ("unshare", "--pid", "--fork", "--mount-proc")}
    seconds = {host: [] for host in hosts}
    for host, before in hosts.items():
        place = f"{BUCKET}/{host.split()[-2]}"
        process = case.start(line(place, EPOCHS), before)
        for _ in range(deaths):
            prefix = place.removeprefix(f"{BUCKET}/")
            wait("there is a checkpoint", lambda: any(key.endswith("manifest.json") for key in case.keys(prefix)))
            time.sleep(random.uniform(0, 1))
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            steps = committed(case, prefix)
            began = time.monotonic()
            process = case.start([*line(place, EPOCHS), "--resume"], before)
            wait("it trains", lambda: committed(case, prefix) > steps)
            seconds[host].append(time.monotonic() - began)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    # A short job, killed once, to its end.
    directory = case.directory / "undisturbed"
    wanted = json.loads(case.run([*line(directory, 16), "--json"]))["checkpoint"]
    process = case.start(line(f"{BUCKET}/short", 16))
    wait("there is a checkpoint", lambda: any(key.endswith("manifest.json") for key in case.keys("short")))
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    found = json.loads(case.run([*line(f"{BUCKET}/short", 16), "--json", "--resume"]))["checkpoint"]
    for part in ("model.safetensors", "optimizer.safetensors"):
        [key] = [key for key in case.keys(found.removeprefix(f"{BUCKET}/")) if key.endswith(part)]
        if case.get(key) != (pathlib.Path(wanted) / part).read_bytes():
            sys.exit(f"{part} differs from that of the undisturbed run")
    lines = ["## Time to resume, until the next checkpoint (100 steps)\n", "| on | deaths | seconds: minimum / median / maximum |", "|---|---:|---:|"]
    lines += [f"| {host} | {len(found)} | {spread(found, '.1f')} |" for host, found in seconds.items()]
    return "\n".join(lines) + "\n\nThe resumed job has the bits of the undisturbed one.\n"


def committed(case: Case, prefix: str) -> int:
    """The newest step with a checkpoint."""
    return max((int(step) for key in case.keys(prefix) for step in re.findall(r"step-(\d+)/manifest\.json", key)), default=0)


def spread(seconds: list[float], form: str) -> str:
    return " / ".join(format(found, form) for found in (min(seconds), statistics.median(seconds), max(seconds)))


def heading() -> str:
    return f"# Runs in a bucket, {today()}\n\n{machine()}. `python bench/bucket_runs.py`.\n"


if __name__ == "__main__":
    main()
