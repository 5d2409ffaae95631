"""Millstream reads and writes S3 as moto serves it: an implementation of the protocol that nobody here wrote.

Run by `tests/run`, as `test_tensorflow.py` is.
"""

import os
import pathlib
import tempfile
import unittest

import boto3
from moto.server import ThreadedMotoServer

from support import millstream

# A listing's page holds 1,000 objects.
SMALL_OBJECTS = 1_050

JOB = """name = "moto"
[data]
train = ["s3://clicks/*.parquet"]
eval = []
batch_size = 100
shuffle_rows = 500
[label]
column = "clicked"
[features]
i1 = { kind = "numeric", missing = 0 }
c1 = { kind = "hashed", buckets = 100 }
[model]
kind = "wide_deep"
wide.features = ["c1"]
wide.optimizer = { kind = "sgd" }
deep.features = ["i1", "c1"]
deep.optimizer = { kind = "sgd" }
"""


class Moto(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
        cls.server.start()
        cls.addClassCleanup(cls.server.stop)
        host, port = cls.server.get_host_and_port()
        settings = {
            "AWS_ENDPOINT_URL": f"http://{host}:{port}",
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_REGION": "us-east-1",
            "AWS_DEFAULT_REGION": "us-east-1",
        }
        before = os.environ.copy()
        cls.addClassCleanup(lambda: (os.environ.clear(), os.environ.update(before)))
        os.environ.update(settings)
        scratch = tempfile.TemporaryDirectory()
        cls.addClassCleanup(scratch.cleanup)
        cls.scratch = pathlib.Path(scratch.name)
        cls.s3 = boto3.client("s3")
        cls.s3.create_bucket(Bucket="clicks")
        generate = ["generate", "--rows", "5000", "--shards", "4", "--seed", "3"]
        for name in ["a.tfrecord.gz", "a.parquet"]:
            millstream(*generate, cls.scratch / name)
        cls.names = sorted(path.name for path in cls.scratch.iterdir())
        for name in cls.names:
            cls.s3.upload_file(str(cls.scratch / name), "clicks", name)

    def test_files_are_told_as_their_local_copies_are(self):
        for name in self.names:
            [there], [here] = millstream("inspect", f"s3://clicks/{name}"), millstream("inspect", self.scratch / name)
            self.assertTrue(there["path"].endswith(name) and here["path"].endswith(name))
            self.assertEqual({**there, "path": name}, {**here, "path": name})
            self.assertGreater(here["records"], 0)

    def test_a_job_reads_every_row(self):
        (self.scratch / "job.toml").write_text(JOB)
        self.assertEqual(millstream("bench", "ingest", self.scratch / "job.toml", "--epochs", "2")["rows"], 10_000)

    def test_files_are_written_there_as_they_are_here(self):
        for name in ["w.tfrecord.gz", "w.parquet"]:
            write = ["generate", "--rows", "5000", "--shards", "3", "--seed", "4"]
            there = millstream(*write, f"s3://clicks/made/{name}")
            here = millstream(*write, self.scratch / "made" / name)
            self.assertEqual(there["bytes"], here["bytes"])
            for address, path in zip(there["files"], here["files"], strict=True):
                key = address.removeprefix("s3://clicks/")
                self.assertEqual(self.s3.get_object(Bucket="clicks", Key=key)["Body"].read(), pathlib.Path(path).read_bytes())
        millstream("convert", "s3://clicks/made/w-*.parquet", "s3://clicks/made/all.csv")
        millstream("convert", f"{self.scratch}/made/w-*.parquet", self.scratch / "made" / "all.csv")
        made = self.s3.get_object(Bucket="clicks", Key="made/all.csv")["Body"].read()
        self.assertEqual(made, (self.scratch / "made" / "all.csv").read_bytes())
        self.assertNotIn("Uploads", self.s3.list_multipart_uploads(Bucket="clicks"))

    def test_converted_objects_are_those_of_local_files(self):
        millstream("convert", "s3://clicks/a-*.tfrecord.gz", self.scratch / "there.tfrecord")
        millstream("convert", self.scratch / "a-*.tfrecord.gz", self.scratch / "here.tfrecord")
        there, here = ((self.scratch / f"{name}.tfrecord").read_bytes() for name in ["there", "here"])
        self.assertEqual(there, here)

    def test_a_listing_of_several_pages_is_whole(self):
        self.s3.create_bucket(Bucket="many")
        for number in range(SMALL_OBJECTS):
            self.s3.put_object(Bucket="many", Key=f"{number:05}.tfrecord", Body=b"")
        found = millstream("inspect", "s3://many/*.tfrecord", "--rows", "0")
        self.assertEqual(len(found), SMALL_OBJECTS)

    def test_an_object_that_is_not_there_is_named(self):
        message = millstream("inspect", "s3://clicks/absent.parquet", expect=1)
        self.assertIn("s3://clicks/absent.parquet", message)
        self.assertIn("s3://nowhere/a.parquet", millstream("inspect", "s3://nowhere/a.parquet", expect=1))


if __name__ == "__main__":
    unittest.main()
