#!/usr/bin/env python3
"""Trains a Keras Wide & Deep on the features of a census job and prints its held-out metrics as JSON.

Reads Millstream's job file: the same Parquet files, features, model shape, optimizers, batch size and
epochs. The implementation is independent: pandas and NumPy compute the features, Keras trains,
scikit-learn computes the metrics.

    python bench/census_keras.py examples/census/job.toml [--seed N]
"""

import argparse
import glob
import json
import os
import pathlib
import time
import tomllib
import zlib

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import pandas as pd
import tensorflow as tf
from sklearn.metrics import accuracy_score, log_loss, roc_auc_score


def read(job_directory: pathlib.Path, patterns: list[str]) -> pd.DataFrame:
    paths = sorted(path for pattern in patterns for path in glob.glob(str(job_directory / pattern)))
    assert paths, f"no files match {patterns}"
    return pd.concat([pd.read_parquet(path) for path in paths], ignore_index=True)


class Feature:
    """A feature of the job, fitted on the training rows: `dense` columns or ids below `size`."""

    def __init__(self, name: str, spec: dict, train: pd.DataFrame):
        self.spec, self.kind = spec, spec["kind"]
        self.columns = spec.get("columns") or [spec.get("column", name)]
        if self.kind == "numeric":
            values = self.scaled(train)
            self.mean, self.std = values.mean(), values.std()
        elif self.kind == "vocabulary":
            counts = train[self.columns[0]].value_counts()
            self.index = {term: rank for rank, term in enumerate(counts.index)}
            self.size = len(self.index) + 1
        elif self.kind == "bucketized":
            self.size = len(spec["boundaries"]) + 1
        else:
            self.size = spec["buckets"]

    def scaled(self, rows: pd.DataFrame) -> np.ndarray:
        values = rows[self.columns[0]].to_numpy(np.float64)
        return np.log1p(values) if "log1p" in self.spec.get("normalize", "") else values

    def dense(self, rows: pd.DataFrame) -> np.ndarray:
        values = self.scaled(rows)
        if "zscore" in self.spec.get("normalize", ""):
            values = (values - self.mean) / self.std
        return values.astype(np.float32)

    def ids(self, rows: pd.DataFrame) -> np.ndarray:
        if self.kind == "vocabulary":
            return rows[self.columns[0]].map(lambda term: self.index.get(term, self.size - 1)).to_numpy(np.int32)
        if self.kind == "bucketized":
            return np.digitize(rows[self.columns[0]], self.spec["boundaries"]).astype(np.int32)
        joined = rows[self.columns].astype(str).agg("\x1f".join, axis=1)
        return joined.map(lambda text: zlib.crc32(text.encode()) % self.size).to_numpy(np.int32)


class WideDeep(keras.Model):
    """A linear part trained by FTRL and an MLP over embeddings trained by Adagrad; the logit is their sum."""

    def __init__(self, model: dict, features: dict[str, Feature]):
        super().__init__()
        wide, deep = model["wide"], model["deep"]
        uniform = keras.initializers.RandomUniform(-0.05, 0.05)
        self.wide_tables = {
            name: keras.layers.Embedding(features[name].size, 1, embeddings_initializer="zeros")
            for name in wide["features"]
        }
        self.bias = self.add_weight(shape=(1,), initializer="zeros", name="wide_bias")
        self.deep_names = deep["features"]
        self.deep_tables = {
            name: keras.layers.Embedding(features[name].size, deep["embedding_dim"], embeddings_initializer=uniform)
            for name in deep["features"]
            if features[name].kind != "numeric"
        }
        self.mlp = [keras.layers.Dense(width, activation="relu") for width in deep["hidden"]]
        self.out = keras.layers.Dense(1)
        ftrl, adagrad = wide["optimizer"], deep["optimizer"]
        assert (ftrl["kind"], adagrad["kind"]) == ("ftrl", "adagrad")
        self.wide_optimizer = keras.optimizers.Ftrl(
            ftrl["learning_rate"],
            l1_regularization_strength=ftrl.get("l1", 0.0),
            l2_regularization_strength=ftrl.get("l2", 0.0),
        )
        self.deep_optimizer = keras.optimizers.Adagrad(adagrad["learning_rate"])

    def call(self, inputs):
        wide = sum(table(inputs[name])[:, 0] for name, table in self.wide_tables.items()) + self.bias[0]
        deep = [
            self.deep_tables[name](inputs[name]) if name in self.deep_tables else inputs[name][:, None]
            for name in self.deep_names
        ]
        hidden = keras.ops.concatenate(deep, axis=1)
        for layer in self.mlp:
            hidden = layer(hidden)
        return wide + self.out(hidden)[:, 0]

    def split_variables(self):
        wide = [self.bias] + [v for table in self.wide_tables.values() for v in table.trainable_variables]
        held = {id(variable) for variable in wide}
        return wide, [variable for variable in self.trainable_variables if id(variable) not in held]

    def train_step(self, data):
        inputs, labels = data
        with tf.GradientTape() as tape:
            logits = self(inputs, training=True)
            loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels, logits))
        wide, deep = self.split_variables()
        gradients = tape.gradient(loss, [v.value for v in wide + deep])
        self.wide_optimizer.apply(gradients[: len(wide)], wide)
        self.deep_optimizer.apply(gradients[len(wide) :], deep)
        return {"loss": loss}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("job", type=pathlib.Path)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--train", nargs="*", help="training files instead of the job's")
    parser.add_argument("--eval", nargs="*", help="held-out files instead of the job's")
    options = parser.parse_args()
    job = tomllib.loads(options.job.read_text())
    keras.utils.set_random_seed(options.seed if options.seed is not None else job["seed"])
    data, directory = job["data"], options.job.parent
    train = read(directory, options.train or data["train"])
    held_out = read(directory, options.eval or data["eval"])
    used = set(job["model"]["wide"]["features"]) | set(job["model"]["deep"]["features"])
    features = {name: Feature(name, spec, train) for name, spec in job["features"].items() if name in used}

    def inputs(rows: pd.DataFrame) -> dict[str, np.ndarray]:
        return {n: f.dense(rows) if f.kind == "numeric" else f.ids(rows) for n, f in features.items()}

    def labels(rows: pd.DataFrame) -> np.ndarray:
        return (rows[job["label"]["column"]] == job["label"]["positive"]).to_numpy(np.float32)

    model = WideDeep(job["model"], features)
    model.compile()
    train_inputs, train_labels = inputs(train), labels(train)
    model({name: values[:1] for name, values in train_inputs.items()})
    started = time.perf_counter()
    dataset = tf.data.Dataset.from_tensor_slices((train_inputs, train_labels))
    dataset = dataset.shuffle(data["shuffle_rows"], seed=job["seed"]).batch(data["batch_size"]).prefetch(tf.data.AUTOTUNE)
    model.fit(dataset, epochs=data["epochs"], verbose=0)
    seconds = time.perf_counter() - started
    logits = model.predict(inputs(held_out), batch_size=4096, verbose=0)
    scores, truth = 1 / (1 + np.exp(-logits.astype(np.float64))), labels(held_out)
    print(json.dumps({
        "auc": float(roc_auc_score(truth, scores)),
        "log_loss": float(log_loss(truth, scores)),
        "accuracy": float(accuracy_score(truth, scores > 0.5)),
        "examples": len(truth),
        "train_seconds": seconds,
    }))


if __name__ == "__main__":
    main()
