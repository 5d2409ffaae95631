#!/usr/bin/env python3
"""Counts what a search fetches from an object store: without a cache, and with one that its trials share.

    python3 bench/search.py JOB.toml DATA [--trials 8] [--parallel 2] [--limit BYTES_PER_SECOND] [--out bench/results/NAME.md]

JOB defines the features and the model; DATA is a directory with train-*.parquet and eval.parquet. They should be several
times larger than the 64 MiB of fetched bytes that a daemon keeps. The search varies the learning rate and the batch size of one
epoch. The store's responses pass through a relay that counts their bytes. Needs the built programs.
"""

import argparse
import contextlib
import datetime
import os
import pathlib
import platform
import resource
import socket
import subprocess
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
BUILT = ROOT / "target" / "release"
SEARCH = """
[search]
algorithm = "random"
trials = {trials}
parallel = {parallel}
seed = 1

[search.parameters]
"{rate}" = {{ min = 1e-3, max = 0.1, scale = "log" }}
"data.batch_size" = {{ values = [2048, 4096] }}
"""


class Relay:
    """Passes connections on to a port, and counts the bytes that come back."""

    def __init__(self, port: int):
        self.target = port
        self.received = 0
        self.lock = threading.Lock()
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=256)
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self) -> None:
        while True:
            client, _ = self.listener.accept()
            threading.Thread(target=self.connect, args=(client,), daemon=True).start()

    def connect(self, client: socket.socket) -> None:
        with client, socket.create_connection(("127.0.0.1", self.target)) as server:
            requests = threading.Thread(target=self.copy, args=(client, server, False), daemon=True)
            requests.start()
            self.copy(server, client, True)
            requests.join()

    def copy(self, source: socket.socket, sink: socket.socket, is_counted: bool) -> None:
        try:
            while data := source.recv(1 << 18):
                if is_counted:
                    with self.lock:
                        self.received += len(data)
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            # One side has gone: neither direction goes on.
            for end in (source, sink):
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


def wait_for(port: int) -> None:
    for _ in range(400):
        with contextlib.suppress(OSError):
            socket.create_connection(("127.0.0.1", port)).close()
            return
        time.sleep(0.05)
    raise SystemExit("the store does not start")


def search(job: pathlib.Path, relay: Relay, room: pathlib.Path, trials: int, with_cache: bool) -> tuple[int, float, float]:
    """Bytes fetched, seconds, and processor seconds of a search."""
    sets = ["data.epochs=1", f"checkpoint.directory={room}", 'data.train=["gs://test/train-*.parquet"]']
    sets += ['data.eval=["gs://test/eval.parquet"]', f"storage.gs.endpoint=http://127.0.0.1:{relay.port}"]
    sets += ["storage.gs.anonymous=true", "evaluation.every_epochs=1"]
    if with_cache:
        sets += [f"data.cache.directory={room / 'cache'}", "data.cache.max_bytes=1TiB"]
    words = [word for text in sets for word in ("--set", text)]
    before, started, used = relay.received, time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([BUILT / "millstream", "train", "--local", job, *words], check=True, capture_output=True, text=True)
    ended = done.stdout.count(" finished ")
    if ended != trials:
        raise SystemExit(f"{ended} of {trials} trials finished:\n{done.stdout}")
    now = resource.getrusage(resource.RUSAGE_CHILDREN)
    processor = now.ru_utime + now.ru_stime - used.ru_utime - used.ru_stime
    return relay.received - before, time.monotonic() - started, processor


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("job", type=pathlib.Path)
    parser.add_argument("data", type=pathlib.Path)
    parser.add_argument("--trials", type=int, default=8)
    parser.add_argument("--parallel", type=int, default=2)
    parser.add_argument("--rate", default="model.deep.optimizer.learning_rate", help="the key of a learning rate")
    parser.add_argument("--limit", type=int, default=0, help="bytes per second of the store")
    parser.add_argument("--out", type=pathlib.Path)
    options = parser.parse_args()

    size = sum(path.stat().st_size for path in options.data.iterdir())
    port = free_port()
    store = subprocess.Popen([BUILT / "millstream-test-storage", f"127.0.0.1:{port}", str(options.limit), options.data])
    lines = [
        f"## What a search fetches, {datetime.date.today()}",
        "",
        f"{platform.machine()}, {os.cpu_count()} cores; {options.job}, {size / 1e6:.0f} MB of data, {options.trials} trials of one",
        f"epoch, {options.parallel} at a time.",
        "",
        "| search | fetched, MB | of the data | wall, s | processor, s |",
        "|---|---:|---:|---:|---:|",
    ]
    try:
        wait_for(port)
        relay = Relay(port)
        for name, with_cache in [("without a cache", False), ("with a cache", True)]:
            with tempfile.TemporaryDirectory(dir=ROOT / "target") as room:
                job = pathlib.Path(room) / "job.toml"
                section = SEARCH.format(trials=options.trials, parallel=options.parallel, rate=options.rate)
                job.write_text(options.job.read_text() + section)
                fetched, wall, processor = search(job, relay, pathlib.Path(room), options.trials, with_cache)
            lines.append(f"| {name} | {fetched / 1e6:.0f} | {fetched / size:.2f} | {wall:.1f} | {processor:.1f} |")
            print(lines[-1], flush=True)
    finally:
        store.kill()
    text = "\n".join(lines) + "\n"
    print(text)
    if options.out:
        options.out.write_text(text)


if __name__ == "__main__":
    main()
