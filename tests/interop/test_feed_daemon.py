"""Feeds that a daemon hosts: programs find its socket, and fall back to a process of their own only where none listens."""

import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import millstream as ms
from millstream import daemon
from support import policies

ROOT = pathlib.Path(__file__).resolve().parents[2]
MILLSTREAM = pathlib.Path(os.environ.get("MILLSTREAM") or ROOT / "target" / "release" / "millstream")
ROWS = 1_000
VARIABLES = ("MILLSTREAM_SOCKET", "MILLSTREAM_FEED_SOCKET", "XDG_RUNTIME_DIR")


class Daemon:
    """A separate daemon in `room`, and the command for it."""

    def __init__(self, room: pathlib.Path, configuration: str = "") -> None:
        self.room, self.socket = room, room / "millstreamd.sock"
        (room / "millstreamd.toml").write_text(configuration)
        line = ["--socket", self.socket, "--state", room / "state", "--config", room / "millstreamd.toml"]
        log = (room / "daemon.log").open("ab")
        self.process = subprocess.Popen([MILLSTREAM.parent / "millstreamd", *line], stderr=log)
        deadline = time.monotonic() + 60
        while self.run("list").returncode:
            assert time.monotonic() < deadline and self.process.poll() is None
            time.sleep(0.05)

    def run(self, *arguments):
        return subprocess.run([MILLSTREAM, "--socket", self.socket, *arguments], capture_output=True, text=True)

    def stop(self, how=signal.SIGTERM):
        self.process.send_signal(how)
        self.process.wait()


@pytest.fixture
def room(monkeypatch):
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    # Short, because the path of a socket is.
    with tempfile.TemporaryDirectory() as directory:
        os.chmod(directory, 0o755)
        room = pathlib.Path(directory)
        pq.write_table(pa.table({"number": np.arange(ROWS)}), room / "train.parquet", row_group_size=100)
        yield room


def feed(room, **more):
    arguments = {"batch_size": 100, "epochs": 1, "memory_budget": "64MiB", **more}
    columns = {"number": ms.tensor("number", "int64")}
    return ms.Feed(train=str(room / "train.parquet"), columns=columns, **arguments)


def numbers(loader):
    return sorted(int(number) for batch in loader for number in batch["number"])


def test_a_program_uses_the_daemon_beside_the_control_socket(room, monkeypatch):
    monkeypatch.setenv("MILLSTREAM_SOCKET", str(room / "millstreamd.sock"))
    assert daemon.address(None) == (str(room / "feed.sock"), False)
    running = Daemon(room)
    try:
        loader = ms.Loader(feed(room))
        first = next(iter(loader))
        listed = running.run("feeds")
        assert listed.returncode == 0 and "feeding" in listed.stdout, listed
        name = next(word for word in listed.stdout.split() if word.startswith("feed-"))
        explained = running.run("explain", name)
        assert explained.returncode == 0 and "bottleneck" in explained.stdout, explained
        of_ingest = {policy for name, policy in policies(running.process.pid) if name.startswith("ingest-")}
        assert of_ingest == {os.SCHED_BATCH}, "it interrupts the programs of the machine"
        seen = [int(number) for number in first["number"]]
        assert sorted(seen + numbers(loader)) == list(range(ROWS))
        loader.close()
    finally:
        running.stop()


def test_relative_paths_start_at_the_directory_of_the_program(room, monkeypatch):
    monkeypatch.setenv("MILLSTREAM_FEED_SOCKET", str(room / "feed.sock"))
    monkeypatch.chdir(room)
    running = Daemon(room)
    try:
        columns = {"number": ms.tensor("number", "int64")}
        loader = ms.Loader(ms.Feed(train="train.parquet", columns=columns, batch_size=100))
        assert numbers(loader) == list(range(ROWS))
        (room / "feed.toml").write_text(
            '[data]\ntrain = ["train.parquet"]\nbatch_size = 100\n[columns]\nnumber = { dtype = "int64" }\n'
        )
        assert numbers(ms.Loader(ms.Feed.from_toml("feed.toml"))) == list(range(ROWS))
    finally:
        running.stop()


def test_without_a_daemon_a_process_reads(room, monkeypatch):
    monkeypatch.setenv("MILLSTREAM_SOCKET", str(room / "millstreamd.sock"))
    assert numbers(ms.Loader(feed(room))) == list(range(ROWS))
    # A killed daemon leaves the file of its socket.
    running = Daemon(room)
    running.stop(signal.SIGKILL)
    assert (room / "feed.sock").exists()
    assert numbers(ms.Loader(feed(room))) == list(range(ROWS))
    running = Daemon(room)
    try:
        assert numbers(ms.Loader(feed(room), socket="none")) == list(range(ROWS))
        assert "reserved by 0 feeds" in running.run("feeds").stdout
        opened = [line for line in running.run("metrics").stdout.splitlines() if "feeds_opened_total " in line]
        assert opened[-1].endswith(" 0"), opened
    finally:
        running.stop()


def test_a_socket_that_is_named_must_answer(room):
    with pytest.raises(ms.FeedError, match="no daemon listens on .*nobody.sock"):
        next(iter(ms.Loader(feed(room), socket=room / "nobody.sock")))


def test_a_refusal_is_an_error(room, monkeypatch):
    monkeypatch.setenv("MILLSTREAM_SOCKET", str(room / "millstreamd.sock"))
    running = Daemon(room, '[feeds]\nmemory = "63MiB"\n')
    try:
        with pytest.raises(ms.FeedError, match=r"the feed needs 64.0 MiB.*memory_budget.*\[feeds\]"):
            next(iter(ms.Loader(feed(room))))
        if os.geteuid() != 0:
            return
        program = (
            "import os, sys, millstream as ms\n"
            "os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
            "feed = ms.Feed(train=sys.argv[1], columns={'number': ms.tensor('number', 'int64')}, batch_size=100)\n"
            "try: next(iter(ms.Loader(feed)))\n"
            "except ms.FeedError as error: print(error)\n"
        )
        line = [sys.executable, "-c", program, str(room / "train.parquet")]
        refused = subprocess.run(line, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path()})
        assert "this user may not use the daemon of this machine" in refused.stdout, refused
    finally:
        running.stop()


def path():
    return os.pathsep.join(entry for entry in sys.path if entry)


@pytest.mark.parametrize(("how", "why"), [(signal.SIGTERM, "stops"), (signal.SIGKILL, "has ended")])
def test_a_daemon_that_ends_is_an_error_and_the_next_one_continues(room, monkeypatch, how, why):
    monkeypatch.setenv("MILLSTREAM_SOCKET", str(room / "millstreamd.sock"))
    running = Daemon(room)
    loader = ms.Loader(feed(room, epochs=3, prefetch=2))
    seen = []
    batches = iter(loader)
    for _ in range(4):
        batch = next(batches)
        seen += [int(number) for number in batch["number"]]
        state = batch.state_dict()
    del batch
    running.stop(how)
    with pytest.raises(ms.FeedError, match=f"millstreamd.*{why}.*attach again"):
        while True:
            next(batches)
    running = Daemon(room)
    try:
        loader.load_state_dict(state)
        for _ in range(3):
            seen += numbers(loader)
        assert sorted(seen) == sorted(list(range(ROWS)) * 3)
        loader.close()
    finally:
        running.stop()
