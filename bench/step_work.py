"""Shared by the entrants of `bench/step.py`: the model's shape, initial weights, batches and protocol.

Weights and batches equal those of `trainer/examples/step_speed/`, so that losses can be compared: the generator is that
of `trainer/src/init.rs`.

An entrant builds its model, steps once through its batches and prints a line. For each line of standard input it then
runs whole passes for `--seconds` and prints `{"rate": examples/s}`.
"""

import argparse
import json
import sys
import time

import numpy as np

CATEGORICAL, DENSE = 26, 13
# Defaults: hidden layers, and bottom layers before the one as wide as the embeddings.
HIDDEN, BOTTOM = [256, 128, 64], [64]
# Total number of examples.
EXAMPLES = 24 * 4096
# Adagrad on all parameters.
RATE, ACCUMULATOR, EPSILON = 0.01, 0.1, 1e-7
MASK, GAMMA = (1 << 64) - 1, 0x9E3779B97F4A7C15


def mix(z: int) -> int:
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & MASK
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB & MASK
    return z ^ (z >> 31)


def values(seed: int, name: str, count: int, limit: float) -> np.ndarray:
    """Initial values of the parameter `name`, uniform in `-limit..limit`."""
    key = mix(seed ^ GAMMA)
    for byte in name.encode():
        key = mix(key ^ byte)
    z = np.arange(count, dtype=np.uint64) * np.uint64(GAMMA) + np.uint64(key)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    z ^= z >> np.uint64(31)
    return (((z >> np.uint64(11)) + 0.5) * 2.0**-52 - 1.0) * limit


def batch(seed: int, rows: int, ids: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Labels `[rows]`, dense `[rows, 13]`, and ids `[rows, 26]`, each below `ids`."""
    uniform = values(seed, "batch", rows * (1 + DENSE + CATEGORICAL), 0.5) + 0.5
    labels, dense, drawn = np.split(uniform, [rows, rows * (1 + DENSE)])
    rank = (float(ids) ** drawn).astype(np.uint64)
    scattered = rank * np.uint64(0x9E3779B1) % np.uint64(ids)
    columns = np.ascontiguousarray(scattered.astype(np.int64).reshape(CATEGORICAL, rows).T)
    return (labels < 0.25).astype(np.float32), dense.astype(np.float32).reshape(rows, DENSE), columns


def stacks(model: str, dim: int, hidden: list[int] = HIDDEN, bottom: list[int] = BOTTOM) -> dict[str, list[int]]:
    """The widths of each stack of layers, input first. All layers but the last of `top` and `deep` end in a ReLU."""
    if model == "wide_deep":
        return {"deep": [CATEGORICAL * dim + DENSE, *hidden, 1]}
    pairs = (CATEGORICAL + 1) * CATEGORICAL // 2
    return {"bottom": [DENSE, *bottom, dim], "top": [dim + pairs, *hidden, 1]}


def first_layers(model: str, dim: int, hidden: list[int] = HIDDEN, bottom: list[int] = BOTTOM) -> dict[str, list[np.ndarray]]:
    """Initial weights of each layer, `[inputs, outputs]`; biases are 0."""

    def weights(stack: str, number: int, inputs: int, outputs: int) -> np.ndarray:
        limit = (6.0 / (inputs + outputs)) ** 0.5
        return values(1, f"{stack}.layer.{number}.weight", inputs * outputs, limit).astype(np.float32).reshape(inputs, outputs)

    return {
        stack: [weights(stack, number, *shape) for number, shape in enumerate(zip(widths, widths[1:]))]
        for stack, widths in stacks(model, dim, hidden, bottom).items()
    }


def first_table(model: str, feature: int, ids: int, dim: int) -> np.ndarray:
    """Initial embeddings of a feature, `[ids, dim]`; those of the wide part are 0."""
    prefix = "deep." if model == "wide_deep" else ""
    return values(1, f"{prefix}embedding.c{feature}", ids * dim, 0.05).astype(np.float32).reshape(ids, dim)


def arguments(doc: str, variants) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("variant", choices=variants)
    parser.add_argument("--model", choices=["wide_deep", "dlrm"], default="wide_deep")
    parser.add_argument("--ids", type=int, default=100_000)
    parser.add_argument("--dim", type=int, default=16)
    parser.add_argument("--batch", type=int, default=4096)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--losses", type=int, default=0, help="print the losses of N steps from the shared initial weights instead")
    parser.add_argument("--files", nargs="*", help="train over these files once instead, for bench/train_files.py")
    parser.add_argument("--workers", type=int, default=1, help="processes that read files, if the rival has any")
    return parser.parse_args()


def batches(options: argparse.Namespace) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    count = options.losses or -(-EXAMPLES // options.batch)
    return [batch(seed, options.batch, options.ids) for seed in range(count)]


def train_once(options: argparse.Namespace, warm, train) -> None:
    """`warm(batch)` compiles before the clock starts; `train()` trains on the files and returns the number of rows."""
    warm(batch(0, options.batch, options.ids))
    started = time.perf_counter()
    rows = train()
    print(json.dumps({"rows": rows, "rate": rows / (time.perf_counter() - started)}), flush=True)


def answer(options: argparse.Namespace, made: list, one_pass, one_loss) -> None:
    """`one_pass(made)` steps through all batches; `one_loss(batch)` takes one step and returns its loss."""
    if options.losses:
        print(json.dumps({"losses": [float(one_loss(batch)) for batch in made]}), flush=True)
        return
    # Compiles, and touches memory for the first time.
    one_pass(made)
    one_pass(made)
    print(json.dumps({"ready": True}), flush=True)
    for _ in sys.stdin:
        started, examples = time.perf_counter(), 0
        while time.perf_counter() - started < options.seconds:
            one_pass(made)
            examples += len(made) * options.batch
        print(json.dumps({"rate": examples / (time.perf_counter() - started)}), flush=True)
