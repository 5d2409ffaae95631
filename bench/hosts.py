#!/usr/bin/env python3
"""Faults of hosts that train one model together: the time until they train again, and whether each row counts once.

    cargo build --release --workspace --bins
    sudo python3 bench/hosts.py [--faults 20] [--hosts 4] [--only NAME] [--programs target/release] [--out bench/results/NAME.md]

Each host is a network namespace with its own process ids on one bridge of this machine, with a daemon that has one worker. Data, runs and
checkpoints are in a bucket, of the test server of the repository. Needs root, and the programs of the packages iproute2 and iptables. All
hosts share the CPUs.

For each kind of fault, jobs train on all hosts while it occurs at random moments, again and again, until it has occurred `--faults` times.
Every job must end with the bits of an undisturbed run on one host (`workers.reproducible`), which shows that each row was trained on
once per epoch, in order. The time is that from the fault until the workers of a host without the fault have restored the model,
by the log of its daemon.
"""

import argparse
import contextlib
import datetime
import hashlib
import json
import os
import pathlib
import platform
import random
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parent.parent
BRIDGE, GATEWAY = "msbr", "10.77.0.254"
PATIENCE = 120
RESUMED = re.compile(r"^(\S+Z) .*: .*(?:resumes from step|starts from scratch)", re.M)

JOB = """name = "hosts"
[data]
train = ["s3://test/train-*.parquet"]
eval = ["s3://test/eval.parquet"]
batch_size = 512
shuffle_rows = 8192
lanes = 8
epochs = {epochs}
[label]
column = "clicked"
[features]
a = {{ kind = "hashed", column = "c15", buckets = 5000 }}
b = {{ kind = "hashed", column = "c16", buckets = 5000 }}
[model]
kind = "wide_deep"
deep.features = ["a", "b"]
deep.embedding_dim = 16
deep.hidden = [64, 32]
deep.optimizer = {{ kind = "adagrad", learning_rate = 0.01 }}
[training]
threads = 1
[checkpoint]
directory = "s3://test/runs"
every_steps = 100
keep = 2
[workers]
max = 4
reproducible = 4
timeout_seconds = 20
"""


def sh(line: str) -> None:
    subprocess.run(line, shell=True, check=True)


def quietly(line: str) -> None:
    subprocess.run(line, shell=True, check=False, stderr=subprocess.DEVNULL)


def wait(what: str, done, patience: float = PATIENCE) -> None:
    until = time.monotonic() + patience
    while not done():
        if time.monotonic() > until:
            raise TimeoutError(f"{what}: not within {patience} s")
        time.sleep(0.05)


def descendants(pid: int) -> list[int]:
    parents = {}
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                fields = (entry / "stat").read_text().rsplit(")", 1)[1].split()
                parents.setdefault(int(fields[1]), []).append(int(entry.name))
    found, queue = [], [pid]
    while queue:
        children = parents.get(queue.pop(), [])
        found += children
        queue += children
    return found


class Host:
    """A daemon in a network namespace, with its own process ids."""

    def __init__(self, number: int, room: pathlib.Path, programs: pathlib.Path, environment: dict):
        self.number, self.room, self.programs, self.environment = number, room, programs, environment
        self.name, self.space, self.link = f"host-{number}", f"ms{number}", f"msv{number}"
        self.address = f"10.77.0.{number + 1}"
        self.socket, self.log = room / f"{self.name}.sock", room / f"{self.name}.log"
        self.process = None

    def create(self) -> None:
        sh(f"ip netns add {self.space}")
        sh(f"ip link add {self.link} type veth peer name eth0 netns {self.space}")
        sh(f"ip link set {self.link} master {BRIDGE} up")
        sh(f"ip -n {self.space} addr add {self.address}/24 dev eth0")
        sh(f"ip -n {self.space} link set eth0 up")
        sh(f"ip -n {self.space} link set lo up")

    def start(self) -> None:
        line = ["ip", "netns", "exec", self.space, "unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
        line += [self.programs / "millstreamd", "--socket", self.socket, "--state", self.room / f"{self.name}.state"]
        line += ["--config", self.room / f"{self.name}.toml"]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(line, stderr=log, env=self.environment)
        wait(f"{self.name} answers", lambda: self.call("list") is not None)

    def call(self, *line: str):
        line = [self.programs / "millstream", "--socket", self.socket, "--json", *line]
        with contextlib.suppress(subprocess.TimeoutExpired):
            output = subprocess.run(line, capture_output=True, text=True, check=False, timeout=10)
            if output.returncode == 0:
                return json.loads(output.stdout or "null") or {}
        return None

    def show(self, job: str) -> dict:
        return self.call("show", job) or {}

    def daemon(self) -> int:
        return descendants(self.process.pid)[0]

    def workers(self) -> list[int]:
        return descendants(self.daemon())

    def kill(self) -> None:
        os.kill(self.daemon(), signal.SIGKILL)
        self.process.wait()

    def drain(self) -> None:
        os.kill(self.daemon(), signal.SIGTERM)
        self.process.wait(timeout=PATIENCE)

    def signal_all(self, number: int) -> None:
        for pid in descendants(self.process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def inside(self, line: str) -> None:
        sh(f"ip netns exec {self.space} {line}")

    def resumed_after(self, moment: float) -> float | None:
        """Seconds from `moment` until its workers had next restored the model."""
        for stamp in RESUMED.findall(self.log.read_text()):
            at = datetime.datetime.fromisoformat(stamp).timestamp()
            if at > moment:
                return at - moment
        return None

    def sees(self, count: int) -> bool:
        peers = (self.call("peers") or {"peers": []})["peers"]
        return sum(peer["state"] == "up" for peer in peers) >= count


class Site:
    """Hosts, a bucket and a job."""

    def __init__(self, room: pathlib.Path, options: argparse.Namespace):
        self.room, self.programs = room, options.programs.resolve()
        data = room / "data"
        data.mkdir()
        for number in range(4):
            self.run("generate", data / f"train-{number}.parquet", "--rows", 20_000, "--seed", number)
        self.run("generate", data / "eval.parquet", "--rows", 4_000, "--seed", 9)
        sh(f"ip link add {BRIDGE} type bridge && ip addr add {GATEWAY}/24 dev {BRIDGE} && ip link set {BRIDGE} up")
        self.server = subprocess.Popen([self.programs / "millstream-test-storage", f"{GATEWAY}:9000", "0", data])
        own = {"AWS_ENDPOINT_URL": f"http://{GATEWAY}:9000", "AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}
        self.environment = {**os.environ, **own}
        self.run("peers", "init-ca", room / "ca")
        self.job = room / "job.toml"
        self.job.write_text(JOB.format(epochs=options.epochs))
        self.hosts = [Host(number, room, self.programs, self.environment) for number in range(options.hosts)]
        static = ",".join(f"{host.address}:7420" for host in self.hosts)
        for host in self.hosts:
            self.run("peers", "issue", "--ca", room / "ca", "--out", room, host.name)
            (room / f"{host.name}.toml").write_text(
                f"max_jobs = 1\n[peers]\nlisten = '{host.address}:7420'\ncertificate = '{room}/{host.name}.pem'\n"
                f"key = '{room}/{host.name}.key'\nca = '{room}/ca/ca.pem'\ncrl = '{room}/ca/crl.pem'\n"
                f"discover = ['static:{static}']\ndata_interface = 'eth0'\ndata_protection = 'isolated'\n"
            )
            host.create()

    def run(self, *line) -> None:
        subprocess.run([self.programs / "millstream", *map(str, line)], check=True, stdout=subprocess.DEVNULL)

    def submit(self, host: Host) -> str:
        return host.call("submit", str(self.job))["id"]

    def model(self, ended: dict) -> str:
        """A hash of the tensors of a final checkpoint."""
        prefix = ended["checkpoint"].removeprefix("s3://test/")
        with urllib.request.urlopen(f"http://{GATEWAY}:9000/test?list-type=2&prefix={prefix}") as reply:
            keys = re.findall("<Key>([^<]*)</Key>", reply.read().decode())
        digest = hashlib.sha256()
        for key in sorted(keys, key=lambda key: key.rsplit("/", 1)[1]):
            if key.endswith(".safetensors"):
                with urllib.request.urlopen(f"http://{GATEWAY}:9000/test/{key}") as reply:
                    digest.update(reply.read())
        return digest.hexdigest()

    def end(self) -> None:
        for host in self.hosts:
            if host.process and host.process.poll() is None:
                host.signal_all(signal.SIGCONT)
                host.process.kill()
                host.process.wait()
        self.server.kill()
        self.server.wait()


def clean(count: int) -> None:
    for number in range(count):
        quietly(f"ip netns del ms{number}")
        quietly(f"ip link del msv{number}")
    quietly(f"ip link del {BRIDGE}")


DROP = "iptables -A {} -{} {} -j DROP"


def partition(victim: Host, others: list[Host], chains: list[str]) -> None:
    for other in others:
        for chain in chains:
            victim.inside(DROP.format(chain, "d" if chain == "OUTPUT" else "s", other.address))


def faults(site: Site) -> dict:
    """For each kind: how it begins, how it ends, for how long it holds, and whether a generation ends by it. The victim is the last host,
    or the first one, which the job is submitted to and which leads until it is lost."""
    last, first, others = site.hosts[-1], site.hosts[0], site.hosts[:-1]

    def kill_worker():
        for pid in last.workers()[:1]:
            os.kill(pid, signal.SIGKILL)

    nothing = lambda: None
    slow = "tc qdisc add dev eth0 root tbf rate 100mbit burst 256kb latency 50ms"
    lossy = "iptables -A INPUT -m statistic --mode random --probability 0.05 -j DROP"
    bucket = f"iptables -A OUTPUT -d {GATEWAY} -j DROP"
    flush = lambda host: lambda: host.inside("iptables -F")
    return {
        "worker killed": (last, kill_worker, nothing, 0, True),
        "daemon killed, started again": (last, last.kill, last.start, 2, True),
        "leader killed, started again": (first, first.kill, first.start, 2, True),
        "host cut off from the others, one way": (last, lambda: partition(last, others, ["OUTPUT"]), flush(last), 8, True),
        "host cut off from the others, both ways": (
            last, lambda: partition(last, others, ["OUTPUT", "INPUT"]), flush(last), 8, True),
        "leader stopped (SIGSTOP) past its lease, continued": (
            first, lambda: first.signal_all(signal.SIGSTOP), lambda: first.signal_all(signal.SIGCONT), 18, True),
        "leader cut off from the bucket": (first, lambda: first.inside(bucket), flush(first), 18, True),
        "host drained (SIGTERM), started again": (last, last.drain, last.start, 1, True),
        "link at 100 Mbit/s": (last, lambda: last.inside(slow), lambda: last.inside("tc qdisc del dev eth0 root"), 5, False),
        "5 % of packets dropped": (last, lambda: last.inside(lossy), flush(last), 5, False),
    }


def all_train(site: Site, job: str) -> bool:
    steps = [host.show(job).get("progress", {}).get("step", 0) for host in site.hosts]
    return all(host.workers() for host in site.hosts) and min(steps) > 0


def has_ended(shown: dict) -> bool:
    return shown.get("state") in ("succeeded", "failed", "cancelled", "held")


def run_kind(site: Site, name: str, count: int, wanted: str) -> str:
    victim, begin, end, hold, ends_generation = faults(site)[name]
    others = [host for host in site.hosts if host is not victim]
    observer = others[0]

    def resumed_after(moment: float) -> float | None:
        # One of them may be a spare: the number of workers divides the parts of a batch.
        found = [time for host in others if (time := host.resumed_after(moment)) is not None]
        return min(found, default=None)

    times, jobs, wrong, done = [], 0, 0, 0
    while done < count:
        job = site.submit(site.hosts[0])
        jobs += 1
        wait("all hosts train", lambda: all_train(site, job))
        while done < count:
            time.sleep(random.uniform(0.2, 2))
            if has_ended(observer.show(job)):
                break
            moment = time.time()
            begin()
            time.sleep(hold)
            end()
            done += 1
            if ends_generation:
                with contextlib.suppress(TimeoutError):
                    wait("training", lambda: resumed_after(moment) is not None or has_ended(observer.show(job)), 60)
                resumed = resumed_after(moment)
                if resumed is not None:
                    times.append(resumed)
            with contextlib.suppress(TimeoutError):
                wait("all hosts train again", lambda: has_ended(observer.show(job)) or all(h.workers() for h in site.hosts), 60)
        for host in site.hosts:
            # A daemon that died twice without a checkpoint in between holds the job.
            if host.show(job).get("state") == "held":
                host.call("resume", job)
        wait("the job ends", lambda: all(has_ended(host.show(job)) for host in site.hosts), 600)
        states = [host.show(job)["state"] for host in site.hosts]
        shown = observer.show(job)
        good = states == ["succeeded"] * len(site.hosts) and site.model(shown) == wanted
        wrong += not good
        if not good:
            print(f"{name}: {job}: {states} {shown.get('reason')}", file=sys.stderr)
        left = [pid for host in site.hosts for pid in host.workers()]
        wrong += bool(left)
    figures = f"{statistics.median(times):.1f} s ({max(times):.1f} s)" if times else "-"
    line = f"| {name} | {done} | {figures} | {jobs - wrong} of {jobs} |"
    print(line, file=sys.stderr, flush=True)
    return line


def heading(options: argparse.Namespace) -> str:
    cpu = next((line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")), platform.machine())
    family = next((line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("cpu family")), "?")
    version = subprocess.check_output(["git", "-C", ROOT, "rev-parse", "--short", "HEAD"], text=True).strip()
    today = datetime.date.today()
    return (f"# Hosts that train together: faults, {today}\n\n`bench/hosts.py --faults {options.faults} --hosts {options.hosts}` on {version}; "
            f"{cpu} (family {family}), {os.cpu_count()} CPUs for all hosts and the bucket.\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faults", type=int, default=20)
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--epochs", type=int, default=400)
    parser.add_argument("--only", action="append")
    parser.add_argument("--keep-logs", type=pathlib.Path)
    parser.add_argument("--programs", type=pathlib.Path, default=ROOT / "target" / "release")
    parser.add_argument("--out", type=pathlib.Path)
    options = parser.parse_args()
    lines = [heading(options), "| fault | times | trains again after, median (max) | same bits |", "|---|---|---|---|"]
    clean(options.hosts)
    with tempfile.TemporaryDirectory(dir="/dev/shm") as directory:
        site = None
        try:
            site = Site(pathlib.Path(directory), options)
            alone = site.hosts[0]
            alone.start()
            job = site.submit(alone)
            wait("the job ends", lambda: has_ended(alone.show(job)), 600)
            began = alone.show(job)
            wanted = site.model(began)
            print(f"alone: {began['state']}, {began['progress']['step']} steps", file=sys.stderr)
            for host in site.hosts[1:]:
                host.start()
            wait("hosts see each other", lambda: all(host.sees(len(site.hosts) - 1) for host in site.hosts))
            for name in faults(site):
                if not options.only or any(part in name for part in options.only):
                    lines.append(run_kind(site, name, options.faults, wanted))
        finally:
            if site:
                site.end()
            if options.keep_logs:
                options.keep_logs.mkdir(exist_ok=True)
                for log in pathlib.Path(directory).glob("*.log"):
                    shutil.copy(log, options.keep_logs)
            clean(options.hosts)
    text = "\n".join(lines) + "\n"
    print(text)
    if options.out:
        options.out.write_text(text)


if __name__ == "__main__":
    main()
