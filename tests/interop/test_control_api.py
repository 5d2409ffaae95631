"""The control API as other programs call it: through reflection, without its definition, and by health checks."""

import contextlib
import os
import pathlib
import signal
import subprocess
import tempfile
import time
import unittest

import grpc
from google.protobuf import json_format
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from support import MILLSTREAM, ROOT

CONTROL = "millstream.control.v1.Control"
HANG_SECONDS = 60


@contextlib.contextmanager
def daemon(room: pathlib.Path):
    """A daemon with its state in `room`: its process and a channel to it."""
    socket = room / "d.sock"
    with (room / "daemon.log").open("wb") as log:
        process = subprocess.Popen(
            [MILLSTREAM.with_name("millstreamd"), "--socket", socket, "--state", room / "state"], stderr=log
        )
    options = [("grpc.default_authority", "localhost")]
    try:
        deadline = time.monotonic() + HANG_SECONDS
        while not socket.exists():
            assert process.poll() is None and time.monotonic() < deadline, (room / "daemon.log").read_text()
            time.sleep(0.05)
        with grpc.insecure_channel(f"unix:{socket}", options=options) as channel:
            yield process, channel
    finally:
        process.kill()
        process.wait()


class Api:
    """The control API as reflection describes it."""

    def __init__(self, channel: grpc.Channel):
        self.channel = channel
        self.database = ProtoReflectionDescriptorDatabase(channel)
        self.service = DescriptorPool(self.database).FindServiceByName(CONTROL)

    def call(self, name: str, **fields) -> dict:
        """Calls a method that answers with one message; returns its fields."""
        method = self.service.methods_by_name[name]
        ask = self.channel.unary_unary(
            f"/{CONTROL}/{name}",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=GetMessageClass(method.output_type).FromString,
        )
        answer = ask(GetMessageClass(method.input_type)(**fields), timeout=HANG_SECONDS)
        return json_format.MessageToDict(answer, preserving_proto_field_name=True)


class ControlApi(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.room = pathlib.Path(scratch.name)

    def test_a_client_without_the_definition_submits_and_shows_a_job(self):
        with daemon(self.room) as (_, channel):
            api = Api(channel)
            self.assertIn(CONTROL, api.database.get_services())
            path = ROOT / "examples" / "census" / "job.toml"
            directory = f"checkpoint.directory={self.room / 'runs'}"
            job = api.call("Submit", text=path.read_text(), path=str(path), set=["data.epochs=1", directory])
            deadline = time.monotonic() + HANG_SECONDS
            while (shown := api.call("Show", id=job["id"]))["state"] not in ("JOB_STATE_SUCCEEDED", "JOB_STATE_FAILED"):
                self.assertLess(time.monotonic(), deadline, shown)
                time.sleep(0.05)
            self.assertEqual(shown["state"], "JOB_STATE_SUCCEEDED", shown)
            self.assertEqual([listed["id"] for listed in api.call("List")["jobs"]], [job["id"]])
            with self.assertRaises(grpc.RpcError) as unknown:
                api.call("Show", id="none-such")
            self.assertEqual(unknown.exception.code(), grpc.StatusCode.NOT_FOUND)
            with self.assertRaises(grpc.RpcError) as invalid:
                api.call("Submit", text="nonsense = 1", path="/job.toml")
            self.assertEqual(invalid.exception.code(), grpc.StatusCode.INVALID_ARGUMENT)

    def test_comments_of_the_definition_are_served(self):
        with daemon(self.room) as (_, channel):
            file = ProtoReflectionDescriptorDatabase(channel).FindFileContainingSymbol(CONTROL)
            comments = [location.leading_comments for location in file.source_code_info.location]
            self.assertTrue(any("One job, with all its fields." in comment for comment in comments))

    def test_health_says_when_the_daemon_stops(self):
        with daemon(self.room) as (process, channel):
            health = health_pb2_grpc.HealthStub(channel)
            serving, not_serving = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING
            for service in ["", CONTROL]:
                answer = health.Check(health_pb2.HealthCheckRequest(service=service), timeout=HANG_SECONDS)
                self.assertEqual(answer.status, serving)
            with self.assertRaises(grpc.RpcError) as unknown:
                health.Check(health_pb2.HealthCheckRequest(service="x"), timeout=HANG_SECONDS)
            self.assertEqual(unknown.exception.code(), grpc.StatusCode.NOT_FOUND)
            watched = health.Watch(health_pb2.HealthCheckRequest(service=CONTROL), timeout=HANG_SECONDS)
            self.assertEqual(next(watched).status, serving)
            os.kill(process.pid, signal.SIGTERM)
            self.assertEqual(next(watched).status, not_serving)
            self.assertEqual(process.wait(HANG_SECONDS), 0)


if __name__ == "__main__":
    unittest.main()
