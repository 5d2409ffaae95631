#!/usr/bin/env python3
"""Uses one daemon for a long time, while workers are killed, its disk is full and its storage fails, and checks for leaks.

    tests/attack/soak.py [--minutes M] [--seed SEED] [--output DIRECTORY]

For M minutes (30), jobs over local and stored files come and go: they are submitted, paused, resumed, cancelled, removed,
scored and watched. Workers are killed, the store pauses or restarts, and the disk of the checkpoints is filled. Every
three minutes all jobs are cancelled, and what the idle daemon holds is compared with earlier: memory, descriptors, memory
files, threads and processes. Whatever happened to it, a job that succeeds must have the bits of an undisturbed one.

Needs the built programs, and namespaces for the full disk. Writes soak.csv and soak.svg to DIRECTORY (target/soak). The
last line is `N passed, N failed`.
"""

import argparse
import collections
import hashlib
import json
import os
import pathlib
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request

from curves import Samples
from host import BUILT, ROOT, Host, run

DISK_BYTES = 48 << 20
MOST_JOBS = 6
IDLE_EVERY_SECONDS = 180
SAMPLE_EVERY_SECONDS = 2
# What an idle daemon may hold more than at its second idle moment, when caches and pools are full.
MOST_MORE = {"anonymous memory, MiB": 24, "shared memory, MiB": 1, "descriptors": 2, "sockets": 2, "threads": 4}
NONE_LEFT = ["memory files", "workers"]
OUTAGE_SECONDS = (1, 12)
# Three killed workers in a row, and a disk that is full before a run has begun.
ACCEPTED_FAILURES = ("attempts without a new checkpoint or image", "No space left on device")
# An outage, a full disk and several killed workers may coincide.
MOST_IDLE_WAIT_SECONDS = 120

JOB = """
name = "{name}"
seed = 5

[data]
train = ["{data}/train-*.parquet"]
eval = ["{data}/eval.parquet"]
batch_size = 128
epochs = {epochs}
shuffle_rows = 8192
lanes = 2
memory_budget = "64MiB"

[label]
column = "clicked"

[features]
i1 = {{ kind = "numeric", normalize = "log1p_zscore", missing = "mean" }}
c1 = {{ kind = "hashed", buckets = 500 }}
c2 = {{ kind = "vocabulary", max_terms = 200 }}

[model]
kind = "wide_deep"
wide.features = ["c1", "c2"]
deep.features = ["i1", "c1", "c2"]
deep.embedding_dim = 4
deep.hidden = [16, 8]

[training]
threads = 1

[checkpoint]
directory = "{checkpoints}"
every_steps = {every}
keep = 2

[storage.gs]
endpoint = "{endpoint}"
anonymous = true
"""


class Store:
    """An object store that can be paused and restarted."""

    def __init__(self, objects: pathlib.Path):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.objects = objects
        self.start()

    def start(self):
        program = BUILT / "millstream-test-storage"
        self.process = subprocess.Popen([program, f"127.0.0.1:{self.port}", "0", self.objects])

    def stop(self):
        self.process.kill()
        self.process.wait()


class Soak:
    """The daemon, its jobs and the faults that are in effect."""

    def __init__(self, room: pathlib.Path, disk: pathlib.Path, has_disk: bool, seed: int):
        self.room, self.disk, self.has_disk = room, disk, has_disk
        self.draw = random.Random(seed)
        self.samples = Samples()
        self.did: collections.Counter[str] = collections.Counter()
        self.defects: list[str] = []
        self.jobs: dict[str, str] = {}  # those that have not ended by our knowledge, and their kinds
        self.faults: dict[str, float] = {}  # by name, when they end
        self.wanted: dict[str, str] = {}  # the hash of a kind's model
        objects = room / "data"
        objects.mkdir()
        for name, first, rows in (("train-0", 0, 6000), ("train-1", 6000, 6000), ("eval", 12000, 2000)):
            made = run(BUILT / "millstream", "generate", objects / f"{name}.parquet", "--rows", str(rows), "--first-row", str(first))
            assert made.code == 0, made.error
        self.store = Store(objects)
        self.host = Host(room)
        self.watchers: list[subprocess.Popen] = []
        for kind in ("local", "stored"):
            (room / f"{kind}.toml").write_text(self.job(kind))

    def job(self, kind: str) -> str:
        data = "gs://test" if kind == "stored" else self.room / "data"
        return JOB.format(
            name=kind, data=data, epochs=12, every=100, checkpoints=self.disk / kind, endpoint=f"http://127.0.0.1:{self.store.port}"
        )

    def learn_bits(self):
        """What each kind of job ends with when nothing disturbs it."""
        for kind in ("local", "stored"):
            ended = self.host.json("train", self.room / f"{kind}.toml")
            self.wanted[kind] = bits(pathlib.Path(ended["checkpoint"]))

    # What users do.

    def submit(self):
        if len(self.jobs) < MOST_JOBS:
            kind = self.draw.choice(["local", "stored"])
            epochs = "12" if self.draw.random() < 0.7 else "100000"
            answer = self.command("submit", self.room / f"{kind}.toml", "--set", f"data.epochs={epochs}")
            if answer.code == 0:
                self.jobs[answer.out.strip()] = kind if epochs == "12" else "endless"

    def refuse(self):
        answer = self.command("submit", self.room / "local.toml", "--set", "data.batch_size=0")
        if answer.code != 2:
            self.defects.append(f"an invalid job ended with {answer.code}")

    def change(self):
        # These wait for a checkpoint, and meanwhile no fault would end.
        if self.jobs and not self.faults:
            job = self.draw.choice(list(self.jobs))
            self.command(self.draw.choice(["pause", "cancel", "checkpoint", "resume"]), job, seconds=MOST_IDLE_WAIT_SECONDS)

    def look(self):
        job = self.draw.choice([*self.jobs, "none-such"])
        words = [["list"], ["show", job], ["history", job], ["logs", job], ["explain", job], ["top", "--once"], ["metrics"]]
        self.command(*self.draw.choice(words))

    def profile(self):
        if self.jobs:
            out = self.room / "profile.json"
            self.command("profile", self.draw.choice(list(self.jobs)), "--steps", "20", "--output", out)

    def watch(self):
        """Follows a job, and is killed before it ends."""
        if self.jobs:
            words = [BUILT / "millstream", "logs", "-f", self.draw.choice(list(self.jobs)), "--socket", self.host.socket]
            self.watchers.append(subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
        while len(self.watchers) > 3:
            watcher = self.watchers.pop(0)
            watcher.kill()
            watcher.wait()

    def open_page(self):
        opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
        url = self.host.json("web")["url"]
        opener.open(url, timeout=30).read()
        opener.open(url.split("?")[0] + "api/overview", timeout=30).read()

    def score(self):
        listed = self.host.json("list", "--state", "succeeded", "-n", "5")["jobs"]
        if listed:
            eval_data = self.room / "data" / "eval.parquet"
            job = self.draw.choice(listed)["id"]
            self.command("eval", job, eval_data)
            self.command("predict", job, eval_data, "--output", self.room / "scores.csv")

    def reload(self):
        self.host.process.send_signal(signal.SIGHUP)

    # What goes wrong.

    def kill_worker(self):
        task = pathlib.Path(f"/proc/{self.host.process.pid}/task")
        children = [child for thread in task.iterdir() for child in (thread / "children").read_text().split()]
        if children:
            os.kill(int(self.draw.choice(children)), signal.SIGKILL)

    def begin_outage(self):
        if "outage" not in self.faults:
            self.faults["outage"] = time.monotonic() + self.draw.uniform(*OUTAGE_SECONDS)
            if self.draw.random() < 0.5:
                self.store.process.send_signal(signal.SIGSTOP)
            else:
                self.store.stop()

    def fill_disk(self):
        if self.has_disk and "full disk" not in self.faults:
            self.faults["full disk"] = time.monotonic() + self.draw.uniform(*OUTAGE_SECONDS)
            with (self.disk / "filler").open("wb", buffering=0) as filler:
                try:
                    while filler.write(bytes(1 << 20)):
                        pass
                except OSError:
                    pass

    def end_faults(self, all_of_them: bool = False):
        for fault in [fault for fault, end in self.faults.items() if all_of_them or end <= time.monotonic()]:
            del self.faults[fault]
            if fault == "full disk":
                (self.disk / "filler").unlink()
            elif self.store.process.poll() is None:
                self.store.process.send_signal(signal.SIGCONT)
            else:
                self.store.start()

    # What must hold.

    def command(self, *words, **options):
        completed = self.host.command(*words, **options)
        if defect := completed.defect():
            self.defects.append(f"{' '.join(map(str, words))}: {defect}")
        return completed

    def settle(self):
        """Checks the jobs that have ended, and removes them."""
        for job, kind in list(self.jobs.items()):
            shown = self.command("show", job, "--json")
            if shown.code != 0:
                continue
            record = json.loads(shown.out)
            state = record["state"]
            if state in ("succeeded", "failed", "cancelled"):
                self.did[f"{kind} {state}"] += 1
                del self.jobs[job]
                if state == "succeeded" and bits(pathlib.Path(record["checkpoint"])) != self.wanted[kind]:
                    self.defects.append(f"{job} has other bits than an undisturbed job")
                if state == "failed" and not any(reason in record["reason"] for reason in ACCEPTED_FAILURES):
                    self.defects.append(f"{job} failed: {record['reason']}")
                if state != "succeeded" or self.draw.random() < 0.8:
                    self.command("remove", job)
                    shutil.rmtree(record["directory"], ignore_errors=True)

    def rest(self):
        """Ends all faults and jobs, and samples the idle daemon."""
        self.end_faults(all_of_them=True)
        for job in list(self.jobs):
            self.command("cancel", job, seconds=MOST_IDLE_WAIT_SECONDS)
        while self.watchers:
            watcher = self.watchers.pop()
            watcher.kill()
            watcher.wait()
        deadline = time.monotonic() + MOST_IDLE_WAIT_SECONDS
        while self.host.json("list", "--state", "running", "--state", "queued", "--state", "preparing")["jobs"]:
            if time.monotonic() > deadline:
                self.defects.append("jobs do not end")
                break
            time.sleep(0.2)
        self.settle()
        for job in list(self.jobs):
            self.defects.append(f"{job} has not ended")
            del self.jobs[job]
        # Threads and connections of the last requests end.
        time.sleep(3)
        self.samples.take(self.host.process.pid, idle=True)

    def run(self, seconds: float):
        doings = [
            (self.submit, 10), (self.refuse, 1), (self.change, 4), (self.look, 6), (self.profile, 1), (self.watch, 2), (self.open_page, 1),
            (self.score, 1), (self.reload, 1), (self.kill_worker, 2), (self.begin_outage, 1), (self.fill_disk, 1),
        ]
        self.learn_bits()
        self.rest()
        began = sampled = rested = time.monotonic()
        while (now := time.monotonic()) - began < seconds and self.host.is_alive():
            doing = self.draw.choices([doing for doing, _ in doings], [weight for _, weight in doings])[0]
            self.did[doing.__name__] += 1
            doing()
            self.end_faults()
            self.settle()
            if now - sampled >= SAMPLE_EVERY_SECONDS:
                self.samples.take(self.host.process.pid)
                sampled = now
            if now - rested >= IDLE_EVERY_SECONDS:
                self.rest()
                rested = time.monotonic()
                print(f"{(rested - began) / 60:.0f} min: {self.samples.rows[-1][2]}", flush=True)
            time.sleep(self.draw.uniform(0.1, 0.8))

    def check(self) -> list[tuple[str, list[str]]]:
        """Each check with its defects."""
        if not self.host.is_alive():
            return [("the daemon lives", [f"it ended with {self.host.process.returncode}"])]
        self.rest()
        checks = [("jobs end as undisturbed ones, and commands answer", self.defects)]
        for name in self.samples.names():
            values = self.samples.idle(name)
            first, last = values[min(1, len(values) - 1)], values[-1]
            allowed = 0 if name in NONE_LEFT else first + MOST_MORE[name]
            grown = [f"{last:g} idle at the end, {first:g} at the second idle moment"] if last > allowed else []
            checks.append((f"{name}: {first:g} idle at first, {last:g} at the end", grown))
        log = self.host.log.read_text(errors="replace")
        checks.append(("the daemon's log has no panic", ["it has"] if "panicked at" in log else []))
        self.host.stop()
        left = [path.name for path in pathlib.Path("/dev/shm").iterdir() if "millstream" in path.name]
        checks.append(("nothing is left behind", left))
        return checks


def bits(checkpoint: pathlib.Path) -> str:
    """The hash of the parameters of a checkpoint."""
    return hashlib.sha256((checkpoint / "model.safetensors").read_bytes()).hexdigest()


def with_small_disk():
    """Runs this program again where it may mount a file system, if that is possible here."""
    namespace = ["unshare", "--map-root-user", "--mount"]
    if "MILLSTREAM_SOAK" not in os.environ and subprocess.run([*namespace, "true"], check=False).returncode == 0:
        os.environ["MILLSTREAM_SOAK"] = "namespace"
        os.execvp(namespace[0], [*namespace, sys.executable, *sys.argv])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--output", type=pathlib.Path, default=ROOT / "target" / "soak")
    arguments = parser.parse_args()
    with_small_disk()
    arguments.output.mkdir(parents=True, exist_ok=True)
    room = pathlib.Path(tempfile.mkdtemp(prefix="room-", dir=arguments.output)).resolve()
    disk = room / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", disk]
    has_disk = os.environ.get("MILLSTREAM_SOAK") == "namespace" and subprocess.run(mount, check=False).returncode == 0
    if not has_disk:
        print("the disk is never full: this user may not mount a file system", flush=True)
    soak = Soak(room, disk, has_disk, arguments.seed)
    failed = 0
    checks = []
    try:
        soak.run(arguments.minutes * 60)
        checks = soak.check()
    finally:
        soak.store.stop()
        if soak.samples.rows:
            soak.samples.write(arguments.output)
    print(f"did: {dict(soak.did)}")
    for name, defects in checks:
        failed += bool(defects)
        print(f"{name}: {'; '.join(defects[:5]) if defects else 'held'}")
    if failed == 0:
        shutil.rmtree(room, ignore_errors=True)
    print(f"{len(checks) - failed} passed, {failed} failed")
    return failed > 0 or not checks


if __name__ == "__main__":
    sys.exit(main())
