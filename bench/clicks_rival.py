#!/usr/bin/env python3
"""The clicks job in other frameworks: the same files, features, model, optimizers and batch size.

    python bench/clicks_rival.py tfdata|keras|torch examples/clicks/job.toml

* `tfdata`: input only. TFRecord to shuffled, parsed, hashed batches with tuned tf.data: parallel
  interleave, shuffling serialised records, parsing and hashing whole batches.
* `keras`: the same pipeline and a compiled Keras model with `fit`.
* `torch`: PyTorch on the same rows as Parquet (it does not read TFRecord): pyarrow in loader processes,
  EmbeddingBag with sparse gradients, sparse Adagrad and sparse FTRL.

Prints one JSON document: rows, seconds of one pass over the training data (including graph tracing and
the start of the first batch, excluding the start of the program), and held-out AUC if it trained.
"""

import argparse
import glob
import json
import os
import pathlib
import time
import tomllib

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

NUMERIC = [f"i{i}" for i in range(1, 14)]
CATEGORICAL = [f"c{i}" for i in range(1, 27)]
BUCKETS = 100_000


def paths(job_path: pathlib.Path, patterns: list[str], suffix: str = ".tfrecord") -> list[str]:
    found = sorted(p for pattern in patterns for p in glob.glob(str(job_path.parent / pattern.replace(".tfrecord", suffix))))
    assert found, f"no files match {patterns}; generate them first"
    return found


def tf_batches(files: list[str], job: dict, training: bool):
    import tensorflow as tf

    spec = {name: tf.io.FixedLenFeature([], tf.int64, 0) for name in NUMERIC}
    spec |= {name: tf.io.FixedLenFeature([], tf.string, "") for name in CATEGORICAL}
    spec["clicked"] = tf.io.FixedLenFeature([], tf.int64)

    def parse(records):
        row = tf.io.parse_example(records, spec)
        dense = tf.math.log1p(tf.cast(tf.stack([row[name] for name in NUMERIC], axis=1), tf.float32))
        ids = tf.stack([tf.strings.to_hash_bucket_fast(row[name], BUCKETS) for name in CATEGORICAL], axis=1)
        return {"dense": dense, "ids": ids}, tf.cast(row["clicked"], tf.float32)

    records = tf.data.Dataset.from_tensor_slices(files)
    if training:
        records = records.shuffle(len(files), seed=1)
    records = records.interleave(tf.data.TFRecordDataset, cycle_length=16, block_length=64,
                                 num_parallel_calls=tf.data.AUTOTUNE, deterministic=not training)
    if training:
        records = records.shuffle(job["data"]["shuffle_rows"], seed=1)
    batches = records.batch(job["data"]["batch_size"], num_parallel_calls=tf.data.AUTOTUNE)
    return batches.map(parse, num_parallel_calls=tf.data.AUTOTUNE).prefetch(tf.data.AUTOTUNE)


def run_tfdata(job: dict, train: list[str], held_out: list[str]) -> dict:
    started, rows = time.perf_counter(), 0
    for _, labels in tf_batches(train, job, training=True):
        rows += labels.shape[0]
    return {"rows": rows, "seconds": time.perf_counter() - started}


def run_keras(job: dict, train: list[str], held_out: list[str]) -> dict:
    import keras
    import tensorflow as tf

    model_spec = job["model"]
    features = len(CATEGORICAL)

    class WideDeep(keras.Model):
        """One merged wide table and one merged deep table: TensorFlow's fastest layout."""

        def __init__(self):
            super().__init__()
            uniform = keras.initializers.RandomUniform(-0.05, 0.05)
            self.wide = keras.layers.Embedding(features * BUCKETS, 1, embeddings_initializer="zeros")
            self.deep = keras.layers.Embedding(features * BUCKETS, model_spec["deep"]["embedding_dim"], embeddings_initializer=uniform)
            self.mlp = [keras.layers.Dense(width, activation="relu") for width in model_spec["deep"]["hidden"]]
            self.out = keras.layers.Dense(1)
            self.shift = tf.range(features, dtype=tf.int64)[None, :] * BUCKETS
            ftrl, adagrad = model_spec["wide"]["optimizer"], model_spec["deep"]["optimizer"]
            self.wide_optimizer = keras.optimizers.Ftrl(
                ftrl["learning_rate"], initial_accumulator_value=ftrl["initial_accumulator"], beta=ftrl["beta"]
            )
            self.deep_optimizer = keras.optimizers.Adagrad(
                adagrad["learning_rate"], initial_accumulator_value=adagrad["initial_accumulator"]
            )

        def call(self, inputs):
            ids = inputs["ids"] + self.shift
            deep = self.deep(ids)
            hidden = tf.concat([tf.reshape(deep, (-1, features * deep.shape[-1])), inputs["dense"]], axis=1)
            for layer in self.mlp:
                hidden = layer(hidden)
            return tf.reduce_sum(self.wide(ids)[:, :, 0], axis=1) + self.out(hidden)[:, 0]

        def train_step(self, data):
            inputs, labels = data
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels, self(inputs, training=True)))
            wide = self.wide.trainable_variables
            rest = [v for v in self.trainable_variables if v is not wide[0]]
            gradients = tape.gradient(loss, [v.value for v in wide + rest])
            self.wide_optimizer.apply(gradients[:1], wide)
            self.deep_optimizer.apply(gradients[1:], rest)
            return {"loss": loss}

    model = WideDeep()
    model.compile()
    rows = []
    counted = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: rows.append(batch))
    started = time.perf_counter()
    model.fit(tf_batches(train, job, training=True), epochs=1, verbose=0, callbacks=[counted])
    seconds = time.perf_counter() - started
    logits, truth = [], []
    for inputs, labels in tf_batches(held_out, job, training=False):
        logits.append(model(inputs).numpy())
        truth.append(labels.numpy())
    total = sum(int(n) for n in tf.data.Dataset.from_tensor_slices(train).interleave(tf.data.TFRecordDataset).batch(65536).map(tf.size).as_numpy_iterator())
    return {"rows": total, "seconds": seconds, "steps": len(rows), "auc": auc(truth, logits)}


def run_torch(job: dict, train: list[str], held_out: list[str]) -> dict:
    import numpy as np
    import pandas as pd
    import pyarrow.parquet as pq
    import torch

    model_spec, batch_size = job["model"], job["data"]["batch_size"]
    features, width = len(CATEGORICAL), model_spec["deep"]["embedding_dim"]

    def columns(table):
        dense = np.stack([np.log1p(table[name].to_numpy(zero_copy_only=False).astype(np.float32)) for name in NUMERIC], axis=1)
        np.nan_to_num(dense, copy=False)
        ids = np.stack(
            [(pd.util.hash_array(table[name].to_numpy(zero_copy_only=False).astype(object)) % BUCKETS).astype(np.int64) for name in CATEGORICAL],
            axis=1,
        )
        return dense, ids, table["clicked"].to_numpy().astype(np.float32)

    class Rows(torch.utils.data.IterableDataset):
        """Batches from a pool of shuffled rows; each loader process reads its share of the files."""

        def __init__(self, files, shuffle_rows):
            self.files, self.shuffle_rows = files, shuffle_rows

        def __iter__(self):
            worker = torch.utils.data.get_worker_info()
            mine = self.files[worker.id :: worker.num_workers] if worker else self.files
            share = max(self.shuffle_rows // (worker.num_workers if worker else 1), batch_size)
            random, pool, held = np.random.default_rng(1), [], 0
            for path in mine:
                for group in pq.ParquetFile(path).iter_batches(batch_size=65536):
                    pool.append(columns(group))
                    held += len(pool[-1][2])
                    if held >= share:
                        yield from self.drain(pool, random)
                        pool, held = [], 0
            if pool:
                yield from self.drain(pool, random)

        def drain(self, pool, random):
            parts = [np.concatenate(column) for column in zip(*pool)]
            order = random.permutation(len(parts[2])) if self.shuffle_rows else np.arange(len(parts[2]))
            for start in range(0, len(order), batch_size):
                chosen = order[start : start + batch_size]
                yield tuple(torch.from_numpy(part[chosen]) for part in parts)

    class WideDeep(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.wide = torch.nn.EmbeddingBag(features * BUCKETS, 1, mode="sum", sparse=True)
            self.deep = torch.nn.Embedding(features * BUCKETS, width, sparse=True)
            torch.nn.init.zeros_(self.wide.weight)
            torch.nn.init.uniform_(self.deep.weight, -0.05, 0.05)
            sizes = [features * width + len(NUMERIC), *model_spec["deep"]["hidden"]]
            layers = [m for a, b in zip(sizes, sizes[1:]) for m in (torch.nn.Linear(a, b), torch.nn.ReLU())]
            self.mlp = torch.nn.Sequential(*layers, torch.nn.Linear(sizes[-1], 1))
            self.register_buffer("shift", torch.arange(features)[None, :] * BUCKETS)

        def forward(self, dense, ids):
            ids = ids + self.shift
            deep = torch.cat([self.deep(ids).flatten(1), dense], dim=1)
            return (self.wide(ids) + self.mlp(deep))[:, 0]

    class SparseFtrl:
        """FTRL-Proximal on the rows that a batch touches (McMahan et al., 2013)."""

        def __init__(self, weight, spec):
            self.weight, self.rate, self.beta = weight, spec["learning_rate"], spec["beta"]
            self.z, self.n = torch.zeros_like(weight), torch.full_like(weight, spec["initial_accumulator"])

        @torch.no_grad()
        def step(self):
            gradient = self.weight.grad.coalesce()
            rows, g = gradient.indices()[0], gradient.values()
            n, w = self.n[rows], self.weight[rows]
            grown = n + g * g
            z = self.z[rows] + g - (grown.sqrt() - n.sqrt()) / self.rate * w
            self.z[rows], self.n[rows] = z, grown
            self.weight[rows] = -z * self.rate / (self.beta + grown.sqrt())
            self.weight.grad = None

    torch.manual_seed(1)
    model, loss_of = WideDeep(), torch.nn.BCEWithLogitsLoss()
    adagrad_spec = model_spec["deep"]["optimizer"]
    deep = [model.deep.weight, *model.mlp.parameters()]
    adagrad = torch.optim.Adagrad(
        deep, adagrad_spec["learning_rate"], initial_accumulator_value=adagrad_spec["initial_accumulator"]
    )
    ftrl = SparseFtrl(model.wide.weight, model_spec["wide"]["optimizer"])
    loader = torch.utils.data.DataLoader(Rows(train, job["data"]["shuffle_rows"]), batch_size=None, num_workers=2, prefetch_factor=4)
    started, rows = time.perf_counter(), 0
    for dense, ids, labels in loader:
        adagrad.zero_grad(set_to_none=True)
        loss_of(model(dense, ids), labels).backward()
        adagrad.step()
        ftrl.step()
        rows += len(labels)
    seconds = time.perf_counter() - started
    logits, truth = [], []
    with torch.no_grad():
        for dense, ids, labels in Rows(held_out, 0):
            logits.append(model(dense, ids).numpy())
            truth.append(labels.numpy())
    return {"rows": rows, "seconds": seconds, "auc": auc(truth, logits)}


def auc(truth, logits) -> float:
    import numpy as np
    from sklearn.metrics import roc_auc_score

    return float(roc_auc_score(np.concatenate(truth), np.concatenate(logits)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rival", choices=["tfdata", "keras", "torch"])
    parser.add_argument("job", type=pathlib.Path)
    options = parser.parse_args()
    job = tomllib.loads(options.job.read_text())
    suffix = ".parquet" if options.rival == "torch" else ".tfrecord"
    train, held_out = (paths(options.job, job["data"][part], suffix) for part in ("train", "eval"))
    run = {"tfdata": run_tfdata, "keras": run_keras, "torch": run_torch}[options.rival]
    result = run(job, train, held_out)
    print(json.dumps({"rival": options.rival, **result, "rows_per_second": result["rows"] / result["seconds"]}))


if __name__ == "__main__":
    main()
