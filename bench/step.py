#!/usr/bin/env python3
"""Compares one training step from memory with PyTorch and TensorFlow: same model, initial weights, batches, optimizer
and number of threads, fp32, in the same run.

    python -m venv target/bench-python && target/bench-python/bin/pip install -r bench/requirements.txt
    target/bench-python/bin/python bench/step.py [--rounds 5] [--fbgemm PYTHON] [--only WORD ...] [--out bench/results/NAME.md]

Wide & Deep and DLRM with 13 numbers and 26 categories, layers of 256, 128, 64 and 1, Adagrad (for tables, on the rows of
a batch only), tables of 100,000 x 16 and 1,000,000 x 64, batches of 1024 and 4096. `bench/step_rival_torch.py` and
`bench/step_rival_tf.py` describe the rivals; `--fbgemm` names a Python with fbgemm-gpu-cpu and the matching torch,
otherwise that rival is skipped.

First all entrants train the same 10 batches from the same weights with small tables; their losses must agree to 5e-5.
Then they alternate in turns of one second, so that a slow phase of the machine affects all of them. With small tables the
programs stay alive between rounds. Large tables need 13.3 GB with Adagrad's state, so one program runs at a time, started
again for each round, and only the rivals that were near the best with small tables take part (Keras would need more than
24 GiB). Contests that exceed the available memory are skipped with a message.

The floor is the time of the matrix products' FLOPs at the rate of a GEMM library on all threads, plus the time of the
embeddings' bytes at memory bandwidth; both are measured in each round, and the best counts. See
`trainer/examples/step_speed/`. Figures are examples/s, min / median / max over the rounds; ratios are of medians.

5 rounds on two idle cores take about 15 minutes with small tables, and 25 with large ones (2 rounds of 3 turns).
"""

import argparse
import datetime
import json
import os
import pathlib
import platform
import statistics
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
MODELS = {"wide_deep": "Wide & Deep", "dlrm": "DLRM"}
SMALL, LARGE = (100_000, 16), (1_000_000, 64)
BATCHES = [1024, 4096]
TORCH = ["bags", "batched", "manual", "compiled"]
TENSORFLOW = ["function", "jit", "keras", "keras-jit"]
RIVALS = {
    SMALL: [*(f"torch {name}" for name in TORCH), "torch fbgemm", *(f"tf {name}" for name in TENSORFLOW)],
    LARGE: ["torch manual", "torch compiled", "torch fbgemm", "tf function", "tf jit"],
}
# Tolerance of losses, number of steps, and ids per table of the comparison.
AGREEMENT, STEPS, CHECKED_IDS = 5e-5, 10, 2000
# Time limits in seconds: to start, compile and step once; and to answer.
START, TURN = 600, 120
OURS = "Millstream"


class Entrant:
    """A program that builds its model and then runs on request."""

    def __init__(self, name: str, options: argparse.Namespace, shape: list[str], threads: int):
        self.name, self.threads, self.process = name, threads, None
        self.command = [*program(name, options), *shape, "--threads", str(threads)]
        if name in (OURS, "floor"):
            self.command += ["--json", "--wait"]

    def read(self, seconds: float) -> dict:
        import select

        found, _, _ = select.select([self.process.stdout], [], [], seconds)
        line = self.process.stdout.readline() if found else b""
        if not line:
            self.stop()
            raise RuntimeError(f"{' '.join(map(str, self.command))}: no answer within {seconds:.0f} s")
        return json.loads(line)

    def start(self) -> dict:
        environment = {**os.environ, "OMP_NUM_THREADS": str(self.threads)}
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        self.process = subprocess.Popen([str(word) for word in self.command], env=environment, bufsize=0, **pipes)
        return {} if self.name == "floor" else self.read(START)

    def turn(self) -> dict:
        self.process.stdin.write(b"\n")
        return self.read(TURN)

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None


def program(name: str, options: argparse.Namespace) -> list:
    if name == OURS:
        return [options.step_speed]
    if name == "floor":
        return [options.step_speed, "--rates"]
    family, variant = name.split()
    python = options.fbgemm if variant == "fbgemm" else sys.executable
    return [python, ROOT / "bench" / f"step_rival_{family}.py", variant]


def names(rivals: list[str], options: argparse.Namespace) -> list[str]:
    return [name for name in rivals if name != "torch fbgemm" or options.fbgemm]


def losses(name: str, model: str, options: argparse.Namespace) -> list[float]:
    """The losses of the first steps from the shared initial weights."""
    shape = ["--model", model, "--ids", CHECKED_IDS, "--dim", SMALL[1], "--batch", 1024, "--threads", 2, "--losses", STEPS]
    command = [str(word) for word in [*program(name, options), *shape]]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=START)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.decode()[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])["losses"]


def check(model: str, options: argparse.Namespace) -> list[str]:
    """Fails unless all losses agree."""
    ours, worst = losses(OURS, model, options), {}
    assert len(ours) == STEPS and ours[-1] < ours[0], f"{model}: nothing was learned: {ours}"
    for name in names(RIVALS[SMALL], options):
        theirs = losses(name, model, options)
        worst[name] = max(abs(b - a) / a for a, b in zip(ours, theirs, strict=True))
        assert worst[name] < AGREEMENT, f"{model}: {name} lost {theirs}, Millstream {ours}"
        print(f"{model}: {name} agrees to {worst[name]:.1e}", file=sys.stderr, flush=True)
    return [f"{MODELS[model]}: losses of {STEPS} steps agree to {max(worst.values()):.0e}."]


def contest(model: str, size: tuple[int, int], batch: int, options: argparse.Namespace) -> list[str]:
    ids, dim = size
    title = f"### {MODELS[model]}, 26 tables of {ids:,} x {dim}, batch {batch}"
    needed, free = 2 * 4 * 26 * ids * (dim + 1) / 2**30 + 3, available_gib()
    if size == LARGE and free < needed:
        return [title, "", f"Left out: it takes {needed:.0f} GiB, and {free:.0f} are free.", ""]
    shape = ["--model", model, "--ids", str(ids), "--dim", str(dim), "--batch", str(batch), "--seconds", str(options.seconds)]
    one = f"{OURS}, 1 thread"
    running = {OURS: Entrant(OURS, options, shape, options.threads), one: Entrant(OURS, options, shape, 1)}
    running |= {name: Entrant(name, options, shape, options.threads) for name in names(RIVALS[size], options)}
    floor = Entrant("floor", options, [], options.threads)
    rates: dict[str, list[float]] = {name: [] for name in running}
    machine, work, failed = [], {}, []
    stays = size != LARGE
    rounds, turns = (options.rounds, 1) if stays else (max(1, options.rounds // 2), 3)
    try:
        for number in range(rounds):
            floor.process or floor.start()
            machine.append(floor.turn())
            for name, entrant in running.items():
                if name in failed:
                    continue
                try:
                    if entrant.process is None:
                        ready = entrant.start()
                        work = work or {key: ready[key] for key in ("flops", "bytes") if key in ready}
                    for _ in range(turns):
                        rates[name].append(entrant.turn()["rate"])
                        print(f"{title[4:]}: {name}, round {number + 1}: {rates[name][-1]:,.0f}", file=sys.stderr, flush=True)
                except (RuntimeError, BrokenPipeError, json.JSONDecodeError) as error:
                    if name in (OURS, one):
                        raise
                    print(f"skipped {name}: {error}", file=sys.stderr, flush=True)
                    failed.append(name)
                if not stays:
                    entrant.stop()
    finally:
        for entrant in [floor, *running.values()]:
            entrant.stop()
    return table(title, rates, machine, work, one, options.threads)


def table(title: str, rates: dict[str, list[float]], machine: list[dict], work: dict, one: str, threads: int) -> list[str]:
    flops, memory = (max(found[key] for found in machine) for key in ("flops_per_second", "bytes_per_second"))
    fastest = max(found["fastest_flops_per_second"] for found in machine)
    floor = 1 / (work["flops"] / flops + work["bytes"] / memory)
    medians = {name: statistics.median(found) for name, found in rates.items() if found}
    ours, rivals = medians[OURS], {name: rate for name, rate in medians.items() if name not in (OURS, one)}
    lines = [title, "", "| | examples/s, min / median / max | ratio | of the floor |", "|---|---|---|---|"]
    for name, median in sorted(medians.items(), key=lambda entry: (entry[0] not in (OURS, one), -entry[1])):
        found = rates[name]
        ratio = "" if name in (OURS, one) else f"{ours / median:.2f}x"
        share = "" if name == one else f"{median / floor:.0%}"
        lines.append(f"| {name} | {min(found):,.0f} / {median:,.0f} / {max(found):,.0f} | {ratio} | {share} |")
    best = max(rivals, key=rivals.get) if rivals else None
    lines += ["", f"An example takes {work['flops'] / 1e3:,.0f} kFLOP and {work['bytes'] / 1e3:.1f} kB; the machine does {flops / 1e9:.0f} GFLOP/s and {memory / 1e9:.0f} GB/s: the floor is {floor:,.0f} examples/s. Products as Millstream makes them: {fastest / 1e9:.0f} GFLOP/s."]
    if best:
        lines += [f"Against the best rival, {best}: {ours / rivals[best]:.2f}x (wanted: 2x). Of the floor: {ours / floor:.0%} (wanted: 60%). {threads} threads against one: {ours / medians[one]:.2f}x (wanted, of two: 1.8x)."]
    return lines + [""]


def available_gib() -> float:
    line = next(line for line in open("/proc/meminfo") if line.startswith("MemAvailable"))
    return int(line.split()[1]) / 2**20


def machine() -> str:
    model = next((line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")), "")
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return f"{os.cpu_count()} cores of {model or platform.processor()}, {memory:.0f} GiB, {platform.system()}, Python {platform.python_version()}"


def versions(options: argparse.Namespace) -> str:
    from importlib.metadata import version

    found = [f"{package} {version(package)}" for package in ("torch", "tensorflow-cpu", "keras", "numpy")]
    if options.fbgemm:
        code = "from importlib.metadata import version as v; print(f'fbgemm-gpu-cpu {v(\"fbgemm-gpu-cpu\")} with torch {v(\"torch\")}')"
        found.append(subprocess.run([options.fbgemm, "-c", code], check=True, stdout=subprocess.PIPE, text=True).stdout.strip())
    return ", ".join(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0, help="duration of a turn")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--fbgemm", type=pathlib.Path, help="a Python with fbgemm-gpu-cpu")
    parser.add_argument("--only", nargs="*", default=[], help="any of: small large wide_deep dlrm 1024 4096 check")
    parser.add_argument("--unchecked", action="store_true", help="skip the comparison of losses")
    parser.add_argument("--step-speed", type=pathlib.Path, help="the built example; built by default")
    parser.add_argument("--out", type=pathlib.Path, help="also write the report here")
    options = parser.parse_args()
    if options.step_speed is None:
        subprocess.run(["cargo", "build", "--release", "-p", "millstream-trainer", "--example", "step_speed"], check=True, cwd=ROOT)
        options.step_speed = ROOT / "target" / "release" / "examples" / "step_speed"
    lines = [
        f"## One step from memory, {options.threads} threads, {options.rounds} rounds",
        "",
        f"{datetime.date.today()}; {machine()}; {versions(options)}.",
        f"Command: `python bench/step.py {' '.join(sys.argv[1:])}`.",
        "",
    ]
    contests = [
        (model, size, batch)
        for size, word in ((SMALL, "small"), (LARGE, "large"))
        for model in MODELS
        for batch in BATCHES
        if set(options.only) - {"check"} <= {word, model, str(batch)} and options.only != ["check"]
    ]
    for model in MODELS:
        if not options.unchecked and (model in {contest[0] for contest in contests} or options.only == ["check"]):
            lines += [*check(model, options), ""]
    for model, size, batch in contests:
        lines += contest(model, size, batch, options)
        if options.out:
            options.out.parent.mkdir(parents=True, exist_ok=True)
            options.out.write_text("\n".join(lines))
    print("\n".join(lines))


if __name__ == "__main__":
    main()
