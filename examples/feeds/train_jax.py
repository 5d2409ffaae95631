#!/usr/bin/env python3
"""Trains a small model with JAX.

    python examples/feeds/train_jax.py DIRECTORY

Writes its data and its checkpoints to DIRECTORY. Kill it at any time and start it again: it prints the same model.
"""

import os
import pathlib
import pickle
import sys

import jax
import jax.numpy as jnp
import millstream as ms
import numpy as np
from millstream.jax import Loader

import synthetic

directory = pathlib.Path(sys.argv[1])
feed = ms.Feed(
    train=synthetic.write(directory),
    columns={"x": ms.tensor("x", "float32", [8]), "label": ms.tensor("label", "int32")},
    batch_size=50,
    shuffle_rows=500,
    epochs=4,
    seed=7,
)
loader = Loader(feed)
random = np.random.default_rng(0)
weights = [random.normal(size=shape).astype(np.float32) * 0.3 for shape in ((8, 16), (16,), (16, 2), (2,))]
step, path = 0, directory / "checkpoint.pickle"
if path.exists():
    checkpoint = pickle.loads(path.read_bytes())
    weights, step = checkpoint["weights"], checkpoint["step"]
    loader.load_state_dict(checkpoint["data"])


def loss_of(weights, x, label):
    hidden = jax.nn.relu(x @ weights[0] + weights[1])
    scores = jax.nn.log_softmax(hidden @ weights[2] + weights[3])
    return -jnp.take_along_axis(scores, label[:, None], 1).mean()


@jax.jit
def train(weights, x, label):
    loss, gradients = jax.value_and_grad(loss_of)(weights, x, label)
    return loss, [weight - 0.1 * gradient for weight, gradient in zip(weights, gradients)]


for _ in loader.epochs:
    for batch in loader:
        loss, weights = train(weights, batch["x"], batch["label"])
        step += 1
        print(f"step {step} loss {loss:.9g}", flush=True)
        if step % 10 == 0:
            checkpoint = {"weights": [np.asarray(weight) for weight in weights], "data": batch.state_dict(), "step": step}
            (directory / "new.pickle").write_bytes(pickle.dumps(checkpoint))
            os.replace(directory / "new.pickle", path)
print("model", synthetic.digest([np.asarray(weight) for weight in weights]))
