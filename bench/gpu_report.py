#!/usr/bin/env python3
"""Prints the figures of `bench/gpu run` as Markdown for bench/results: `bench/gpu_report.py FIGURES.jsonl...`.

Merges the files of several runs; the last result of a check counts. Each figure stands beside its target. The roofline of
a table is reported twice: counting all looked-up rows, as `millstream profile` does on a GPU, and counting distinct rows,
as if each were read from memory once.
"""

import json
import pathlib
import statistics
import sys

# Targets on one H200.
WANTED_RATE = {"dlrm": 10e6, "wide_deep": 15e6}
WANTED_RATIO, WANTED_WAIT, WANTED_AUC, MLPERF_RATE = 3.0, 0.02, 0.0005, 1.9e6
WANTED_SHARE = {"gather": 0.70, "linear_forward": 0.70, "step_rows": 0.50}
# Elementwise operations on matrices.
ELEMENTWISE = {"add", "blend", "clear", "copy_columns", "copy_rows", "cross_forward", "cross_backward", "dropout", "loss", "multiply", "sigmoid", "step"}
WANTED_ELEMENTWISE = 0.85
# Shorter operations are not reported, except those on tables.
LEAST_SHARE = 0.005
# Bytes per element of Adagrad's state.
STATE_BYTES = 4


class Figures:
    """All lines by part."""

    def __init__(self, paths: list[str]):
        lines = [json.loads(line) for path in paths for line in pathlib.Path(path).read_text().splitlines()]
        self.hosts = [line for line in lines if line["part"] == "host"]
        self.checks = {line["check"]: line for line in lines if "check" in line}
        # A repeated measurement replaces the earlier one.
        self.results: dict[str, list[dict]] = {}
        self.explained = {line["name"]: line["explained"] for line in lines if "explained" in line}
        open_name = None
        for line in lines:
            if "result" in line:
                if line["name"] != open_name:
                    self.results[line["name"]] = []
                open_name = line["name"]
                self.results[open_name].append(line["result"])
            elif "check" in line:
                open_name = None

    def names(self, *starts: str) -> list[str]:
        return [name for name in self.results if name.startswith(starts)]


def verdict(found: float, wanted: float, at_most: bool = False) -> str:
    return "yes" if (found < wanted if at_most else found >= wanted) else "no"


def spread(rates: list[float]) -> str:
    return f"{min(rates):,.0f} / {statistics.median(rates):,.0f} / {max(rates):,.0f}"


def table(titles: list[str], rows: list[list[str]]) -> list[str]:
    return ["| " + " | ".join(titles) + " |", "|---" * len(titles) + "|", *("| " + " | ".join(row) + " |" for row in rows), ""] if rows else []


def head(figures: Figures) -> list[str]:
    lines = ["## On a GPU", ""]
    for host in figures.hosts:
        rehearsal = " A rehearsal: nothing here was measured on a GPU." if "bench/gpu try" in host["command"] else ""
        lines.append(f"{host['date']}: GPU {host['gpu']}; {host['cpu']}, {host['kernel']}; `{host['command']}` of {host['commit'][:12] or 'an unknown commit'}.{rehearsal}")
    devices = {json.dumps(line["device"]) for measured in figures.results.values() for line in measured if "device" in line}
    for device in map(json.loads, sorted(devices)):
        libraries = ", ".join(f"{library['library']} {library['version']}" for library in device["libraries"])
        lines.append(f"Computed on {device['text']}{': ' + libraries if libraries else ''}.")
    return lines + [""]


def checks(figures: Figures) -> list[str]:
    rows = []
    for name, check in figures.checks.items():
        why = check.get("why") or f"{check['seconds']} s"
        rows.append([name, check["ended"], why])
    return ["### What was run", "", *table(["", "ended", ""], rows)]


def parted(lines: list[dict]) -> tuple[dict, list[float], list[dict], dict]:
    """A measurement of steps: work per example, rates, operations and the device's limits."""
    work = next((line for line in lines if "rows" in line), {})
    rates = [line["rate"] for line in lines if "rate" in line]
    return work, rates, [line for line in lines if "operation" in line], next((line for line in lines if "floors" in line), {})


def floor(work: dict, floors: dict) -> float:
    """The bound of examples/s, counting only matrix products and table bytes, one after the other."""
    return 1 / (work["flops"] / floors["flops_per_second"] + work["bytes"] / floors["bytes_per_second"])


def steps(figures: Figures) -> list[str]:
    best = {model: rivals(figures, model) for model in WANTED_RATE}
    lines, rows, roofs = ["### Steps from memory", ""], [], []
    for name in figures.names("dlrm in", "wide_deep in"):
        work, rates, operations, roof = parted(figures.results[name])
        if not rates or not roof:
            continue
        model, median, floors = name.split()[0], statistics.median(rates), roof["floors"]
        least = sum(operation["least_seconds"] for operation in operations)
        examples = roof["steps"] * work["batch"]
        rival = best[model]
        ratio = f"{median / max(rival):.2f}x ({verdict(median / max(rival), WANTED_RATIO)})" if rival and "bf16" in name else ""
        rows.append([name, spread(rates), f"{WANTED_RATE[model]:,.0f}: {verdict(median, WANTED_RATE[model])}", ratio, f"{median / floor(work, floors):.0%}", f"{median * least / examples:.0%}"])
        roofs.append(f"{name}: an example takes {work['flops'] / 1e6:.2f} MFLOP and {work['bytes'] / 1e3:.1f} kB of tables; the device copies {floors['bytes_per_second'] / 1e12:.3f} TB/s and multiplies {floors['flops_per_second'] / 1e12:.1f} TFLOP/s: floor {floor(work, floors):,.0f} examples/s.")
    titles = ["", "examples/s, min / median / max", "wanted", f"of PyTorch's (wanted: {WANTED_RATIO:.0f}x)", "of the floor", "of all operations' floors"]
    lines += table(titles, rows) + [line for roof in roofs for line in (roof, "")]
    for name in figures.names("PyTorch: "):
        found = [[line["variant"], spread(line["rates"]) if "rates" in line else f"failed: {line['failed'][-120:]}".replace("\n", " ")] for line in figures.results[name]]
        version = next((line["torch"] for line in figures.results[name] if "torch" in line), "")
        lines += [f"{name}, torch {version}, batches in the device's memory (ours come from the host's):", "", *table(["", "examples/s, min / median / max"], found)]
    return lines if len(lines) > 2 else []


def rivals(figures: Figures, model: str) -> list[float]:
    """The median rate of each variant."""
    results = figures.results.get(f"PyTorch: {model} in bf16", [])
    return [statistics.median(line["rates"]) for line in results if "rates" in line]


def mlperf(figures: Figures) -> list[str]:
    rows = []
    for name in figures.names("DLRM-DCNv2"):
        work, rates, _, roof = parted(figures.results[name])
        if rates and roof:
            median = statistics.median(rates)
            rows.append([name, spread(rates), f"{median / MLPERF_RATE:.2f}x", f"{median / floor(work, roof['floors']):.0%}"])
    titles = ["", "examples/s, min / median / max", f"of {MLPERF_RATE:,.0f}, an H200's of eight", "of the floor"]
    return ["### MLPerf's DLRM-DCNv2, an eighth of its tables", "", *table(titles, rows)] if rows else []


def operations(figures: Figures) -> list[str]:
    lines = []
    for name in figures.names("dlrm in", "wide_deep in", "DLRM-DCNv2"):
        work, _, found, roof = parted(figures.results[name])
        if not found or not roof:
            continue
        all_seconds, rows = sum(operation["seconds"] for operation in found), []
        # The wide part adds tables with one number per row; MLPerf's small tables are read completely.
        is_plain = name.startswith("dlrm in")
        for operation in found:
            kind, share = operation["operation"], operation["least_seconds"] / operation["seconds"]
            if operation["seconds"] < LEAST_SHARE * all_seconds and kind not in WANTED_SHARE:
                continue
            wanted = WANTED_SHARE.get(kind) or (WANTED_ELEMENTWISE if kind in ELEMENTWISE else None)
            layer = f" {operation['inputs']} x {operation['outputs']}" if operation["inputs"] else ""
            rows.append([
                kind + layer, operation["phase"] or "", f"{operation['seconds'] / operation['calls'] * 1e6:,.1f}", f"{operation['seconds'] / all_seconds:.1%}",
                f"{operation['bytes'] / operation['seconds'] / 1e9:,.0f}", f"{operation['flops'] / operation['seconds'] / 1e12:.2f}", f"{share:.0%}",
                distinct_share(operation, work, roof) if is_plain else "", f"{wanted:.0%}: {verdict(share, wanted)}" if wanted else "",
            ])
        titles = ["operation", "of", "us a call", "of all time", "GB/s", "TFLOP/s", "of its roofline", "by rows that differ", "wanted"]
        lines += [f"### Operations of {name}", "", f"Recorded one by one, without graphs, over {roof['steps']} steps.", "", *table(titles, rows)]
    return lines


def distinct_share(operation: dict, work: dict, roof: dict) -> str:
    """The share of the roofline if each distinct row of a batch were read from memory once."""
    # Bytes per element: read, or read and written with its state.
    number_bytes = {"gather": work["weight_bytes"], "step_rows": 2 * (work["weight_bytes"] + STATE_BYTES)}.get(operation["operation"])
    if number_bytes is None:
        return ""
    again = (work["ids"] - work["rows"]) * work["batch"] * roof["steps"]
    least = (operation["bytes"] - again * number_bytes * work["dim"]) / roof["floors"]["bytes_per_second"]
    return f"{least / operation['seconds']:.0%}"


def files(figures: Figures) -> list[str]:
    rows, bounds = [], []
    for name in figures.names("DLRM from"):
        outcome = figures.results[name][-1]
        wait = outcome["input_wait_fraction"]
        rows.append([name, f"{outcome['examples_per_second']:,.0f}", f"{wait:.4f}", f"< {WANTED_WAIT}: {verdict(wait, WANTED_WAIT, at_most=True)}", f"{outcome['examples']:,}"])
        if name in figures.explained:
            whole = figures.explained[name]["whole"]
            bounds += [f"{name}: bound by {whole['bound']}: {whole['because']}.", ""]
    titles = ["", "rows/s", "input_wait_fraction", "wanted", "rows"]
    return ["### From files", "", *table(titles, rows), *bounds] if rows else []


def auc(figures: Figures) -> list[str]:
    rows = []
    for job in (name.removesuffix(" on cpu") for name in figures.names("Census in", "clicks in") if name.endswith(" on cpu")):
        # A failed job has no result.
        ends = [figures.results.get(f"{job} on {device}", [{}])[-1].get("eval") for device in ("cpu", "cuda")]
        found = [end["auc"] if end else None for end in ends]
        apart = abs(found[0] - found[1]) if None not in found else None
        known = ["" if number is None else f"{number:.6f}" for number in (*found, apart)]
        rows.append([job, *known, "" if apart is None else verdict(apart, WANTED_AUC, at_most=True)])
    return ["### Held-out AUC", "", *table(["", "on the CPU", "on the GPU", "apart", f"within {WANTED_AUC}"], rows)] if rows else []


def workers(figures: Figures) -> list[str]:
    """Steps of a batch of the same size by several workers, a GPU each."""
    rows, of_one = [], {}
    for name in figures.names("dlrm by", "wide_deep by"):
        _, rates, _, _ = parted(figures.results[name])
        if not rates:
            continue
        model, count, median = name.split()[0], int(name.split()[2]), statistics.median(rates)
        if count == 1:
            of_one[model] = median
        efficiency = f"{median / (count * of_one[model]):.2f}" if model in of_one else ""
        rows.append([name, spread(rates), efficiency])
    titles = ["", "examples/s, min / median / max", "of one worker's rate times workers"]
    return ["### Several workers", "", *table(titles, rows)] if rows else []


def parallel(figures: Figures) -> list[str]:
    """Steps by several GPUs in turns with a rival. Efficiency is the rate over that of one GPU times GPUs, in the same turns."""
    medians, rows = {}, []
    for name in figures.names("parallel: "):
        model, variant = name.removeprefix("parallel: ").split()[0], name.split()[-1]
        by_entrant = {line["entrant"]: line for line in figures.results[name]}
        if set(by_entrant) != {"ours", variant}:
            continue
        count = by_entrant["ours"]["workers"]
        cells = []
        for entrant in (variant, "ours"):
            rates = by_entrant[entrant]["rates"]
            medians[model, variant, entrant, count] = statistics.median(rates)
            of_one = medians.get((model, variant, entrant, 1))
            efficiency = statistics.median(rates) / (count * of_one) if of_one else None
            cells += [spread(rates), "" if efficiency is None else f"{efficiency:.2f}"]
        ratio = medians[model, variant, "ours", count] / medians[model, variant, variant, count]
        graph = "one CUDA graph" if by_entrant[variant]["graph"] else "no CUDA graph"
        rows.append([f"{model} by {count}", f"{variant}, {graph}", *cells, f"{ratio:.2f}x"])
    if not rows:
        return []
    version = next(line["torch"] for name in figures.names("parallel: ") for line in figures.results[name] if "torch" in line)
    text = f"Torch {version}, whose batches are in the device's memory (ours come from the host's). Both measure in turns. Efficiency is of one GPU's rate, times GPUs."
    titles = ["", "rival", "its examples/s, min / median / max", "its efficiency", "ours", "our efficiency", "ours over its"]
    return ["### Several GPUs in PyTorch and TorchRec", "", text, "", *table(titles, rows)]


def killed(figures: Figures) -> list[str]:
    """Seconds from a fault of a worker to what follows it."""
    rows = []
    for name in figures.names("killed: "):
        for line in figures.results[name]:
            cells = []
            for event in ("gone", "fed", "stepped"):
                # No step follows the last checkpoint.
                times = [times[event] for times in line["seconds"] if times[event] is not None]
                cells.append(f"{statistics.median(times):.2f} / {max(times):.2f}" if times else "")
            rows.append([name.removeprefix("killed: "), line["fault"], str(len(line["seconds"])), *cells])
    titles = ["", "fault", "faults", "s until all are gone, median / maximum", "until new ones are fed", "until their steps are reported"]
    text = "A fault hits a random worker at a random moment of training. Steps are reported every 0.1 s."
    return ["### Killed workers", "", text, "", *table(titles, rows)] if rows else []


def main() -> None:
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    figures = Figures(sys.argv[1:])
    parts = (head, checks, steps, mlperf, operations, files, auc, workers, parallel, killed)
    print("\n".join(line for part in parts for line in part(figures)), end="")


if __name__ == "__main__":
    main()
