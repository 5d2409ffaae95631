#!/usr/bin/env python3
"""Speed of several hosts that train one model, and the bytes that they send, beside those of one host.

    cargo build --release --workspace --bins
    sudo python3 bench/hosts_speed.py [--rounds 3] [--hosts 1 2 4] [--links 1gbit 100mbit] [--out bench/results/NAME.md]
    sudo python3 bench/hosts_speed.py --rounds 1 --measurements FILE    # one round now, more later
    sudo python3 bench/hosts_speed.py --hosts 4 --models dense --reducers 0 2 4 --cpu 20    # with reducers and without

Each host is a network namespace of this machine (`host_lab.py`), with a daemon that has one worker with one thread. A
cgroup gives each host the same share of a CPU (`--cpu`, in percent), so that four hosts fit on two CPUs and the speed
of one host does not depend on the others. A host gets its share in slices of 10 ms, and waits for the rest of each. A
token bucket limits its link in each direction. Needs root, UCX (Debian package libucx0), and the programs of the
package iproute2.

The batch is that of all hosts together (`--batch`). In each round, a job with each number of hosts trains each model
with each precision of gradients, and is measured on each link for `--seconds`, after some steps that do not count.
Rounds alternate all of them.

* *rows/s*: whole steps of the first host, from one report of its progress to another; min / median / max over the
  rounds.
* *efficiency*: the median rate of N hosts, as a part of N times that of one host.
* *sent*: bytes that leave a host with a worker for each step, on average over these hosts, with headers and all other traffic;
  median.
* *bound*: bytes of gradients that a host has to send in a step,

      2 (N - 1) / N  x  D x w  +  (N - 1)  x  sum over tables of R x (4 + W x w)

  or, if there are reducers,

      D x w  +  (N - 1)  x  sum over tables of R x (4 + W x w)

  with D the numbers in layers, w the bytes of a number (4, or 2 for bf16), R the rows of a table that one of N equal
  parts of a batch touches, and W the table's width. A sum passes each number on once to its owner and once back, where
  owners are the hosts themselves or reducers; the rows of a table, with their ids, go to every other host. R is the mean
  of random parts of the data, hashed at random.
* *link*: the median rate of sending, as a part of the limit. The rest of the time is that of computing, waiting and
  latency.

The models: "dense", two tables of 1,000 x 16 and layers of 1024, 512 and 256; "sparse", eight tables of 50,000 x 32 and
a layer of 16."""

import argparse
import collections
import contextlib
import csv
import itertools
import json
import pathlib
import random
import re
import statistics
import sys
import time
import zlib

from host_lab import PROGRAMS, DaemonHost, Site, commit, enter, generate, machine, meet, room, site, today, wait

# Whole batches, in as many files as lanes, so that all hosts have equal parts of a batch.
ROWS = 163_840
LANES = 8
SLICE_MICROSECONDS = 10_000
CGROUPS = pathlib.Path("/sys/fs/cgroup")
CGROUP = "millstream-host-{}"
PARAMETERS = re.compile(r"(\d+) parameters;")
BITS = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}
LINKS = {"1gbit": "1 Gbit/s", "100mbit": "100 Mbit/s"}
BYTES = {"fp32": 4, "bf16": 2}
WARM_UP_SECONDS = 1.5
# Columns, rows and width of tables, and layers.
MODELS = {
    "dense": (["c15", "c16"], 1_000, 16, [1024, 512, 256]),
    "sparse": (["c3", "c4", "c7", "c10", "c12", "c15", "c16", "c21"], 50_000, 32, [16]),
}

JOB = """name = "speed"
[data]
train = ["s3://test/train-*.parquet"]
batch_size = {batch}
shuffle_rows = 8192
lanes = {lanes}
epochs = 100000
[label]
column = "clicked"
[features]
{features}
[model]
kind = "wide_deep"
deep.features = {names}
deep.embedding_dim = {width}
deep.hidden = {layers}
deep.optimizer = {{ kind = "adagrad", learning_rate = 0.01 }}
[training]
threads = 1
[checkpoint]
directory = "s3://test/runs"
every_steps = 1000000000
keep = 1
[workers]
max = {hosts}
min = {hosts}
gradient_precision = "{precision}"
reducers = {reducers}
"""


def job(model: str, hosts: int, reducers: list[str], precision: str, batch: int) -> str:
    columns, buckets, width, layers = MODELS[model]
    features = "\n".join(f'{name} = {{ kind = "hashed", column = "{name}", buckets = {buckets} }}' for name in columns)
    names = json.dumps(columns)
    return JOB.format(
        batch=batch, lanes=LANES, features=features, names=names, width=width, layers=layers, hosts=hosts,
        precision=precision, reducers=json.dumps(reducers),
    )


def controller() -> tuple[pathlib.Path, bool]:
    """The directory of the CPU controller, and whether it is of version 2."""
    is_second = (CGROUPS / "cgroup.controllers").exists()
    return (CGROUPS if is_second else CGROUPS / "cpu"), is_second


def limit_cpu(host: DaemonHost, percent: float) -> tuple:
    """The command that starts its daemon in a new cgroup with this share of a CPU."""
    root, is_second = controller()
    group = root / CGROUP.format(host.number)
    if is_second:
        (root / "cgroup.subtree_control").write_text("+cpu")
    group.mkdir(exist_ok=True)
    quota = int(SLICE_MICROSECONDS * percent / 100)
    if is_second:
        (group / "cpu.max").write_text(f"{quota} {SLICE_MICROSECONDS}")
    else:
        (group / "cpu.cfs_period_us").write_text(str(SLICE_MICROSECONDS))
        (group / "cpu.cfs_quota_us").write_text(str(quota))
    return ("sh", "-c", f'echo $$ > {group}/cgroup.procs; exec "$@"', "sh")


def remove_cgroups() -> None:
    root, _ = controller()
    for group in root.glob(CGROUP.format("*")):
        # Its last processes may still be ending.
        for _ in range(50):
            with contextlib.suppress(OSError):
                group.rmdir()
                break
            time.sleep(0.1)


def measure_round(place: Site, options: argparse.Namespace, number: int) -> list[dict]:
    found = []
    for model, hosts, reducers in itertools.product(options.models, options.hosts, options.reducers):
        if hosts == 1 and reducers:
            continue
        for precision in BYTES if hosts > 1 else ["fp32"]:
            print(f"round {number}: {model}, {hosts} hosts, {reducers} reducers, {precision}", file=sys.stderr)
            found += measure_job(place, options, model, (hosts, reducers), precision)
    return found


def measure_job(
    place: Site, options: argparse.Namespace, model: str, counts: tuple[int, int], precision: str
) -> list[dict]:
    """Trains a job on as many hosts, with as many reducers, and measures it on each link."""
    count, reducers = counts
    reducing = place.hosts[len(place.hosts) - reducers:]
    file = place.directory / "job.toml"
    file.write_text(job(model, count, [host.name for host in reducing], precision, options.batch))
    first = place.hosts[0]
    submitted = first.call("submit", str(file))
    if submitted is None:
        sys.exit(f"bench/hosts_speed.py: {first.name} does not accept the job")
    identity = submitted["id"]
    step = lambda: first.show(identity).get("progress", {}).get("step", 0)
    found = []
    try:
        wait("it trains", lambda: step() > 0)
        taking_part = [host for host in place.hosts if host.workers()]
        training = [host for host in taking_part if host not in reducing]
        if (len(training), len(taking_part)) != (count, count + reducers):
            sys.exit(f"bench/hosts_speed.py: {len(taking_part)} hosts take part, and {len(training)} train")
        for link in options.links if count > 1 else ["none"]:
            for host in taking_part:
                host.limit(link)
            time.sleep(WARM_UP_SECONDS)
            began = next_step(step, training)
            time.sleep(options.seconds)
            ended = next_step(step, training)
            steps, seconds, sent = (after - before for before, after in zip(began, ended))
            found.append({
                "model": model, "hosts": count, "reducers": reducers, "precision": precision, "link": link, "batch": options.batch,
                "rate": steps * options.batch / seconds, "sent": sent / steps / count, "parameters": parameters(first),
            })
            rate, megabytes = found[-1]["rate"], found[-1]["sent"] / 1e6
            print(f"    {link}: {rate:,.0f} rows/s, {megabytes:.2f} MB/step", file=sys.stderr)
    finally:
        for host in place.hosts:
            host.limit("none")
        first.call("cancel", identity)
        wait("workers end", lambda: not any(host.workers() for host in place.hosts))
    return found


def next_step(step, hosts: list[DaemonHost]) -> tuple[int, float, int]:
    """Waits for the next report of a step. Returns the step, the time, and the bytes that these hosts have sent."""
    before = now = step()
    while now <= before:
        time.sleep(0.02)
        now = step()
    return now, time.monotonic(), sum(host.bytes_sent() for host in hosts)


def parameters(host: DaemonHost) -> int:
    """Those of its last job, by its log."""
    return int(PARAMETERS.findall(host.log.read_text())[-1])


def touched(directory: pathlib.Path, batch: int, hosts: int, column: str, buckets: int) -> float:
    """The rows of a table that a part of a batch touches: mean of random parts."""
    draw = random.Random(1)
    with (directory / "train.csv").open() as file:
        values = [row[column] for row in csv.DictReader(file)]
    sample = lambda: {zlib.crc32(value.encode()) % buckets for value in draw.sample(values, batch // hosts) if value}
    return statistics.mean(len(sample()) for _ in range(20))


def bound(directory: pathlib.Path, line: dict) -> float:
    """Bytes of gradients that a host has to send in a step."""
    columns, buckets, width, _ = MODELS[line["model"]]
    hosts, size = line["hosts"], BYTES[line["precision"]]
    layers = line["parameters"] - len(columns) * buckets * width
    rows = sum(touched(directory, line["batch"], hosts, column, buckets) for column in columns)
    passes = 1 if line["reducers"] else 2 * (hosts - 1) / hosts
    return passes * layers * size + (hosts - 1) * rows * (4 + width * size)


def bits(link: str) -> float:
    number, unit = re.fullmatch(r"(\d+)(\w+)", link).groups()
    return int(number) * BITS[unit]


def table(directory: pathlib.Path, found: list[dict]) -> list[str]:
    groups = collections.defaultdict(list)
    for line in found:
        groups[line["model"], line["hosts"], line["reducers"], line["precision"], line["link"]].append(line)
    median = lambda lines, key: statistics.median(line[key] for line in lines)
    alone = {model: median(lines, "rate") for (model, hosts, *_), lines in groups.items() if hosts == 1}
    columns = "| model | hosts | reducers | link | gradients | rows/s | efficiency | sent, MB/step | bound, MB/step | link used |"
    rows = [columns, "|---|---:|---:|---|---|---:|---:|---:|---:|---:|"]
    bounds = {}
    for key in sorted(groups, key=lambda group: (group[0], group[1], group[4], group[3], group[2])):
        model, hosts, reducers, precision, link = key
        lines = groups[key]
        rates = [line["rate"] for line in lines]
        rate, sent = median(lines, "rate"), median(lines, "sent")
        spread = f"{min(rates):,.0f} / {rate:,.0f} / {max(rates):,.0f}"
        if hosts == 1:
            rows.append(f"| {model} | 1 | - | - | - | {spread} | 1.00 | - | - | - |")
            continue
        least = bounds.setdefault((model, hosts, reducers > 0, precision), bound(directory, lines[0]))
        efficiency = f"{rate / (hosts * alone[model]):.2f}" if model in alone else "-"
        used = sent * rate / lines[0]["batch"] * 8 / bits(link)
        rows.append(
            f"| {model} | {hosts} | {reducers or '-'} | {LINKS.get(link, link)} | {precision} | {spread} | {efficiency} "
            f"| {sent / 1e6:.2f} | {least / 1e6:.2f} | {used:.0%} |"
        )
    return rows


def heading(options: argparse.Namespace, rounds: int) -> str:
    flags = f"--batch {options.batch} --cpu {options.cpu:g} --seconds {options.seconds:g}"
    return (
        f"# Hosts that train together: speed, {today()}\n\n`bench/hosts_speed.py {flags}`, {rounds} rounds, on "
        f"{commit()}; {machine()}. Each host has {options.cpu:g} % of a CPU; a batch of all hosts has "
        f"{options.batch:,} rows.\n"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="0 prints the table of --measurements (default 3)")
    parser.add_argument("--hosts", type=int, nargs="+", default=[1, 2, 4], help="numbers of hosts (default 1 2 4)")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS), help="models (default both)")
    parser.add_argument("--reducers", type=int, nargs="+", default=[0], help="numbers of further hosts that reduce (default 0)")
    parser.add_argument("--links", nargs="+", default=["1gbit", "100mbit"], help="rates as of tc (default 1gbit 100mbit)")
    parser.add_argument("--batch", type=int, default=4096, help="rows of a batch of all hosts (default 4096)")
    parser.add_argument("--cpu", type=float, default=40, help="percent of a CPU for each host (default 40)")
    parser.add_argument("--seconds", type=float, default=6, help="of each measurement (default 6)")
    parser.add_argument("--measurements", type=pathlib.Path, help="add to the measurements in this file, and print all")
    parser.add_argument("--programs", type=pathlib.Path, default=PROGRAMS)
    parser.add_argument("--out", type=pathlib.Path, help="also write the table to this file")
    options = parser.parse_args()
    enter(after=remove_cgroups)
    programs, found = options.programs.resolve(), []
    if options.measurements and options.measurements.exists():
        found = json.loads(options.measurements.read_text())
    with room() as directory:
        files = directory / "data"
        files.mkdir()
        generate(programs, files / "train-*.parquet", ROWS, 1, LANES)
        generate(programs, directory / "train.csv", ROWS, 1)
        if options.rounds:
            with site(directory, programs, max(options.hosts) + max(options.reducers), files) as place:
                for host in place.hosts:
                    host.start(limit_cpu(host, options.cpu))
                meet(place.hosts)
                for number in range(options.rounds):
                    found += measure_round(place, options, number + 1)
                    if options.measurements:
                        options.measurements.write_text(json.dumps(found))
        kind = lambda line: tuple(line[key] for key in ("model", "hosts", "reducers", "precision", "link"))
        kinds = collections.Counter(map(kind, found))
        rounds = max(kinds.values(), default=0)
        text = "\n".join([heading(options, rounds), *table(directory, found)]) + "\n"
    print(text)
    if options.out:
        options.out.write_text(text)


if __name__ == "__main__":
    main()
