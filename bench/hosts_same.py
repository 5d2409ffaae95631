#!/usr/bin/env python3
"""Whether a model is the same, on however many hosts it trains: the examples, on 1, 2 and 4 hosts, with the same global batch.

    cargo build --release --workspace --bins
    sudo python3 bench/hosts_same.py [--rows 200000] [--only NAME] [--programs target/release] [--out bench/results/NAME.md]

Each host is a network namespace with its own process ids on one bridge of this machine (`host_lab.py`), with a daemon that has one worker.
Data, runs and checkpoints are in a bucket, of the test server of the repository. Needs root and the package iproute2.

Each example (Census Income with its data, and synthetic clicks) trains to its end on each number of hosts, twice: as it is, and with
`workers.reproducible = 4`. The report has the number of steps, the final AUC, how far the log loss of the held-out rows is from that of
one host, relative to it (after the first `--every` steps, and at most), and whether the tensors of the final checkpoint have the same bits.

Sums in another order differ in their last digits. After some hundred steps, such a difference decides whether a unit of the network is
active for a row, and the runs drift apart. So the first figure shows whether they train the same.
"""

import argparse
import pathlib
import shutil
import sys

import host_lab
from host_lab import PROGRAMS, ROOT, Site

COUNTS = (1, 2, 4)
EXAMPLES = ("census", "clicks")
ENDED = ("succeeded", "failed", "cancelled", "held")


def files_of(example: str, directory: pathlib.Path, rows: int, programs: pathlib.Path) -> dict[str, str]:
    """Puts the data of an example into `directory`; returns its keys of the job file."""
    place = directory / example
    if example == "census":
        shutil.copytree(ROOT / "examples" / "census" / "data", place)
        return {"train": f"s3://test/{example}/adult-train-*.parquet", "eval": f"s3://test/{example}/adult-test.parquet"}
    place.mkdir()
    for number in range(4):
        host_lab.generate(programs, place / f"train-{number}.parquet", rows // 4, number)
    host_lab.generate(programs, place / "eval.parquet", rows // 10, 9)
    return {"train": f"s3://test/{example}/train-*.parquet", "eval": f"s3://test/{example}/eval.parquet"}


def settings(keys: dict[str, str], count: int, every: int, more: list[str]) -> list[str]:
    own = [f'data.train=["{keys["train"]}"]', f'data.eval=["{keys["eval"]}"]', "checkpoint.directory=s3://test/runs",
           "data.lanes=8", "data.epochs=4", f"workers.max={count}", f"workers.min={count}", "training.threads=1",
           f"evaluation.every_steps={every}"]
    return [word for setting in own + more for word in ("--set", setting)]


def train(site: Site, example: str, keys: dict[str, str], count: int, every: int, more: list[str]) -> dict:
    """Trains on the first `count` hosts, and returns what is left of it."""
    first = site.hosts[0]
    submitted = first.call("submit", str(ROOT / "examples" / example / "job.toml"), *settings(keys, count, every, more))
    if submitted is None:
        sys.exit(f"{example}: the job is refused; see {first.log}")
    job = submitted["id"]
    host_lab.wait(f"{example} ends on {count} hosts", lambda: first.show(job).get("state") in ENDED, 900)
    ended = first.show(job)
    if ended["state"] != "succeeded":
        sys.exit(f"{example} on {count} hosts: {ended['state']}: {ended.get('reason')}")
    steps = ended["progress"]["step"]
    evaluations = first.call("history", job)["evaluations"]
    losses = {evaluation["step"]: evaluation["metrics"]["log_loss"] for evaluation in evaluations}
    return {"steps": steps, "auc": ended["eval"]["auc"], "losses": losses, "model": site.storage.model(ended["checkpoint"])}


def difference(alone: dict[int, float], several: dict[int, float]) -> str:
    """The first and the largest one of a loss after the same step, relative to one host, and of how many."""
    if alone.keys() != several.keys():
        return "other steps"
    found = [abs(alone[step] - several[step]) / alone[step] for step in sorted(alone)]
    return f"{found[0]:.1e}, {max(found):.1e} of {len(found)}"


def rows_of(site: Site, example: str, keys: dict[str, str], every: int) -> list[str]:
    lines = []
    for name, more in (("as it is", []), ("`reproducible = 4`", ["workers.reproducible=4"])):
        alone = None
        for count in COUNTS:
            found = train(site, example, keys, count, every, more)
            alone = alone or found
            bits = "-" if count == 1 else ("yes" if found["model"] == alone["model"] else "no")
            apart = "-" if count == 1 else difference(alone["losses"], found["losses"])
            lines.append(f"| {example}, {name} | {count} | {found['steps']:,} | {found['auc']:.6f} | {apart} | {bits} |")
            print(lines[-1], file=sys.stderr, flush=True)
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=200_000, help="of the clicks for training")
    parser.add_argument("--every", type=int, default=32, help="steps between evaluations")
    parser.add_argument("--only", choices=EXAMPLES)
    parser.add_argument("--programs", type=pathlib.Path, default=PROGRAMS)
    parser.add_argument("--out", type=pathlib.Path)
    options = parser.parse_args()
    programs = options.programs.resolve()
    host_lab.enter()
    lines = ["| example | hosts | steps | AUC | losses differ by: first, at most | same bits |", "|---|---|---|---|---|---|"]
    with host_lab.room() as directory:
        bucket = directory / "bucket"
        bucket.mkdir()
        examples = [options.only] if options.only else EXAMPLES
        keys = {example: files_of(example, bucket, options.rows, programs) for example in examples}
        with host_lab.site(directory, programs, max(COUNTS), bucket) as site:
            for host in site.hosts:
                host.start()
            host_lab.meet(site.hosts)
            for example in examples:
                lines += rows_of(site, example, keys[example], options.every)
    text = (f"# The same model on 1, 2 and 4 hosts, {host_lab.today()}\n\n`bench/hosts_same.py --rows {options.rows}` on "
            f"{host_lab.commit()}; {host_lab.machine()}.\n\n" + "\n".join(lines) + "\n")
    print(text)
    if options.out:
        options.out.write_text(text)


if __name__ == "__main__":
    main()
