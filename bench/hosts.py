#!/usr/bin/env python3
"""Faults of hosts that train one model together: the time until they train again, and whether each row counts once.

    cargo build --release --workspace --bins
    sudo python3 bench/hosts.py [--faults 20] [--hosts 4] [--only NAME] [--programs target/release] [--out bench/results/NAME.md]
    sudo python3 bench/hosts.py --list

Each host is a network namespace with its own process ids on one bridge of this machine (`host_lab.py`), with a daemon
that has one worker. Data, runs and checkpoints are in a bucket, of the test server of the repository. Needs root, and
the programs of the packages iproute2 and iptables. All hosts share the CPUs.

For each kind of fault, jobs train on all hosts while it occurs at random moments, again and again, until it has
occurred `--faults` times. Every job must end with the bits of an undisturbed run on one host (`workers.reproducible`),
which shows that each row was trained on once per epoch, in order, and leave no worker behind. The time is that from the
fault until the workers of a host without the fault have restored the model, by the log of its daemon. A slow link or
bucket need not end the workers: the column "restarts" counts the faults that did. The end of a fault that lasts can
restart them once more, which is not counted. The last column counts the jobs after which `millstream show` names the
same checkpoint on all hosts."""

import argparse
import contextlib
import dataclasses
import datetime
import json
import os
import pathlib
import random
import re
import shutil
import signal
import statistics
import sys
import time
from collections.abc import Callable

from host_lab import GATEWAY, PROGRAMS, STORAGE_PORT, DaemonHost, Site
from host_lab import commit, enter, generate, keep_logs, machine, meet, quietly, room, sh, site, today, wait

RESUMED = re.compile(r"^(\S+Z) .*: .*(?:resumes from step|starts from scratch)", re.M)
# Of the file system of a host's state.
STATE_SIZE = "64m"
# How long after a fault workers may restart because of it, if it need not restart them.
LATE_SECONDS = 3

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


def nothing(_: DaemonHost) -> None:
    pass


@dataclasses.dataclass
class Outcome:
    """Of a job, or of all jobs with a kind of fault."""

    faults: int = 0
    times: list[float] = dataclasses.field(default_factory=list)
    jobs: int = 0
    # With the bits of the undisturbed run.
    good: int = 0
    # After which all hosts show the same checkpoint.
    agreed: int = 0


@dataclasses.dataclass
class Fault:
    """A kind of fault, which happens to a host. It holds for `seconds`."""

    # Of these hosts, of which the first one leads.
    victim: Callable[[list[DaemonHost]], DaemonHost]
    begin: Callable[[DaemonHost], None]
    end: Callable[[DaemonHost], None]
    seconds: float
    # Whether it ends the workers in all cases.
    restarts: bool = True
    # Prepares each fault.
    before: Callable[[DaemonHost], None] = nothing
    # Whether the victim's restart counts; otherwise those of all others.
    observes_victim: bool = False
    # Whether it is one of the failures of which three in a row, without a new checkpoint, end the job by design.
    is_counted: bool = False
    # Of the job.
    settings: tuple[str, ...] = ()


def partition(victim: DaemonHost, others: list[DaemonHost], chains: list[str]) -> None:
    for other in others:
        for chain in chains:
            victim.inside(f"iptables -A {chain} -{'d' if chain == 'OUTPUT' else 's'} {other.address} -j DROP")


def fill(host: DaemonHost) -> None:
    """Leaves no space on the file system of its state: not a page."""
    with (host.state / "ballast").open("wb", buffering=0) as ballast:
        for size in (1 << 16, 1 << 12):
            with contextlib.suppress(OSError):
                while True:
                    ballast.write(bytes(size))


def empty(host: DaemonHost) -> None:
    (host.state / "ballast").unlink()


def erase(host: DaemonHost) -> None:
    for entry in host.state.iterdir():
        shutil.rmtree(entry) if entry.is_dir() else entry.unlink()


def faults(place: Site) -> dict[str, Fault]:
    """The victim is the leader, or the last one of the others."""
    hosts, server = place.hosts, place.storage.process
    leader, last = lambda hosts: hosts[0], lambda hosts: hosts[-1]
    lossy = "iptables -A INPUT -m statistic --mode random --probability 0.05 -j DROP"
    cut_off = f"iptables -A OUTPUT -d {GATEWAY} -j DROP"
    refuse = f"iptables {{}} INPUT -p tcp --dport {STORAGE_PORT} -j REJECT --reject-with tcp-reset"
    run = lambda line: lambda victim: victim.inside(line)
    flush = run("iptables -F")
    signal_all = lambda number: lambda victim: victim.signal_all(number)
    signal_server = lambda number: lambda _: server.send_signal(number)
    limit = lambda rate: lambda victim: victim.limit(rate)
    outside = lambda line: lambda _: sh(line)
    cut = lambda *chains: lambda victim: partition(victim, [host for host in hosts if host is not victim], chains)

    def signal_worker(number: int) -> Callable[[DaemonHost], None]:
        def send(victim: DaemonHost) -> None:
            for pid in victim.workers()[:1]:
                os.kill(pid, number)

        return send

    def remove(victim: DaemonHost) -> None:
        victim.drain()
        erase(victim)
        wait("the others train", lambda: any(host.workers() for host in hosts if host is not victim))
        time.sleep(1)

    return {
        "worker killed": Fault(last, signal_worker(signal.SIGKILL), nothing, 0, is_counted=True),
        "worker stopped (SIGSTOP)": Fault(
            last, signal_worker(signal.SIGSTOP), nothing, 0, is_counted=True, settings=("workers.timeout_seconds=5",)),
        "daemon killed, started again": Fault(last, DaemonHost.kill, DaemonHost.start, 2),
        "leader killed, started again": Fault(leader, DaemonHost.kill, DaemonHost.start, 2),
        "host cut off from the others, one way": Fault(last, cut("OUTPUT"), flush, 8),
        "host cut off from the others, both ways": Fault(last, cut("OUTPUT", "INPUT"), flush, 8),
        "leader stopped (SIGSTOP) past its lease, continued": Fault(
            leader, signal_all(signal.SIGSTOP), signal_all(signal.SIGCONT), 18),
        "leader cut off from the bucket": Fault(leader, run(cut_off), flush, 18),
        "host drained (SIGTERM), started again": Fault(last, DaemonHost.drain, DaemonHost.start, 1),
        "host joins": Fault(last, DaemonHost.start, nothing, 0, before=remove, observes_victim=True),
        "disk of the state full": Fault(last, fill, empty, 8, restarts=False),
        "disk of the leader's state full": Fault(leader, fill, empty, 8, restarts=False),
        "bucket slow (its server stopped)": Fault(
            last, signal_server(signal.SIGSTOP), signal_server(signal.SIGCONT), 6, restarts=False),
        "bucket at 1 MB/s": Fault(last, outside(LIMIT_BUCKET), outside(UNLIMIT_BUCKET), 6, restarts=False),
        "bucket failing (connections refused)": Fault(
            last, outside(refuse.format("-A")), outside(refuse.format("-D")), 12),
        "link at 100 Mbit/s": Fault(last, limit("100mbit"), limit("none"), 5, restarts=False),
        "5 % of packets dropped": Fault(last, run(lossy), flush, 5, restarts=False),
    }


def leader_first(place: Site, job: str) -> list[DaemonHost]:
    """The hosts, with the one first whose daemon has the lease of the job's run."""
    lease = json.loads(place.storage.get("test", f"runs/{job}/lease.json"))
    namespace = lease["holder"]["namespace"]
    leads = lambda host: namespace in os.readlink(f"/proc/{host.daemon()}/ns/pid")
    return sorted(place.hosts, key=leads, reverse=True)


# What the bridge's own address sends is what the server sends. The hosts' traffic passes the bridge only.
LIMIT_BUCKET = "tc qdisc replace dev msbr root tbf rate 8mbit burst 64kb latency 100ms"
UNLIMIT_BUCKET = "tc qdisc del dev msbr root"


def run_kind(place: Site, name: str, wanted: str, options: argparse.Namespace) -> str:
    """The row of a kind of fault."""
    count = options.faults
    fault, began, all_jobs = faults(place)[name], time.monotonic(), Outcome()
    # A job that cannot train has no faults.
    while all_jobs.faults < count and all_jobs.jobs < count:
        all_jobs.jobs += 1
        job = "no job"
        try:
            job = submit(place, fault)
            disturb(place, fault, job, count, all_jobs)
            problem = judge(place, job, wanted)
            all_jobs.agreed += names_one_checkpoint(place.hosts, job)
        except TimeoutError as error:
            problem = str(error)
            give_up(place)
        all_jobs.good += not problem
        if problem:
            keep_logs(place.directory, options.keep_logs)
            print(f"{name}: {job}: {problem}", file=sys.stderr, flush=True)
    times, jobs = all_jobs.times, all_jobs.jobs
    figures = f"{statistics.median(times):.1f} s ({max(times):.1f} s)" if times else "-"
    good, agreed = all_jobs.good, all_jobs.agreed
    line = f"| {name} | {all_jobs.faults} | {len(times)} | {figures} | {good} of {jobs} | {agreed} of {jobs} |"
    print(f"{line} {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    return line


def submit(place: Site, fault: Fault) -> str:
    settings = [word for setting in fault.settings for word in ("--set", setting)]
    submitted = place.hosts[0].call("submit", str(place.directory / "job.toml"), *settings)
    if submitted is None:
        raise TimeoutError(f"{place.hosts[0].name} does not accept a job")
    return submitted["id"]


def disturb(place: Site, fault: Fault, job: str, most: int, outcome: Outcome) -> None:
    """Lets the fault occur in a job until it ends, or `most` have occurred in all."""
    hosts = place.hosts
    wait("all hosts train", lambda: all_train(hosts, job))
    checkpoint = None
    while outcome.faults < most:
        shown = lambda: hosts[0].show(job)
        if fault.is_counted:
            wait("a new checkpoint", lambda: shown().get("checkpoint") != checkpoint or has_ended(shown()))
        time.sleep(random.uniform(0.2, 2))
        checkpoint = shown().get("checkpoint")
        victim = fault.victim(leader_first(place, job))
        others = [host for host in hosts if host is not victim]
        observed = [victim] if fault.observes_victim else others
        is_over = lambda: has_ended(others[0].show(job))
        if is_over():
            break
        fault.before(victim)
        moment = time.time()
        fault.begin(victim)
        time.sleep(fault.seconds)
        fault.end(victim)
        outcome.faults += 1
        resumed = lambda: resumed_after(observed, moment)
        if fault.restarts:
            with contextlib.suppress(TimeoutError):
                wait("training", lambda: resumed() is not None or is_over(), 60)
        else:
            time.sleep(LATE_SECONDS)
        if (seconds := resumed()) is not None:
            outcome.times.append(seconds)
        resume_held(hosts, job)
        with contextlib.suppress(TimeoutError):
            wait("all hosts train again", lambda: is_over() or all(host.workers() for host in hosts), 60)


def judge(place: Site, job: str, wanted: str) -> str:
    """What is wrong with a job when it has ended; empty if nothing is."""
    hosts = place.hosts
    resume_held(hosts, job)
    # A host that has joined late may not know the job.
    shown = lambda: [found for host in hosts if (found := host.show(job))]
    wait("the job ends", lambda: all(has_ended(each) for each in shown()), 600)
    shown = shown()
    states = [each.get("state") for each in shown]
    problems = [f"the daemon of {host.name} has died" for host in hosts if host.process.poll() is not None]
    if set(states) != {"succeeded"}:
        problems.append(f"{states}, {[each['reason'] for each in shown if each.get('reason')]}")
    # A host that did not train at the end may name none, or an earlier one, which may be deleted by now.
    checkpoints = sorted(each["checkpoint"] for each in shown if each.get("state") == "succeeded" and each["checkpoint"])
    if not checkpoints or place.storage.model(checkpoints[-1]) != wanted:
        problems.append("other bits" if checkpoints else "no model")
    try:
        wait("workers end", lambda: not any(host.workers() for host in hosts), 5)
    except TimeoutError:
        problems.append(f"workers left: {[host.workers() for host in hosts]}")
    return "; ".join(problems)


def resume_held(hosts: list[DaemonHost], job: str) -> None:
    """A daemon that died twice without a checkpoint in between holds the job."""
    for host in hosts:
        if host.show(job).get("state") == "held":
            host.call("resume", job)


def give_up(place: Site) -> None:
    """Ends all jobs, for the next one."""
    for host in place.hosts:
        if not host.process or host.process.poll() is not None:
            host.start()
        for job in (host.call("list") or {}).get("jobs", []):
            host.call("cancel", job["id"])
    with contextlib.suppress(TimeoutError):
        wait("workers end", lambda: not any(host.workers() for host in place.hosts), 30)


def resumed_after(hosts: list[DaemonHost], moment: float) -> float | None:
    """Seconds from `moment` until the workers of one of the hosts had next restored the model. The others may be spare:
    the number of workers divides the parts of a batch."""
    found = []
    for host in hosts:
        times = (datetime.datetime.fromisoformat(stamp).timestamp() for stamp in RESUMED.findall(host.log.read_text()))
        found += [at - moment for at in times if at > moment]
    return min(found, default=None)


def all_train(hosts: list[DaemonHost], job: str) -> bool:
    steps = [host.show(job).get("progress", {}).get("step", 0) for host in hosts]
    return all(host.workers() for host in hosts) and min(steps) > 0


def has_ended(shown: dict) -> bool:
    return shown.get("state") in ("succeeded", "failed", "cancelled", "held")


def names_one_checkpoint(hosts: list[DaemonHost], job: str) -> bool:
    """Whether all hosts that know a job which has ended show the same checkpoint."""
    return len({found["checkpoint"] for host in hosts if (found := host.show(job))}) == 1


def undisturbed(place: Site) -> str:
    """The model of a run on the first host alone."""
    alone = place.hosts[0]
    alone.start()
    job = alone.call("submit", str(place.directory / "job.toml"))["id"]
    wait("the job ends", lambda: has_ended(alone.show(job)), 600)
    shown = alone.show(job)
    print(f"alone: {shown['state']}, {shown['progress']['step']} steps", file=sys.stderr)
    return place.storage.model(shown["checkpoint"])


def heading(options: argparse.Namespace) -> str:
    flags = f"--faults {options.faults} --hosts {options.hosts} --epochs {options.epochs}"
    return (
        f"# Hosts that train together: faults, {today()}\n\n`bench/hosts.py {flags}` on {commit()}; {machine()}, for all "
        "hosts and the bucket.\n"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faults", type=int, default=20, help="of each kind (default 20)")
    parser.add_argument("--hosts", type=int, default=4, help="3 or more (default 4)")
    parser.add_argument("--epochs", type=int, default=100, help="of each job; 157 steps each (default 100)")
    parser.add_argument("--only", action="append", metavar="NAME", help="kinds with this in their names; repeatable")
    parser.add_argument("--list", action="store_true", help="print the kinds of faults")
    parser.add_argument("--keep-logs", type=pathlib.Path, metavar="DIRECTORY", help="copy the daemons' logs there")
    parser.add_argument("--programs", type=pathlib.Path, default=PROGRAMS)
    parser.add_argument("--out", type=pathlib.Path, help="also write the table to this file")
    options = parser.parse_args()
    enter()
    columns = "| fault | times | restarts | trains again after, median (max) | same bits | same checkpoint shown |"
    lines = [heading(options), columns, "|---|---:|---:|---|---|---|"]
    with room() as directory:
        files = directory / "data"
        files.mkdir()
        programs = options.programs.resolve()
        for number in range(4):
            generate(programs, files / f"train-{number}.parquet", 20_000, number)
        generate(programs, files / "eval.parquet", 4_000, 9)
        (directory / "job.toml").write_text(JOB.format(epochs=options.epochs))
        with site(directory, programs, options.hosts, files) as place:
            if options.list:
                return print("\n".join(faults(place)))
            for host in place.hosts:
                host.state.mkdir()
                sh(f"mount -t tmpfs -o size={STATE_SIZE} tmpfs {host.state}")
            try:
                measure(place, options, lines)
            finally:
                keep_logs(directory, options.keep_logs)
                for host in place.hosts:
                    host.end()
                    quietly(f"umount {host.state}")
    text = "\n".join(lines) + "\n"
    print(text)
    if options.out:
        options.out.write_text(text)


def measure(place: Site, options: argparse.Namespace, lines: list[str]) -> None:
    wanted = undisturbed(place)
    for host in place.hosts[1:]:
        host.start()
    meet(place.hosts)
    for name in faults(place):
        if not options.only or any(part in name for part in options.only):
            lines.append(run_kind(place, name, wanted, options))


if __name__ == "__main__":
    main()
