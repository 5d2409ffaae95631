"""Millstream reads and writes S3 as served by moto, an independent implementation of the protocol.

Run by `tests/run`, like `test_tensorflow.py`.
"""

import os
import pathlib
import tempfile
import unittest

import boto3
from moto.server import ThreadedMotoServer

from support import millstream

# More than a page of a listing, which holds 1,000 objects.
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

    def test_inspect_reports_objects_like_local_files(self):
        for name in self.names:
            [remote], [local] = millstream("inspect", f"s3://clicks/{name}"), millstream("inspect", self.scratch / name)
            self.assertTrue(remote["path"].endswith(name) and local["path"].endswith(name))
            self.assertEqual({**remote, "path": name}, {**local, "path": name})
            self.assertGreater(local["records"], 0)

    def test_a_job_reads_every_row(self):
        (self.scratch / "job.toml").write_text(JOB)
        self.assertEqual(millstream("bench", "ingest", self.scratch / "job.toml", "--epochs", "2")["rows"], 10_000)

    def test_generated_objects_match_local_files(self):
        for name in ["w.tfrecord.gz", "w.parquet"]:
            write = ["generate", "--rows", "5000", "--shards", "3", "--seed", "4"]
            remote = millstream(*write, f"s3://clicks/made/{name}")
            local = millstream(*write, self.scratch / "made" / name)
            self.assertEqual(remote["bytes"], local["bytes"])
            for address, path in zip(remote["files"], local["files"], strict=True):
                key = address.removeprefix("s3://clicks/")
                self.assertEqual(self.s3.get_object(Bucket="clicks", Key=key)["Body"].read(), pathlib.Path(path).read_bytes())
        millstream("convert", "s3://clicks/made/w-*.parquet", "s3://clicks/made/all.csv")
        millstream("convert", f"{self.scratch}/made/w-*.parquet", self.scratch / "made" / "all.csv")
        made = self.s3.get_object(Bucket="clicks", Key="made/all.csv")["Body"].read()
        self.assertEqual(made, (self.scratch / "made" / "all.csv").read_bytes())
        self.assertNotIn("Uploads", self.s3.list_multipart_uploads(Bucket="clicks"))

    def test_converting_objects_matches_converting_local_files(self):
        millstream("convert", "s3://clicks/a-*.tfrecord.gz", self.scratch / "remote.tfrecord")
        millstream("convert", self.scratch / "a-*.tfrecord.gz", self.scratch / "local.tfrecord")
        remote, local = ((self.scratch / f"{name}.tfrecord").read_bytes() for name in ["remote", "local"])
        self.assertEqual(remote, local)

    def test_a_listing_of_several_pages_is_complete(self):
        self.s3.create_bucket(Bucket="many")
        for number in range(SMALL_OBJECTS):
            self.s3.put_object(Bucket="many", Key=f"{number:05}.tfrecord", Body=b"")
        found = millstream("inspect", "s3://many/*.tfrecord", "--rows", "0")
        self.assertEqual(len(found), SMALL_OBJECTS)

    def test_a_missing_object_is_named(self):
        message = millstream("inspect", "s3://clicks/absent.parquet", expect=1)
        self.assertIn("s3://clicks/absent.parquet", message)
        self.assertIn("s3://nowhere/a.parquet", millstream("inspect", "s3://nowhere/a.parquet", expect=1))


if __name__ == "__main__":
    unittest.main()
