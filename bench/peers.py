#!/usr/bin/env python3
"""Daemons of several hosts: how fast they see that one is lost or back, and what links carry.

    cargo build --release --workspace --bins
    sudo python3 bench/peers.py [--rounds 5] [--hosts 4] [--programs target/release] [--out bench/results/NAME.md]

Each host is a network namespace of this machine on one bridge, with a separate daemon. Needs root, and the programs of the
packages iproute2 and iptables. All hosts share the CPUs, so rates without a limit are those of this machine.

* *Loss*: from the fault until another host shows it, and from its end until that host shows it up: the daemon killed (SIGKILL) and
  started again, stopped (SIGSTOP, SIGCONT), its link down and up, its packets dropped in one direction.
* *Links*: `millstream peers --measure` with 4 connections, over links without a limit, of 1 Gbit/s and 100 Mbit/s (token bucket),
  and with 5 % of packets dropped.
* *Cost*: bytes a second and CPU of an idle daemon with its peers.
"""

import argparse
import contextlib
import datetime
import json
import os
import pathlib
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
BRIDGE = "msbr"
PATIENCE = 90


def sh(line: str) -> None:
    subprocess.run(line, shell=True, check=True)


def quietly(line: str) -> None:
    subprocess.run(line, shell=True, check=False, stderr=subprocess.DEVNULL)


class Host:
    """A daemon in a network namespace."""

    def __init__(self, number: int, room: pathlib.Path, programs: pathlib.Path):
        self.number, self.room, self.programs = number, room, programs
        self.name, self.space, self.link = f"host-{number}", f"ms{number}", f"msv{number}"
        self.address = f"10.77.0.{number + 1}"
        self.socket = room / f"{self.name}.sock"
        self.daemon = None

    def create(self) -> None:
        sh(f"ip netns add {self.space}")
        sh(f"ip link add {self.link} type veth peer name eth0 netns {self.space}")
        sh(f"ip link set {self.link} master {BRIDGE} up")
        sh(f"ip -n {self.space} addr add {self.address}/24 dev eth0")
        sh(f"ip -n {self.space} link set eth0 up")
        sh(f"ip -n {self.space} link set lo up")

    def start(self) -> None:
        log = open(self.room / f"{self.name}.log", "ab")
        line = ["ip", "netns", "exec", self.space, self.programs / "millstreamd", "--socket", self.socket]
        line += ["--state", self.room / f"{self.name}.state", "--config", self.room / f"{self.name}.toml"]
        self.daemon = subprocess.Popen(line, stderr=log)

    def inside(self, line: str) -> None:
        sh(f"ip netns exec {self.space} {line}")

    def peers(self, *more: str) -> dict:
        line = [self.programs / "millstream", "--socket", self.socket, "--json", "peers", *more]
        output = subprocess.run(line, capture_output=True, text=True, check=False)
        return json.loads(output.stdout) if output.returncode == 0 else {"peers": []}

    def sees(self, name: str) -> bool:
        return any(peer["name"] == name and peer["state"] == "up" for peer in self.peers()["peers"])

    def signal(self, number: int) -> None:
        self.daemon.send_signal(number)

    def received(self) -> int:
        path = "/sys/class/net/eth0/statistics/rx_bytes"
        return int(subprocess.check_output(["ip", "netns", "exec", self.space, "cat", path]))

    def cpu(self) -> float:
        fields = pathlib.Path(f"/proc/{self.daemon.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def wait(what: str, done) -> float:
    """Seconds until `done`."""
    began = time.monotonic()
    while not done():
        if time.monotonic() - began > PATIENCE:
            sys.exit(f"bench/peers.py: {what}: not within {PATIENCE} s")
        time.sleep(0.1)
    return time.monotonic() - began


@contextlib.contextmanager
def site(count: int, programs: pathlib.Path):
    """Hosts that know the first one."""
    with tempfile.TemporaryDirectory() as directory:
        room = pathlib.Path(directory)
        hosts = [Host(number, room, programs) for number in range(count)]
        clean(count)
        sh(f"ip link add {BRIDGE} type bridge && ip link set {BRIDGE} up")
        subprocess.run([programs / "millstream", "peers", "init-ca", room / "ca"], check=True, stdout=subprocess.DEVNULL)
        try:
            for host in hosts:
                issue = [programs / "millstream", "peers", "issue", "--ca", room / "ca", "--out", room, host.name]
                subprocess.run(issue, check=True, stdout=subprocess.DEVNULL)
                (room / f"{host.name}.toml").write_text(
                    f"[peers]\nlisten = '{host.address}:7420'\ncertificate = '{room}/{host.name}.pem'\n"
                    f"key = '{room}/{host.name}.key'\nca = '{room}/ca/ca.pem'\ncrl = '{room}/ca/crl.pem'\n"
                    f"discover = ['static:{hosts[0].address}:7420']\n"
                )
                host.create()
                host.start()
            yield hosts
        finally:
            for host in hosts:
                if host.daemon:
                    host.daemon.kill()
                    host.daemon.wait()
            clean(count)


def clean(count: int) -> None:
    for number in range(count):
        quietly(f"ip netns del ms{number}")
        quietly(f"ip link del msv{number}")
    quietly(f"ip link del {BRIDGE}")


def losses(hosts: list[Host], rounds: int) -> list[str]:
    victim, observer = hosts[-1], hosts[1]
    drop = f"iptables -A OUTPUT -d {observer.address} -j DROP"

    def restart():
        victim.daemon.wait()
        victim.start()

    faults = {
        "daemon killed, started": (lambda: victim.signal(signal.SIGKILL), restart),
        "daemon stopped, continued": (lambda: victim.signal(signal.SIGSTOP), lambda: victim.signal(signal.SIGCONT)),
        "link down, up": (lambda: sh(f"ip link set {victim.link} down"), lambda: sh(f"ip link set {victim.link} up")),
        "packets to one host dropped": (lambda: victim.inside(drop), lambda: victim.inside("iptables -F")),
    }
    lines = ["| fault | seen after, median (max) | back after, median (max) |", "|---|---|---|"]
    for name, (begin, end) in faults.items():
        lost, back = [], []
        for _ in range(rounds):
            wait("all are up", lambda: observer.sees(victim.name))
            begin()
            lost.append(wait(f"{name}: the loss", lambda: not observer.sees(victim.name)))
            end()
            back.append(wait(f"{name}: the return", lambda: observer.sees(victim.name)))
        figures = [f"{statistics.median(times):.1f} s ({max(times):.1f} s)" for times in (lost, back)]
        lines.append(f"| {name} | {figures[0]} | {figures[1]} |")
        print(lines[-1], file=sys.stderr)
    return lines


def links(hosts: list[Host], rounds: int) -> list[str]:
    first, second = hosts[0], hosts[1]
    ends = [first, second]
    bucket = "tc qdisc add dev eth0 root tbf rate {} burst 256kb latency 50ms"
    limits = {
        "no limit": (None, None),
        "1 Gbit/s": (bucket.format("1gbit"), "tc qdisc del dev eth0 root"),
        "100 Mbit/s": (bucket.format("100mbit"), "tc qdisc del dev eth0 root"),
        "5 % of packets dropped": (
            "iptables -A INPUT -m statistic --mode random --probability 0.05 -j DROP",
            "iptables -F",
        ),
    }
    lines = ["| link | round trip | sent | received |", "|---|---|---|---|"]
    for name, (begin, end) in limits.items():
        for host in ends:
            begin and host.inside(begin)
        measured = []
        for _ in range(rounds):
            found = first.peers("--measure", second.name, "--seconds", "2")["peers"]
            measured += [link for link in found if not link["error"]]
        for host in ends:
            end and host.inside(end)
        if not measured:
            lines.append(f"| {name} | none could be measured | | |")
            continue
        median = lambda key: statistics.median(link[key] for link in measured)
        lines.append(
            f"| {name} | {median('round_trip_seconds') * 1e3:.2f} ms | {median('sent_bytes_per_second') / 1e6:.1f} MB/s "
            f"| {median('received_bytes_per_second') / 1e6:.1f} MB/s |"
        )
        print(lines[-1], file=sys.stderr)
    return lines


def cost(hosts: list[Host]) -> list[str]:
    host, seconds = hosts[0], 30
    bytes_before, cpu_before = host.received(), host.cpu()
    time.sleep(seconds)
    rate = (host.received() - bytes_before) / seconds
    cpu = (host.cpu() - cpu_before) / seconds
    return [f"An idle daemon with {len(hosts) - 1} peers receives {rate:.0f} B/s and uses {cpu * 100:.2f} % of a CPU."]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--programs", type=pathlib.Path, default=ROOT / "target" / "release")
    parser.add_argument("--out", type=pathlib.Path)
    arguments = parser.parse_args()
    programs = arguments.programs.resolve()
    with site(arguments.hosts, programs) as hosts:
        for host in hosts:
            others = [other.name for other in hosts if other is not host]
            wait(f"{host.name} sees all others", lambda: all(host.sees(name) for name in others))
        idle = cost(hosts)
        lost = losses(hosts, arguments.rounds)
        carried = links(hosts, arguments.rounds)
    model = next(line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name"))
    commit = subprocess.check_output(["git", "-C", ROOT, "rev-parse", "--short", "HEAD"], text=True).strip()
    machine = f"{model}, {os.cpu_count()} CPUs, Linux {platform.release()}"
    text = "\n".join(
        [
            "# Daemons of several hosts",
            "",
            f"`bench/peers.py --rounds {arguments.rounds} --hosts {arguments.hosts}` of {datetime.date.today()} at {commit}, on {machine}.",
            "Hosts are network namespaces of this machine.",
            "",
            "## Losses",
            "",
            *lost,
            "",
            "## Links",
            "",
            *carried,
            "",
            "## Cost",
            "",
            *idle,
            "",
        ]
    )
    print(text)
    if arguments.out:
        arguments.out.write_text(text)


if __name__ == "__main__":
    main()
