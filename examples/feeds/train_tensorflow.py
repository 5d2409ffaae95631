#!/usr/bin/env python3
"""Trains a small model with TensorFlow.

    python examples/feeds/train_tensorflow.py DIRECTORY

Writes its data and its checkpoints to DIRECTORY. Kill it at any time and start it again: it prints the same model.
"""

import json
import pathlib
import sys

import millstream as ms
import millstream.tf
import tensorflow as tf

import synthetic

directory = pathlib.Path(sys.argv[1])
feed = ms.Feed(
    train=synthetic.write(directory),
    columns={"x": ms.tensor("x", "float32", [8]), "label": ms.tensor("label", "int64")},
    batch_size=50,
    shuffle_rows=500,
    epochs=4,
    seed=7,
)
tf.keras.utils.set_random_seed(0)
model = tf.keras.Sequential([tf.keras.Input([8]), tf.keras.layers.Dense(16, "relu"), tf.keras.layers.Dense(2)])
optimizer = tf.keras.optimizers.Adam(1e-2)
optimizer.build(model.trainable_variables)
# The state of the batch that was trained last.
data = tf.Variable("null", dtype=tf.string)
checkpoint = tf.train.Checkpoint(model=model, optimizer=optimizer, data=data)
manager = tf.train.CheckpointManager(checkpoint, directory / "checkpoints", max_to_keep=2)
manager.restore_or_initialize()
loader = ms.Loader(feed)
loader.load_state_dict(json.loads(data.numpy()))


@tf.function(reduce_retracing=True)
def train(x, label):
    with tf.GradientTape() as tape:
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(label, model(x))
        loss = tf.reduce_mean(losses)
    optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
    return loss


dataset = millstream.tf.dataset(loader, state="state").prefetch(2)
for _ in loader.epochs:
    for batch in dataset:
        loss = train(batch["x"], batch["label"])
        data.assign(batch["state"])
        step = int(optimizer.iterations.numpy())
        print(f"step {step} loss {loss.numpy():.9g}", flush=True)
        if step % 10 == 0:
            manager.save(step)
print("model", synthetic.digest([variable.numpy() for variable in model.trainable_variables]))
