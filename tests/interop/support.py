"""Shared by the interoperability tests: running the built command, ranks of feeds, and comparing values."""

import contextlib
import json
import math
import os
import pathlib
import subprocess
import tempfile
import threading
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
MILLSTREAM = pathlib.Path(os.environ.get("MILLSTREAM") or ROOT / "target" / "release" / "millstream")


def millstream(*arguments, expect: int = 0):
    """Runs `millstream ... --json`. Returns the document, or, if it is expected to fail, standard error."""
    done = subprocess.run([MILLSTREAM, *map(str, arguments), "--json"], capture_output=True, text=True)
    assert done.returncode == expect, f"millstream {arguments}: status {done.returncode}\n{done.stderr}"
    return done.stderr if expect else json.loads(done.stdout)


def ranks(of, world, see, tail="pad", local_world=None, shard=False, gathered=False, state=None):
    """Runs `see(loader)` for each rank of the feed `of` in a thread, from `state` on; returns the results by rank.

    With `local_world`, so many consecutive ranks are on one machine, and share a host; the last one may have fewer. With
    `shard`, each machine reads a share of the data. Ranks are connected then, and if `gathered`.
    """
    import millstream as ms

    local_world = local_world or world
    results, run = [None] * world, f"{os.getpid()} {time.monotonic()}"
    said, barrier = [None] * world, threading.Barrier(world)

    def gather_of(rank):
        def gather(text):
            said[rank] = text
            barrier.wait(60)
            found = list(said)
            barrier.wait(60)
            return found

        return gather

    def attach(rank):
        results[rank] = see(loaders[rank])

    def loader_of(rank):
        machine = rank // local_world
        here = min(local_world, world - machine * local_world)
        more = {"shard": shard, "gather": gather_of(rank)} if shard or gathered else {}
        return ms.Loader(of, rank=rank, world=world, local_world=here, tail=tail, run=f"{run} {machine}", **more)

    loaders = [loader_of(rank) for rank in range(world)]
    for loader in loaders:
        # Loaders of one process are several programs; these are the ranks of one.
        loader._run = "0"
        loader.load_state_dict(state)
    threads = [threading.Thread(target=attach, args=(rank,)) for rank in range(world)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert None not in results
    return results


def hosts() -> list[int]:
    """The processes that host the feeds of this one."""
    threads = pathlib.Path("/proc/self/task").glob("*/children")
    children = [pid for children in threads for pid in children.read_text().split()]
    return [int(pid) for pid in children if b"host.main()" in pathlib.Path(f"/proc/{pid}/cmdline").read_bytes()]


def host() -> int:
    """The process that hosts the feeds of this one: the child that was started last."""
    return max(hosts())


def policies(pid) -> list[tuple[str, int]]:
    """The names of the threads of a process, and how they are scheduled: field 41 of `stat` in proc_pid_stat(5)."""
    found = []
    for path in pathlib.Path(f"/proc/{pid}/task").glob("*/stat"):
        # A thread may end at any time.
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            # The second field is the name, in parentheses.
            name, _, fields = path.read_text().partition("(")[2].rpartition(") ")
            found.append((name, int(fields.split()[41 - 3])))
    return found


def memory(pid, key="Pss") -> int:
    """The bytes of memory that the process has, shared ones divided among those who share them."""
    lines = pathlib.Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith(f"{key}:")).split()[1])


class WithoutDaemon(unittest.TestCase):
    """Tests that share a directory, `scratch`, and run without a daemon except those that commands host."""

    scratch: pathlib.Path

    @classmethod
    def setUpClass(cls):
        scratch = tempfile.TemporaryDirectory()
        cls.addClassCleanup(scratch.cleanup)
        cls.scratch = pathlib.Path(scratch.name)
        os.environ["MILLSTREAM_SOCKET"] = str(cls.scratch / "nobody.sock")
        cls.addClassCleanup(os.environ.pop, "MILLSTREAM_SOCKET")


def feature_values(feature) -> list:
    """The values of a tf.train.Feature of any kind; an absent feature has none."""
    kind = feature.WhichOneof("kind")
    return list(getattr(feature, kind).value) if kind else []


def row_of(example) -> dict:
    """A tf.train.Example as {name: list of values}, without empty features."""
    row = {name: feature_values(feature) for name, feature in example.features.feature.items()}
    return {name: values for name, values in row.items() if values}


def same(left, right) -> bool:
    """Exact equality of values, where NaN equals NaN."""
    if isinstance(left, float) and isinstance(right, float):
        return left == right or (math.isnan(left) and math.isnan(right))
    return left == right
