#!/usr/bin/env python3
"""One training step from memory in TensorFlow, for `bench/step.py`; `bench/step_work.py` defines the protocol.

    python bench/step_rival_tf.py VARIANT --model wide_deep|dlrm [--ids N] [--dim N] [--batch N] [--threads N]

* `function`: a `tf.function` with all tables merged. The lookup is outside the tape; its gradient is combined by row
  (`unique`, `unsorted_segment_sum`) and applied by the fused kernel ResourceSparseApplyAdagradV2, that of the layers by
  ResourceApplyAdagradV2.
* `jit`: the same, with layers, loss and their backward pass compiled by XLA (`jit_compile=True`). XLA has no `unique`.
* `keras`: as in its guide: one `Embedding` per feature, `compile` with `Adagrad`, `fit` over a `tf.data.Dataset` of the
  batches in memory.
* `keras-jit`: the same with `jit_compile=True`, if XLA can compile it.
"""

import os

import numpy as np
import step_work as work

OPTIONS = work.arguments(__doc__, ["function", "jit", "keras", "keras-jit"])
os.environ["OMP_NUM_THREADS"] = str(OPTIONS.threads)
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import tensorflow as tf  # noqa: E402

tf.config.threading.set_intra_op_parallelism_threads(OPTIONS.threads)
tf.config.threading.set_inter_op_parallelism_threads(OPTIONS.threads)
IDS, DIM, FEATURES = OPTIONS.ids, OPTIONS.dim, work.CATEGORICAL
IS_WIDE = OPTIONS.model == "wide_deep"


def first_tables():
    """Initial weights of each table, `[ids, dim]`: shared ones to compare losses, otherwise TensorFlow's own."""
    for feature in range(FEATURES):
        yield tf.constant(work.first_table(OPTIONS.model, feature, IDS, DIM)) if OPTIONS.losses else tf.random.uniform((IDS, DIM), -0.05, 0.05)


def mean_loss(labels, logits):
    return tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels, logits))


def pairs_of(vectors):
    """The pairwise dot products of `[B, V, W]`: `[B, V (V - 1) / 2]`."""
    count = FEATURES + 1
    places = tf.constant([i * count + j for i in range(count) for j in range(i)], tf.int32)
    products = tf.reshape(tf.matmul(vectors, vectors, transpose_b=True), (-1, count * count))
    return tf.gather(products, places, axis=1)


class Bare:
    """`function` and `jit`."""

    def __init__(self):
        first = work.first_layers(OPTIONS.model, DIM)
        self.stacks = {name: [(tf.Variable(w), tf.Variable(tf.zeros(w.shape[1]))) for w in layers] for name, layers in first.items()}
        self.bias = tf.Variable(tf.zeros(()))
        self.variables = [v for layers in self.stacks.values() for layer in layers for v in layer] + ([self.bias] if IS_WIDE else [])
        self.accumulators = [tf.Variable(tf.fill(v.shape, work.ACCUMULATOR)) for v in self.variables]
        self.table = self.whole(first_tables(), DIM)
        self.wide = tf.Variable(tf.zeros((FEATURES * IDS, 1))) if IS_WIDE else None
        tables = [self.table, *([self.wide] if IS_WIDE else [])]
        self.tables = [(table, self.constant(work.ACCUMULATOR, table.shape)) for table in tables]
        self.gradients = tf.function(self.gradients, jit_compile=OPTIONS.variant == "jit")
        self.step = tf.function(self.step)

    @staticmethod
    def constant(value: float, shape) -> tf.Variable:
        return tf.Variable(tf.fill(shape, np.float32(value)))

    def whole(self, parts, dim: int) -> tf.Variable:
        """One variable, filled in parts, so that memory holds large tables once."""
        variable = tf.Variable(tf.zeros((FEATURES * IDS, dim)))
        for number, part in enumerate(parts):
            variable[number * IDS : (number + 1) * IDS].assign(part)
        return variable

    def run(self, stack: str, hidden):
        *layers, (weights, bias) = self.stacks[stack]
        for w, b in layers:
            hidden = tf.nn.relu(tf.matmul(hidden, w) + b)
        hidden = tf.matmul(hidden, weights) + bias
        return tf.nn.relu(hidden) if stack == "bottom" else hidden

    def gradients(self, embedded, wide, dense, labels):
        """The loss, and its gradients with respect to `embedded` `[B, 26 * dim]`, `wide` `[B]` and the layers."""
        with tf.GradientTape() as tape:
            tape.watch([embedded, wide])
            if IS_WIDE:
                logits = self.run("deep", tf.concat([embedded, dense], axis=1))[:, 0] + wide + self.bias
            else:
                bottom = self.run("bottom", dense)
                vectors = tf.reshape(tf.concat([bottom, embedded], axis=1), (-1, FEATURES + 1, DIM))
                logits = self.run("top", tf.concat([bottom, pairs_of(vectors)], axis=1))[:, 0]
            loss = mean_loss(labels, logits)
        return loss, tape.gradient(loss, [embedded, wide, *self.variables])

    def step(self, labels, dense, ids):
        embedded = tf.reshape(tf.gather(self.table, ids), (-1, FEATURES * DIM))
        wide = tf.reduce_sum(tf.reshape(tf.gather(self.wide, ids), (-1, FEATURES)), axis=1) if IS_WIDE else tf.zeros_like(labels)
        loss, (by_embedded, by_wide, *by_layers) = self.gradients(embedded, wide, dense, labels)
        for variable, accumulator, gradient in zip(self.variables, self.accumulators, by_layers):
            tf.raw_ops.ResourceApplyAdagradV2(var=variable.handle, accum=accumulator.handle, lr=work.RATE, epsilon=work.EPSILON, grad=gradient)
        rows, places = tf.unique(ids)
        by_tables = [tf.reshape(by_embedded, (-1, DIM))]
        if IS_WIDE:
            by_tables.append(tf.repeat(by_wide, FEATURES)[:, None])
        for (table, accumulator), gradient in zip(self.tables, by_tables):
            combined = tf.math.unsorted_segment_sum(gradient, places, tf.size(rows))
            tf.raw_ops.ResourceSparseApplyAdagradV2(
                var=table.handle, accum=accumulator.handle, lr=work.RATE, epsilon=work.EPSILON, grad=combined, indices=rows
            )
        return loss

    def prepare(self, labels, dense, ids):
        flat = (ids + np.arange(FEATURES) * IDS).reshape(-1).astype(np.int32)
        return tf.constant(labels), tf.constant(dense), tf.constant(flat)

    def one_pass(self, batches) -> None:
        for batch in batches:
            loss = self.step(*batch)
        loss.numpy()

    def one_loss(self, batch) -> float:
        return self.step(*batch).numpy()


def keras_model():
    import keras

    def stack(widths: list[int], activation=None) -> list:
        hidden = [keras.layers.Dense(width, activation="relu") for width in widths[1:-1]]
        return [*hidden, keras.layers.Dense(widths[-1], activation=activation)]

    class Model(keras.Model):
        def __init__(self):
            super().__init__()
            uniform = keras.initializers.RandomUniform(-0.05, 0.05)
            self.deep = [keras.layers.Embedding(IDS, DIM, embeddings_initializer=uniform) for _ in range(FEATURES)]
            self.wide = [keras.layers.Embedding(IDS, 1, embeddings_initializer="zeros") for _ in range(FEATURES)] if IS_WIDE else []
            self.bias = self.add_weight(shape=(), initializer="zeros", name="bias") if IS_WIDE else 0.0
            widths = work.stacks(OPTIONS.model, DIM)
            self.bottom = stack(widths["bottom"], "relu") if "bottom" in widths else []
            self.top = stack(widths["deep" if IS_WIDE else "top"])

        def call(self, inputs):
            dense, ids = inputs
            embedded = [table(ids[:, number]) for number, table in enumerate(self.deep)]
            if IS_WIDE:
                hidden = tf.concat([*embedded, dense], axis=1)
            else:
                bottom = dense
                for layer in self.bottom:
                    bottom = layer(bottom)
                hidden = tf.concat([bottom, pairs_of(tf.stack([bottom, *embedded], axis=1))], axis=1)
            for layer in self.top:
                hidden = layer(hidden)
            wide = sum(table(ids[:, number]) for number, table in enumerate(self.wide)) if IS_WIDE else 0.0
            return hidden + wide + self.bias

    model = Model()
    model.compile(
        optimizer=keras.optimizers.Adagrad(work.RATE, initial_accumulator_value=work.ACCUMULATOR, epsilon=work.EPSILON),
        loss=keras.losses.BinaryCrossentropy(from_logits=True),
        jit_compile=OPTIONS.variant == "keras-jit",
    )
    return model


class Keras:
    """`keras` and `keras-jit`."""

    def __init__(self):
        self.model, self.dataset, self.is_shared = keras_model(), None, False

    def prepare(self, labels, dense, ids):
        return (tf.constant(dense), tf.constant(ids.astype(np.int32))), tf.constant(labels[:, None])

    def share_first_weights(self, batch) -> None:
        """Replaces the model's initial weights by the shared ones."""
        self.model(batch[0])
        for layer, first in zip(self.model.deep, first_tables()):
            layer.set_weights([first.numpy()])
        layers = [w for stack in work.first_layers(OPTIONS.model, DIM).values() for w in stack]
        for layer, weights in zip([*self.model.bottom, *self.model.top], layers):
            layer.set_weights([weights, np.zeros(weights.shape[1], np.float32)])

    def one_pass(self, batches) -> None:
        if self.dataset is None:
            parts = zip(*((dense, ids, labels) for (dense, ids), labels in batches))
            dense, ids, labels = (tf.stack(part) for part in parts)
            self.dataset = tf.data.Dataset.from_tensor_slices(((dense, ids), labels)).prefetch(tf.data.AUTOTUNE)
        self.model.fit(self.dataset, epochs=1, verbose=0)

    def one_loss(self, batch) -> float:
        if not self.is_shared:
            self.share_first_weights(batch)
            self.is_shared = True
        (dense, ids), labels = batch
        return self.model.train_on_batch((dense, ids), labels, return_dict=True)["loss"]


def train_files(entrant) -> int:
    """One pass over TFRecord files with the fastest tf.data pipeline of `ingest_rival.py`."""
    import ingest_rival as ingest

    def finish(dense, ids, labels):
        dense = tf.ensure_shape(tf.math.log1p(dense), (ingest.BATCH, work.DENSE))
        ids = tf.ensure_shape(tf.cast(ids % IDS, tf.int32), (ingest.BATCH, FEATURES))
        labels = tf.ensure_shape(labels, (ingest.BATCH,))
        if isinstance(entrant, Keras):
            return (dense, ids), labels[:, None]
        shifted = ids + tf.range(FEATURES)[None, :] * IDS
        return labels, dense, tf.reshape(shifted, (-1,))

    # Compiled for one batch size; the rest at the end does not count.
    whole = ingest.tfdata_blocks(OPTIONS.files, "raw").filter(lambda dense, ids, labels: tf.size(labels) == ingest.BATCH)
    rows = whole.map(finish, num_parallel_calls=tf.data.AUTOTUNE).prefetch(tf.data.AUTOTUNE)
    batches = 0
    if isinstance(entrant, Keras):
        import keras

        counted = []
        entrant.model.fit(rows, epochs=1, verbose=0, callbacks=[keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: counted.append(batch))])
        return len(counted) * ingest.BATCH
    for batch in rows:
        loss = entrant.step(*batch)
        batches += 1
    loss.numpy()
    return batches * ingest.BATCH


def main() -> None:
    tf.random.set_seed(1)
    entrant = Keras() if OPTIONS.variant.startswith("keras") else Bare()
    if OPTIONS.files:
        work.train_once(OPTIONS, lambda batch: entrant.one_pass([entrant.prepare(*batch)]), lambda: train_files(entrant))
        return
    made = [entrant.prepare(*batch) for batch in work.batches(OPTIONS)]
    work.answer(OPTIONS, made, entrant.one_pass, entrant.one_loss)


if __name__ == "__main__":
    main()
