"""Weighted values in files written by TensorFlow and pyarrow: with the parameters that Millstream learned, TensorFlow's
lookups yield the same scores as `millstream predict`.

Run by `tests/run`, or alone:

    target/python/bin/python -m unittest discover -s tests/interop -p test_weighted.py -v
"""

import os
import unittest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import safetensors.numpy
import tensorflow as tf

from support import WithoutDaemon, millstream

TRAIN_ROWS, ROWS, BUCKETS, MAXIMUM = 3000, 1000, 20, 6


def job(pooling: str, files: str) -> str:
    return f"""name = "{pooling}-{files}"
[data]
train = ["train.{files}"]
eval = ["eval.{files}"]
batch_size = 64
epochs = 2
shuffle_rows = 0
lanes = 1
[label]
column = "clicked"
[features.tags]
kind = "hashed"
buckets = {BUCKETS}
multi = true
maximum = {MAXIMUM}
weights = "shares"
[model]
kind = "wide_deep"
wide.features = ["tags"]
deep.features = ["tags"]
deep.embedding_dim = 4
deep.hidden = [6]
deep.pooling = "{pooling}"
[training]
threads = 2
"""


def rows_of(count: int, seed: int) -> list[dict]:
    """Rows whose label follows from the weights, including rows without values and rows without a positive weight."""
    draw = np.random.default_rng(seed)
    rows = []
    for _ in range(count):
        ids = draw.integers(0, 40, draw.integers(0, MAXIMUM + 1))
        shares = draw.choice([-0.75, 0, 0.25, 1, 4], len(ids)) * draw.choice([1, 1, 1, -1])
        odds = sum(share if tag % 2 else -share for tag, share in zip(ids, shares))
        tags = [f"tag {tag}" for tag in ids]
        rows.append({"tags": tags, "shares": shares.tolist(), "clicked": int(draw.random() < 1 / (1 + np.exp(-odds)))})
    return rows


def write_tfrecord(path, rows):
    with tf.io.TFRecordWriter(str(path)) as out:
        for row in rows:
            feature = {
                "tags": tf.train.Feature(bytes_list=tf.train.BytesList(value=[tag.encode() for tag in row["tags"]])),
                "shares": tf.train.Feature(float_list=tf.train.FloatList(value=row["shares"])),
                "clicked": tf.train.Feature(int64_list=tf.train.Int64List(value=[row["clicked"]])),
            }
            out.write(tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString())


def write_parquet(path, rows):
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    shares = pa.array(columns["shares"], pa.list_(pa.float32()))
    pq.write_table(pa.table(dict(columns, shares=shares)), path, row_group_size=700)


def scores(rows, parameters, pooling: str) -> np.ndarray:
    """The scores computed by TensorFlow."""
    tags = tf.ragged.constant([row["tags"] for row in rows], dtype=tf.string).to_sparse()
    ids = tf.sparse.map_values(tf.strings.to_hash_bucket_fast, tags, BUCKETS)
    shares = tf.ragged.constant([row["shares"] for row in rows], dtype=tf.float32).to_sparse()
    # The last rows may be empty, so the shape is given explicitly.
    shape = [len(rows), MAXIMUM]
    ids, shares = (tf.SparseTensor(of.indices, of.values, shape) for of in (ids, shares))

    def looked_up(table, combiner):
        table = tf.constant(parameters[table].reshape(BUCKETS + 1, -1))
        return tf.nn.safe_embedding_lookup_sparse(table, ids, shares, combiner=combiner)

    deep = looked_up("deep.embedding.tags", pooling)
    for layer in range(2):
        deep = deep @ parameters[f"deep.layer.{layer}.weight"] + parameters[f"deep.layer.{layer}.bias"]
        deep = tf.nn.relu(deep) if layer == 0 else deep
    return tf.sigmoid(deep + looked_up("wide.ids.tags", "sum") + parameters["wide.bias"]).numpy()[:, 0]


class Weighted(WithoutDaemon):
    def test_scores_match_tensorflow(self):
        train, held_out = rows_of(TRAIN_ROWS, 1), rows_of(ROWS, 2)
        without_positive_weight = sum(all(share <= 0 for share in row["shares"]) for row in held_out)
        self.assertGreater(without_positive_weight, 200)
        for name, rows in [("train", train), ("eval", held_out)]:
            write_tfrecord(self.scratch / f"{name}.tfrecord", rows)
            write_parquet(self.scratch / f"{name}.parquet", rows)
        for pooling in ["sum", "mean", "sqrtn"]:
            found = []
            for files in ["tfrecord", "parquet"]:
                with self.subTest(pooling, files=files):
                    file = self.scratch / "job.toml"
                    file.write_text(job(pooling, files))
                    report = millstream("train", file)
                    self.assertGreater(report["eval"]["auc"], 0.65)
                    output = self.scratch / f"{pooling}-{files}.parquet"
                    self.assertEqual(millstream("predict", report["checkpoint"], "--output", output)["rows"], ROWS)
                    found.append(pq.read_table(output)["score"].to_numpy())
                    parameters = safetensors.numpy.load_file(f"{report['checkpoint']}/model.safetensors")
                    off = np.abs(found[-1] - scores(held_out, parameters, pooling)).max()
                    print(f"{pooling}, {files}: off by {off:.1e} at most")
                    self.assertLessEqual(off, 1e-6)
            np.testing.assert_array_equal(*found)


if __name__ == "__main__":
    unittest.main()
