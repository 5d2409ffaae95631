"""TensorFlow and pyarrow read files that Millstream writes, and Millstream reads files that they write.

Run by `tests/run`, or alone:

    target/python/bin/python -m unittest discover -s tests/interop -v

`MILLSTREAM_LAB_DATA` may name a directory with `chicago_taxi/Split-*/data_tfrecord-*.gz`, files written by TFX;
without it, that test reads files that TensorFlow writes here in the same form.
"""

import csv
import os
import pathlib
import random
import tempfile
import unittest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import pyarrow.parquet as pq
import tensorflow as tf

from support import millstream, row_of, same

COMPRESSIONS = {"none": "", "gzip": "GZIP", "zlib": "ZLIB"}


def read_tfrecords(paths, compression: str) -> list[dict]:
    records = tf.data.TFRecordDataset([str(path) for path in paths], compression_type=COMPRESSIONS[compression])
    return [row_of(tf.train.Example.FromString(record.numpy())) for record in records]


def parquet_rows(paths) -> list[dict]:
    """Rows of Parquet files as {name: list of values}, without nulls and empty lists, text as bytes."""
    rows = []
    for path in paths:
        for row in pq.read_table(path).to_pylist():
            lists = {name: value if isinstance(value, list) else [value] for name, value in row.items() if value is not None}
            rows.append({n: [v.encode() if isinstance(v, str) else v for v in vs] for n, vs in lists.items() if vs})
    return rows


class Case(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.scratch = pathlib.Path(scratch.name)

    def files(self, pattern: str) -> list[pathlib.Path]:
        found = sorted(self.scratch.glob(pattern))
        self.assertTrue(found, f"no {pattern} in {list(self.scratch.iterdir())}")
        return found

    def assert_rows(self, got: list[dict], expected: list[dict]):
        self.assertGreater(len(expected), 0)
        self.assertEqual(len(got), len(expected))
        for number, (left, right) in enumerate(zip(got, expected)):
            self.assertEqual(set(left), set(right), f"row {number}")
            for name in right:
                pairs = list(zip(left[name], right[name], strict=True))
                self.assertTrue(all(same(a, b) for a, b in pairs), f"row {number}, {name}: {left[name]} != {right[name]}")


class Generated(Case):
    def test_generated_tfrecords_in_tensorflow_match_generated_parquet_in_pyarrow(self):
        common = ["generate", "--rows", "3000", "--shards", "3", "--seed", "11"]
        millstream(*common, self.scratch / "clicks.parquet")
        expected = parquet_rows(self.files("clicks-*.parquet"))
        for compression in COMPRESSIONS:
            millstream(*common, "--compression", compression, self.scratch / f"{compression}.tfrecord")
            self.assert_rows(read_tfrecords(self.files(f"{compression}-*.tfrecord*"), compression), expected)


class Converted(Case):
    def write_csv(self, rows: int) -> list[dict]:
        draw = random.Random(5)
        path = self.scratch / "table.csv"
        expected = []
        with open(path, "w", newline="") as out:
            writer = csv.writer(out)
            writer.writerow(["count", "ratio", "name"])
            for _ in range(rows):
                count, ratio = draw.randint(-(2**62), 2**62), draw.uniform(-10, 10)
                name = draw.choice(["plain", "with, comma", 'with "quotes"', "ünï", "x" * 300])
                writer.writerow([count, repr(ratio), name])
                expected.append({"count": [count], "ratio": [ratio], "name": [name.encode()]})
        return expected

    def test_tensorflow_reads_converted_csv(self):
        expected = self.write_csv(2000)
        single = [{**row, "ratio": [float(tf.constant(row["ratio"][0], tf.float32).numpy())]} for row in expected]
        for compression in COMPRESSIONS:
            out = self.scratch / f"{compression}.tfrecord"
            millstream("convert", self.scratch / "table.csv", out, "--shards", "2", "--compression", compression)
            self.assert_rows(read_tfrecords(self.files(f"{compression}-*.tfrecord*"), compression), single)

    def test_pyarrow_reads_converted_csv(self):
        expected = self.write_csv(2000)
        millstream("convert", self.scratch / "table.csv", self.scratch / "table.parquet")
        self.assert_rows(parquet_rows(self.files("table.parquet")), expected)

    def test_tensorflow_reads_converted_pyarrow_parquet(self):
        import pyarrow as pa

        draw = random.Random(6)
        columns = {
            "id": pa.array([draw.randint(0, 9) if draw.random() < 0.8 else None for _ in range(1000)], pa.int64()),
            "score": pa.array([draw.random() for _ in range(1000)], pa.float32()),
            "tags": pa.array([[draw.choice("abc") for _ in range(draw.randint(0, 4))] for _ in range(1000)], pa.list_(pa.string())),
        }
        pq.write_table(pa.table(columns), self.scratch / "in.parquet", row_group_size=300)
        millstream("convert", self.scratch / "in.parquet", self.scratch / "out.tfrecord")
        self.assert_rows(read_tfrecords(self.files("out.tfrecord"), "none"), parquet_rows(self.files("in.parquet")))


class Read(Case):
    def write_tfrecords(self, compression: str, rows: int) -> pathlib.Path:
        draw = random.Random(7)
        path = self.scratch / f"tf-{compression}.tfrecord"
        with tf.io.TFRecordWriter(str(path), tf.io.TFRecordOptions(compression_type=COMPRESSIONS[compression])) as out:
            for _ in range(rows):
                feature = {
                    "ints": tf.train.Feature(int64_list=tf.train.Int64List(value=[draw.randint(-(2**63), 2**63 - 1)])),
                    "floats": tf.train.Feature(float_list=tf.train.FloatList(value=[draw.gauss(0, 1) for _ in range(draw.randint(0, 3))])),
                    "bytes": tf.train.Feature(bytes_list=tf.train.BytesList(value=[draw.randbytes(draw.randint(0, 40))])),
                    "none": tf.train.Feature(),
                }
                if draw.random() < 0.3:
                    del feature["ints"]
                out.write(tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString())
        return path

    def assert_matches_tensorflow(self, paths, compression: str):
        expected = read_tfrecords(paths, compression)
        report = millstream("inspect", *paths)
        files = report["files"] if isinstance(report, dict) else report
        self.assertEqual(sum(file["records"] for file in files), len(expected))
        self.assertTrue(all(file["error"] is None and file["compression"] == compression for file in files))
        out = self.scratch / f"read-{compression}.parquet"
        millstream("convert", *paths, out)
        self.assert_rows(parquet_rows(self.files(out.name)), expected)

    def test_millstream_reads_tensorflow_files(self):
        for compression in COMPRESSIONS:
            self.assert_matches_tensorflow([self.write_tfrecords(compression, 1500)], compression)

    def test_millstream_reads_tensorflow_sequence_examples(self):
        draw = random.Random(9)
        path = self.scratch / "sequences.tfrecord"
        expected = []
        with tf.io.TFRecordWriter(str(path)) as out:
            for _ in range(500):
                steps = draw.randint(0, 6)
                row = {
                    "user": [draw.randint(-(2**63), 2**63 - 1)],
                    "items": [draw.randint(0, 2**40) for _ in range(steps)],
                    "words": [draw.randbytes(draw.randint(0, 9)) for _ in range(steps)],
                    "frames": [float(draw.randint(-9, 9)) for _ in range(2 * steps)],
                }
                expected.append({name: values for name, values in row.items() if values})
                ints = lambda values: tf.train.Feature(int64_list=tf.train.Int64List(value=values))
                texts = lambda values: tf.train.Feature(bytes_list=tf.train.BytesList(value=values))
                floats = lambda values: tf.train.Feature(float_list=tf.train.FloatList(value=values))
                lists = {
                    "items": [ints([value]) for value in row["items"]],
                    "words": [texts([value]) for value in row["words"]],
                    "frames": [floats(row["frames"][2 * step : 2 * step + 2]) for step in range(steps)],
                }
                example = tf.train.SequenceExample(
                    context=tf.train.Features(feature={"user": ints(row["user"])}),
                    feature_lists=tf.train.FeatureLists(feature_list={name: tf.train.FeatureList(feature=steps) for name, steps in lists.items()}),
                )
                out.write(example.SerializeToString())
        millstream("convert", path, self.scratch / "sequences.parquet")
        self.assert_rows(parquet_rows(self.files("sequences.parquet")), expected)

    def test_a_page_checksum_mismatch_is_damage(self):
        import pyarrow as pa

        path = self.scratch / "summed.parquet"
        table = pa.table({"number": pa.array(range(5_000), pa.int64())})
        pq.write_table(table, path, compression="none", use_dictionary=False, write_page_checksum=True)
        self.assertEqual(millstream("convert", path, self.scratch / "whole.parquet")["rows"], 5_000)
        file = bytearray(path.read_bytes())
        at = file.index((2_500).to_bytes(8, "little"))
        file[at] ^= 1
        path.write_bytes(file)
        message = millstream("convert", path, self.scratch / "damaged.parquet", expect=1)
        self.assertRegex(message, r"summed\.parquet.*checksum")
        self.assertFalse((self.scratch / "damaged.parquet").exists())

    def test_pages_excluded_by_a_filter_are_not_read(self):
        import pyarrow as pa

        rows, path = 60_000, self.scratch / "paged.parquet"
        draw = random.Random(3)
        table = pa.table(
            {
                "day": pa.array([row // 1_000 for row in range(rows)], pa.int32()),
                "clicked": pa.array([row % 2 for row in range(rows)], pa.int64()),
                "word": pa.array([draw.randbytes(200).hex() if draw.random() < 0.9 else None for _ in range(rows)]),
            }
        )
        options = {"compression": "none", "use_dictionary": False, "data_page_size": 1 << 14}
        pq.write_table(table, path, row_group_size=rows, write_page_index=True, **options)
        job = self.scratch / "job.toml"
        job.write_text(
            f"""name = "paged"
[data]
train = ["{path}"]
eval = []
filter = [{{ column = "day", op = "in", value = [7, 41] }}]
[label]
column = "clicked"
[features]
word = {{ kind = "hashed", buckets = 100 }}
[model]
kind = "wide_deep"
wide.features = ["word"]
deep.features = ["word"]
"""
        )
        measured = millstream("bench", "ingest", job)
        self.assertEqual(measured["rows"], 2_000)
        self.assertLess(measured["bytes"], path.stat().st_size / 4)

    def test_millstream_reads_tfx_files(self):
        lab = os.environ.get("MILLSTREAM_LAB_DATA")
        paths = sorted(pathlib.Path(lab).glob("chicago_taxi/Split-*/data_tfrecord-*.gz")) if lab else [self.write_tfrecords("gzip", 3000)]
        self.assertTrue(paths)
        self.assert_matches_tensorflow(paths, "gzip")


if __name__ == "__main__":
    unittest.main()
