#!/usr/bin/env python3
"""Daemons of several hosts: how fast they see that one is lost or back, and what links carry.

    cargo build --release --workspace --bins
    sudo python3 bench/peers.py [--rounds 5] [--hosts 4] [--programs target/release] [--out bench/results/NAME.md]

Each host is a network namespace of this machine on one bridge (`host_lab.py`), with a separate daemon. Needs root, and
the programs of the packages iproute2 and iptables. All hosts share the CPUs, so rates without a limit are those of this
machine.

* *Loss*: from the fault until another host shows it, and from its end until that host shows it up: the daemon killed
  (SIGKILL) and started again, stopped (SIGSTOP, SIGCONT), its link down and up, its packets dropped in one direction.
* *Links*: `millstream peers --measure` with 4 connections, over links without a limit, of 1 Gbit/s and 100 Mbit/s
  (token bucket), and with 5 % of packets dropped.
* *Cost*: bytes a second and CPU of an idle daemon with its peers."""

import argparse
import os
import pathlib
import signal
import statistics
import sys
import time

from host_lab import PROGRAMS, DaemonHost, authority, commit, enter, machine, meet, network, room, sh, today, wait

LOSSY = "iptables -A INPUT -m statistic --mode random --probability 0.05 -j DROP"


def cpu(host: DaemonHost) -> float:
    """Seconds of CPU that its daemon has used."""
    fields = pathlib.Path(f"/proc/{host.daemon()}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def losses(hosts: list[DaemonHost], rounds: int) -> list[str]:
    victim, observer = hosts[-1], hosts[1]
    drop = f"iptables -A OUTPUT -d {observer.address} -j DROP"

    faults = {
        "daemon killed, started": (victim.kill, victim.start),
        "daemon stopped, continued": (
            lambda: victim.signal_all(signal.SIGSTOP),
            lambda: victim.signal_all(signal.SIGCONT),
        ),
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


def links(hosts: list[DaemonHost], rounds: int) -> list[str]:
    first, second = hosts[0], hosts[1]
    ends = [first, second]
    unlimited = lambda host: host.limit("none")
    limits = {
        "no limit": (unlimited, unlimited),
        "1 Gbit/s": (lambda host: host.limit("1gbit"), unlimited),
        "100 Mbit/s": (lambda host: host.limit("100mbit"), unlimited),
        "5 % of packets dropped": (lambda host: host.inside(LOSSY), lambda host: host.inside("iptables -F")),
    }
    lines = ["| link | round trip | sent | received |", "|---|---|---|---|"]
    for name, (begin, end) in limits.items():
        for host in ends:
            begin(host)
        measured = []
        for _ in range(rounds):
            found = first.peers("--measure", second.name, "--seconds", "2")
            measured += [link for link in found if not link["error"]]
        for host in ends:
            end(host)
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


def cost(hosts: list[DaemonHost]) -> list[str]:
    host, seconds = hosts[0], 30
    bytes_before, cpu_before = host.bytes_received(), cpu(host)
    time.sleep(seconds)
    rate = (host.bytes_received() - bytes_before) / seconds
    used = (cpu(host) - cpu_before) / seconds
    return [f"An idle daemon with {len(hosts) - 1} peers receives {rate:.0f} B/s and uses {used * 100:.2f} % of a CPU."]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--programs", type=pathlib.Path, default=PROGRAMS)
    parser.add_argument("--out", type=pathlib.Path)
    arguments = parser.parse_args()
    enter()
    with room() as directory:
        programs = arguments.programs.resolve()
        issuer = authority(directory, programs)
        hosts = [DaemonHost(number, directory, programs) for number in range(arguments.hosts)]
        with network(hosts):
            try:
                for host in hosts:
                    # They know the first one.
                    host.configure(issuer, f"static:{hosts[0].address}:7420")
                    host.start()
                meet(hosts)
                idle = cost(hosts)
                lost = losses(hosts, arguments.rounds)
                carried = links(hosts, arguments.rounds)
            finally:
                for host in hosts:
                    host.end()
    text = "\n".join(
        [
            "# Daemons of several hosts",
            "",
            f"`bench/peers.py --rounds {arguments.rounds} --hosts {arguments.hosts}` of {today()} at {commit()}, on {machine()}.",
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
