"""Hosts on one machine, for benchmarks: network namespaces on a bridge, a daemon in each, and a bucket.

A script calls `enter` first. It starts itself again in new network, mount and process id namespaces, which end with it:
then the kernel ends all that it has started and removes its bridge, interfaces and mounts, however it ends. Needs root
and the packages iproute2 and util-linux. All hosts share the CPUs of the machine.

    enter()                                         # before anything else
    hosts = [Host(number) for number in range(4)]
    with room() as directory, network(hosts):
        hosts[0].limit("100mbit")
"""

import contextlib
import datetime
import hashlib
import json
import os
import pathlib
import platform
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from typing import NamedTuple

ROOT = pathlib.Path(__file__).resolve().parent.parent
PROGRAMS = ROOT / "target" / "release"
BRIDGE, GATEWAY = "msbr", "10.77.0.254"
STORAGE_PORT = 9000
PATIENCE = 120
INSIDE = "MILLSTREAM_HOST_LAB"
UNSHARE = ["setpriv", "--pdeathsig", "KILL", "unshare", "--net", "--mount"]
OWN_PROCESSES = ["--pid", "--fork", "--kill-child", "--mount-proc"]


def enter(after: Callable[[], None] = lambda: None) -> None:
    """Continues in new namespaces: the first call starts the script again, waits for it, runs `after` and exits."""
    if os.environ.pop(INSIDE, None):
        pathlib.Path("/run/netns").mkdir(exist_ok=True)
        for place in ("/run/netns", "/dev/shm"):
            sh(f"mount -t tmpfs tmpfs {place}")
        sh("ip link set lo up")
        return
    if os.geteuid() != 0:
        sys.exit(f"{sys.argv[0]}: needs root, for network namespaces")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    inside = subprocess.Popen([*UNSHARE, *OWN_PROCESSES, sys.executable, *sys.argv], env={**os.environ, INSIDE: "1"})
    try:
        sys.exit(inside.wait())
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
    finally:
        inside.kill()
        inside.wait()
        after()


@contextlib.contextmanager
def room() -> Iterator[pathlib.Path]:
    """A directory in memory."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as directory:
        yield pathlib.Path(directory)


def sh(line: str) -> None:
    subprocess.run(line, shell=True, check=True)


def quietly(line: str) -> None:
    subprocess.run(line, shell=True, check=False, stderr=subprocess.DEVNULL)


def wait(what: str, done: Callable[[], bool], patience: float = PATIENCE) -> float:
    """Seconds until `done`."""
    began = time.monotonic()
    while not done():
        if time.monotonic() - began > patience:
            raise TimeoutError(f"{what}: not within {patience} s")
        time.sleep(0.05)
    return time.monotonic() - began


def machine() -> str:
    """The processor and the kernel, for the heading of a report."""
    information = pathlib.Path("/proc/cpuinfo").read_text()
    found = {key: re.search(rf"^{key}\s*: (.*)", information, re.M) for key in ("model name", "cpu family")}
    name, family = (match.group(1) if match else "?" for match in found.values())
    return f"{name} (family {family}), {os.cpu_count()} CPUs, Linux {platform.release()}"


def commit() -> str:
    return subprocess.check_output(["git", "-C", ROOT, "rev-parse", "--short", "HEAD"], text=True).strip()


def today() -> datetime.date:
    return datetime.date.today()


def descendants(pid: int) -> list[int]:
    """The processes below `pid` that run, its children first."""
    parents = {}
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                fields = (entry / "stat").read_text().rsplit(")", 1)[1].split()
                if fields[0] != "Z":
                    parents.setdefault(int(fields[1]), []).append(int(entry.name))
    found, queue = [], [pid]
    while queue:
        children = parents.get(queue.pop(), [])
        found += children
        queue += children
    return found


class Host:
    """A network namespace with one interface, `eth0`, on the bridge."""

    def __init__(self, number: int):
        self.number, self.name = number, f"host-{number}"
        self.space, self.link = f"ms{number}", f"msv{number}"
        self.address = f"10.77.0.{number + 1}"

    def create(self) -> None:
        sh(f"ip netns add {self.space}")
        sh(f"ip link add {self.link} type veth peer name eth0 netns {self.space}")
        sh(f"ip link set {self.link} master {BRIDGE} up")
        sh(f"ip -n {self.space} addr add {self.address}/24 dev eth0")
        sh(f"ip -n {self.space} link set eth0 up")
        sh(f"ip -n {self.space} link set lo up")

    def inside(self, line: str) -> None:
        sh(f"ip netns exec {self.space} {line}")

    def limit(self, rate: str) -> None:
        """Limits what the host sends, and what the bridge sends to it, with a token bucket: `100mbit`, or `none`."""
        for tc in (f"ip netns exec {self.space} tc qdisc {{}} dev eth0 root", f"tc qdisc {{}} dev {self.link} root"):
            if rate == "none":
                quietly(tc.format("del"))
            else:
                sh(tc.format("replace") + f" tbf rate {rate} burst 256kb latency 50ms")

    def bytes_sent(self) -> int:
        """Since it was created, with headers."""
        return self.statistics()["rx"]["bytes"]

    def bytes_received(self) -> int:
        """Since it was created, with headers."""
        return self.statistics()["tx"]["bytes"]

    def statistics(self) -> dict:
        """Those of the end of its link at the bridge."""
        [link] = json.loads(subprocess.check_output(["ip", "-json", "-s", "link", "show", "dev", self.link]))
        return link["stats64"]


@contextlib.contextmanager
def network(hosts: list[Host]) -> Iterator[None]:
    """Connects hosts by a bridge, which has the address `GATEWAY`."""
    sh(f"ip link add {BRIDGE} type bridge && ip addr add {GATEWAY}/24 dev {BRIDGE} && ip link set {BRIDGE} up")
    try:
        for host in hosts:
            host.create()
        yield
    finally:
        for host in hosts:
            quietly(f"ip netns del {host.space}")
            quietly(f"ip link del {host.link}")
        quietly(f"ip link del {BRIDGE}")


class DaemonHost(Host):
    """A host with a daemon, which has its own process ids."""

    def __init__(self, number: int, directory: pathlib.Path, programs: pathlib.Path):
        super().__init__(number)
        self.directory, self.programs = directory, programs
        self.environment = dict(os.environ)
        self.socket, self.log = directory / f"{self.name}.sock", directory / f"{self.name}.log"
        self.state, self.configuration = directory / f"{self.name}.state", directory / f"{self.name}.toml"
        self.process = None

    def configure(self, authority: pathlib.Path, discover: str, more: str = "", before: str = "") -> None:
        """Issues its certificate and writes its configuration: `more` in the section of peers, `before` above it."""
        issue = [self.programs / "millstream", "peers", "issue", "--ca", authority, "--out", self.directory, self.name]
        subprocess.run(issue, check=True, stdout=subprocess.DEVNULL)
        key = self.directory / self.name
        self.configuration.write_text(
            f"{before}[peers]\nlisten = '{self.address}:7420'\ncertificate = '{key}.pem'\nkey = '{key}.key'\n"
            f"ca = '{authority}/ca.pem'\ncrl = '{authority}/crl.pem'\ndiscover = ['{discover}']\n{more}"
        )

    def start(self, before: tuple = ()) -> None:
        """Starts the daemon, by the command `before` if there is one, and waits for it."""
        line = [*before, "ip", "netns", "exec", self.space, "unshare", *OWN_PROCESSES]
        line += [self.programs / "millstreamd", "--socket", self.socket, "--state", self.state]
        line += ["--config", self.configuration]
        with self.log.open("ab") as log:
            # Its own session: a terminal signals the script alone.
            self.process = subprocess.Popen(line, stderr=log, env=self.environment, start_new_session=True)
        wait(f"{self.name} answers", lambda: self.call("list") is not None)

    def call(self, *line: str):
        """What `millstream` prints as JSON; `None` if it fails."""
        line = [self.programs / "millstream", "--socket", self.socket, "--json", *line]
        with contextlib.suppress(subprocess.TimeoutExpired):
            output = subprocess.run(line, capture_output=True, text=True, check=False, timeout=20)
            if output.returncode == 0:
                return json.loads(output.stdout or "null") or {}
        return None

    def show(self, job: str) -> dict:
        return self.call("show", job) or {}

    def peers(self, *more: str) -> list[dict]:
        return (self.call("peers", *more) or {"peers": []})["peers"]

    def sees(self, name: str) -> bool:
        return any(peer["name"] == name and peer["state"] == "up" for peer in self.peers())

    def daemon(self) -> int:
        return descendants(self.process.pid)[0]

    def workers(self) -> list[int]:
        # Not of a daemon that has just ended.
        below = descendants(self.process.pid)
        return descendants(below[0]) if below else []

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

    def end(self) -> None:
        if self.process and self.process.poll() is None:
            self.signal_all(signal.SIGCONT)
            self.process.kill()
            self.process.wait()


def meet(hosts: list[DaemonHost]) -> None:
    """Waits until each host sees all others."""
    for host in hosts:
        others = [other.name for other in hosts if other is not host]
        wait(f"{host.name} sees all others", lambda: all(host.sees(name) for name in others))


def authority(directory: pathlib.Path, programs: pathlib.Path) -> pathlib.Path:
    """Creates an authority for certificates of hosts."""
    place = directory / "ca"
    subprocess.run([programs / "millstream", "peers", "init-ca", place], check=True, stdout=subprocess.DEVNULL)
    return place


class Storage:
    """The test server of the repository, with Amazon's interface. The files of a directory are the bucket `test`."""

    def __init__(self, programs: pathlib.Path, address: str, files: pathlib.Path | None = None):
        self.address = address
        line = [programs / "millstream-test-storage", address, *(("0", files) if files else ())]
        self.process = subprocess.Popen(line, start_new_session=True)
        own = {"AWS_ENDPOINT_URL": f"http://{address}", "AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}
        self.environment = {**os.environ, **own}
        wait("the server answers", self.is_up)

    def is_up(self) -> bool:
        try:
            self.keys("test", "")
        except OSError:
            return False
        return True

    def keys(self, bucket: str, prefix: str) -> list[str]:
        with urllib.request.urlopen(f"http://{self.address}/{bucket}?list-type=2&prefix={prefix}") as reply:
            return re.findall("<Key>([^<]*)</Key>", reply.read().decode())

    def get(self, bucket: str, key: str) -> bytes:
        with urllib.request.urlopen(f"http://{self.address}/{bucket}/{key}") as reply:
            return reply.read()

    def model(self, checkpoint: str) -> str:
        """A hash of the tensors of a checkpoint in the bucket `test`."""
        keys = self.keys("test", checkpoint.removeprefix("s3://test/"))
        digest = hashlib.sha256()
        for key in sorted(keys, key=lambda key: key.rsplit("/", 1)[1]):
            if key.endswith(".safetensors"):
                digest.update(self.get("test", key))
        return digest.hexdigest()

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


def free_address() -> str:
    """One of this machine where nothing listens."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return "127.0.0.1:%d" % free.getsockname()[1]


class Site(NamedTuple):
    """Hosts that find each other, and a bucket, for jobs that train on all of them."""

    directory: pathlib.Path
    programs: pathlib.Path
    hosts: list[DaemonHost]
    storage: Storage


@contextlib.contextmanager
def site(directory: pathlib.Path, programs: pathlib.Path, count: int, files: pathlib.Path) -> Iterator[Site]:
    """Creates the hosts, and starts no daemon. `files` are those of the bucket."""
    hosts = [DaemonHost(number, directory, programs) for number in range(count)]
    issuer = authority(directory, programs)
    static = "static:" + ",".join(f"{host.address}:7420" for host in hosts)
    with network(hosts):
        storage = Storage(programs, f"{GATEWAY}:{STORAGE_PORT}", files)
        try:
            for host in hosts:
                host.environment = storage.environment
                data = "data_interface = 'eth0'\ndata_protection = 'isolated'\n"
                host.configure(issuer, static, data, "max_jobs = 1\n")
            yield Site(directory, programs, hosts, storage)
        finally:
            for host in hosts:
                host.end()
            storage.end()


def generate(programs: pathlib.Path, out: pathlib.Path, rows: int, seed: int, shards: int | None = None) -> None:
    """Writes synthetic clicks; the name of several files has a star for their number."""
    line = [programs / "millstream", "generate", out, "--rows", str(rows), "--seed", str(seed)]
    line += ["--shards", str(shards)] if shards else []
    subprocess.run(line, check=True, stdout=subprocess.DEVNULL)


def keep_logs(directory: pathlib.Path, place: pathlib.Path | None) -> None:
    if place:
        place.mkdir(parents=True, exist_ok=True)
        for log in directory.glob("*.log"):
            shutil.copy(log, place)
