#!/usr/bin/env python3
"""One training step in PyTorch on a GPU, as fast as we could write it, for `bench/gpu`.

    python3 bench/gpu_rival.py VARIANT --model wide_deep|dlrm [--ids N] [--dim N] [--batch N] [--hidden N,...] [--bottom N,...]

`gpu_model.py` has the model and the step, which is one CUDA graph. Variants are the ways to update a table, `sorted` and
`scratch`; `all` runs each in its own process, and the faster one again with `max-autotune`.

`--losses N` prints the losses of N steps instead of rates, in `--precision fp32`, to compare with ours. FBGEMM's tables
are absent: no FBGEMM package matches the PyTorch and CUDA versions of these GPUs' images.
"""

import argparse
import json
import subprocess
import sys
import time

import gpu_model
import step_work as work
import torch


def arguments() -> argparse.Namespace:
    parser = gpu_model.arguments(__doc__, [*gpu_model.UPDATES, "all"])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--limit", type=int, default=150, help="seconds for each variant of `all`, including compilation")
    parser.add_argument("--tune", action="store_true", help="compile with max-autotune")
    return parser.parse_args()


def main() -> int:
    options = arguments()
    if options.variant == "all":
        return run_all(options.limit)
    mode = "max-autotune-no-cudagraphs" if options.tune else None
    trainer = gpu_model.Trainer(options, options.batch, range(work.CATEGORICAL), options.variant, mode)
    batches = [trainer.prepared(*work.batch(seed, options.batch, options.ids)) for seed in range(gpu_model.batch_count(options))]
    report = {"variant": options.variant + (" --tune" if options.tune else ""), "torch": torch.__version__}
    if options.losses:
        report["losses"] = trainer.losses(batches)
    else:
        report["rates"] = measure(trainer, batches)
    print(json.dumps(report), flush=True)
    return 0


def run_all(limit: int) -> int:
    """Prints one line per variant; a failed variant prints its error."""
    rest = [word for word in sys.argv[1:] if word != "all"]
    rates = {}

    def run(variant: str, *more: str) -> None:
        try:
            done = subprocess.run([sys.executable, __file__, variant, *rest, *more], stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=limit)
            line = done.stdout.decode().strip()
            if done.returncode:
                raise RuntimeError(done.stderr.decode()[-400:])
            rates[variant] = max(json.loads(line)["rates"])
        except (RuntimeError, subprocess.TimeoutExpired, ValueError, KeyError) as error:
            line = json.dumps({"variant": " ".join([variant, *more]), "failed": str(error)})
        print(line, flush=True)

    for variant in gpu_model.UPDATES:
        run(variant)
    if rates:
        run(max(rates, key=rates.get), "--tune")
    return 0 if rates else 1


def measure(trainer: gpu_model.Trainer, batches: list) -> list[float]:
    options = trainer.options
    once = trainer.passes(batches, captured=trainer.device.type == "cuda")
    # The first pass can change inputs and cause recompilation; the second pass completes it.
    once()
    once()
    trainer.wait()
    rates = []
    for _ in range(options.runs):
        started, examples = time.perf_counter(), 0
        while time.perf_counter() - started < options.seconds:
            once()
            trainer.wait()
            examples += len(batches) * options.batch
        rates.append(examples / (time.perf_counter() - started))
    assert torch.isfinite(trainer.loss).item(), "the loss is not a number"
    return rates


if __name__ == "__main__":
    sys.exit(main())
