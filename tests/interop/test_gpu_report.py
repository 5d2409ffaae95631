"""`bench/gpu_report.py`: measured figures are compared with their targets, and skipped parts are listed."""

import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

from support import ROOT

ROOFLINE = {"bytes_per_second": 1e12, "flops_per_second": 1e14}


def operation(name: str, least: float, seconds: float, **more) -> dict:
    known = {"operation": name, "phase": "forward", "inputs": None, "outputs": None, "calls": 2, "bytes": int(least * 1e12), "flops": 0}
    return {**known, "seconds": seconds, "least_seconds": least, **more}


def steps(rate: float) -> list[dict]:
    """2 steps of 1000 rows, each of which looks up 10 ids, 4 of them for the first time in the step."""
    work = {"flops": 1e6, "bytes": 1e4, "ids": 10.0, "rows": 4.0, "batch": 1000, "dim": 50, "weight_bytes": 4, "device": {"text": "GPU 0, some", "libraries": []}}
    operations = [operation("gather", 8e-6, 1e-5), operation("step_rows", 2e-5, 5e-5), operation("layer_forward", 1e-5, 2e-5, inputs=7, outputs=9)]
    return [work, {"rate": rate * 0.9}, {"rate": rate}, {"rate": rate * 1.1}, *operations, {"floors": ROOFLINE, "steps": 2}]


def of_part(part: str, name: str, lines: list[dict]) -> list[dict]:
    return [*({"part": part, "name": name, "result": line} for line in lines), {"part": part, "check": name, "ended": "passed", "seconds": 3}]


def turns(workers: int, ours: float, rival: float) -> list[dict]:
    rates = lambda rate: [rate * 0.9, rate, rate * 1.1]
    return [
        {"entrant": "ours", "workers": workers, "rates": rates(ours)},
        {"entrant": "sharded", "workers": workers, "torch": "2.11", "graph": True, "rates": rates(rival)},
    ]


class Report(unittest.TestCase):
    def report(self, lines: list[dict]) -> list[str]:
        with tempfile.TemporaryDirectory() as scratch:
            path = pathlib.Path(scratch) / "figures.jsonl"
            path.write_text("\n".join(map(json.dumps, lines)))
            done = subprocess.run([sys.executable, ROOT / "bench" / "gpu_report.py", path], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout.splitlines()

    def test_figures_are_compared_with_targets(self):
        host = {"part": "host", "date": "2026-11-22", "command": "bench/gpu run", "gpu": "some, 580", "cpu": "2 cores", "kernel": "Linux", "commit": "0123456789abcdef", "device": "cuda"}
        rival = [{"variant": "sorted", "torch": "2.11", "rates": [3e6, 4e6, 5e6]}, {"variant": "scratch", "failed": "no room"}]
        outcome = {"examples": 9, "examples_per_second": 2.5e6, "input_wait_fraction": 0.03}
        auc = lambda value: [{"eval": {"auc": value}}]
        times = [(0.01, 1.0, 2.5), (0.02, 2.0, None), (0.03, 1.5, None)]
        faults = [dict(zip(("gone", "fed", "stepped"), moments)) for moments in times]
        lines = self.report([
            host,
            *of_part("speed", "dlrm in bf16", steps(1)),
            # A repeated part replaces the first one.
            *of_part("speed", "dlrm in bf16", steps(12e6)),
            *of_part("rival", "PyTorch: dlrm in bf16", rival),
            *of_part("mlperf", "DLRM-DCNv2 in bf16, batches of 1000", steps(3.8e6)),
            *of_part("files", "DLRM from tfrecord", [outcome]),
            {"part": "files", "name": "DLRM from tfrecord", "explained": {"whole": {"bound": "decode", "because": "all cores decode"}}},
            *of_part("auc", "Census in fp32 on cpu", auc(0.9)),
            *of_part("auc", "Census in fp32 on cuda", auc(0.9004)),
            *of_part("auc", "Census in bf16 on cpu", auc(0.9)),
            *of_part("auc", "Census in bf16 on cuda", [{"eval": None}]),
            *of_part("auc", "clicks in fp16 on cpu", auc(0.7)),
            *of_part("auc", "clicks in fp16 on cuda", auc(0.7006)),
            *of_part("workers", "dlrm by 1 workers", [{"rate": 4e6}]),
            *of_part("workers", "dlrm by 2 workers", [{"rate": 6e6}, {"rate": 6e6}]),
            *of_part("parallel", "parallel: dlrm by 1 workers, sharded", turns(1, 5e6, 2e6)),
            *of_part("parallel", "parallel: dlrm by 2 workers, sharded", turns(2, 8e6, 3e6)),
            *of_part("parallel", "parallel: dlrm by 2 workers, torchrec", turns(2, 8e6, 3e6)[:1]),
            *of_part("killed", "killed: 2 workers", [{"fault": "SIGKILL", "workers": [2], "runs": 1, "seconds": faults}]),
            {"part": "sanitizer", "check": "compute-sanitizer", "ended": "left out", "why": "it is not installed"},
        ])
        # The floor is 1e6 / 1e14 + 1e4 / 1e12 seconds per row; operations took 38 microseconds for 2000 rows.
        for wanted in [
            "2026-11-22: GPU some, 580; 2 cores, Linux; `bench/gpu run` of 0123456789ab.",
            "| compute-sanitizer | left out | it is not installed |",
            "| dlrm in bf16 | 10,800,000 / 12,000,000 / 13,200,000 | 10,000,000: yes | 3.00x (yes) | 24% | 23% |",
            "| sorted | 3,000,000 / 4,000,000 / 5,000,000 |",
            "| scratch | failed: no room |",
            "| DLRM-DCNv2 in bf16, batches of 1000 | 3,420,000 / 3,800,000 / 4,180,000 | 2.00x | 8% |",
            "| DLRM from tfrecord | 2,500,000 | 0.0300 | < 0.02: no | 9 |",
            "DLRM from tfrecord: bound by decode: all cores decode.",
            "| Census in fp32 | 0.900000 | 0.900400 | 0.000400 | yes |",
            "| Census in bf16 | 0.900000 |  |  |  |",
            "| clicks in fp16 | 0.700000 | 0.700600 | 0.000600 | no |",
            "| dlrm by 2 workers | 6,000,000 / 6,000,000 / 6,000,000 | 0.75 |",
            "| dlrm by 2 | sharded, one CUDA graph | 2,700,000 / 3,000,000 / 3,300,000 | 0.75 | 7,200,000 / 8,000,000 / 8,800,000 | 0.80 | 2.67x |",
            "| 2 workers | SIGKILL | 3 | 0.02 / 0.03 | 1.50 / 2.00 | 2.50 / 2.50 |",
        ]:
            self.assertIn(wanted, lines)
        # A rival that failed has no row.
        self.assertFalse(any("torchrec," in line for line in lines if line.startswith("| dlrm by")))

    def test_rooflines_count_all_rows_and_distinct_rows(self):
        lines = self.report(of_part("speed", "dlrm in bf16", steps(12e6)))
        rows = {line.split(" | ")[0][2:]: line.split(" | ")[6:] for line in lines if line.startswith("| ")}
        # 6 of 10 ids repeat earlier ones: 6 * 1000 * 2 rows of 50 numbers, 2.4 MB of 8; and 4 times that of 20.
        self.assertEqual(rows["gather"], ["80%", "56%", "70%: yes |"])
        self.assertEqual(rows["step_rows"], ["40%", "21%", "50%: no |"])
        self.assertEqual(rows["layer_forward 7 x 9"], ["50%", "", " |"])


if __name__ == "__main__":
    unittest.main()
