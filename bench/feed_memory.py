"""Measures the memory of ranks that take batches at the same time, with all processes that they start.

    python3 bench/feed_memory.py DIRECTORY SHAPE LOADER      takes batches without end, as the rank RANK of WORLD_SIZE
"""

import contextlib
import itertools
import os
import pathlib
import signal
import statistics
import subprocess
import sys
import time

import feed_rival
from feed_data import BATCH, POOL, feed

RANKS = 8
# Batches of each rank before its memory is measured.
SETTLED = 30
# The lanes of Millstream, by measure: files that it reads side by side.
LANES = {"millstream": {}, "millstream_4_lanes": {"lanes": 4}}
SAMPLES, PAUSE_SECONDS, END_SECONDS = 8, 0.25, 60


def of_ranks(directory: pathlib.Path, shape: str, what: str) -> dict[str, float]:
    """Bytes: the median and the greatest sum of the proportional set sizes (PSS) of all processes, the median of their shared
    memory, and the memory that the rings map; and the number of processes.
    """
    command = [sys.executable, __file__, directory, shape, what]
    ranks, samples, pids = [], [], []
    try:
        for rank in range(RANKS):
            environment = {**os.environ, "RANK": str(rank), "WORLD_SIZE": str(RANKS)}
            ranks.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment))
        lines = [rank.stdout.readline() for rank in ranks]
        assert all(lines), "a rank has ended before it took batches"
        for _ in range(SAMPLES):
            pids = descendants(os.getpid())
            samples.append([sum(sizes) for sizes in zip(*map(memory, pids))])
            time.sleep(PAUSE_SECONDS)
        assert all(rank.poll() is None for rank in ranks), "a rank has ended while it was measured"
    finally:
        end(ranks)
    totals, shared = zip(*samples)
    of = {"pss": statistics.median(totals), "peak": max(totals), "shared": statistics.median(shared)}
    return {**of, "rings": sum(map(int, lines)), "processes": len(pids)}


def take(directory: pathlib.Path, shape: str, what: str) -> None:
    """Takes batches without end. Prints the bytes of the ring once it is at work."""
    import torch

    if what == "bare":
        torch.ones(1)
        print(0, flush=True)
        time.sleep(3_600)
    elif what in LANES:
        from millstream.torch import Loader

        of = feed(directory, shape, epochs=10_000, **LANES[what])
        loader = Loader(of, tail="drop", run=f"bench {os.getppid()}")
        batches = (batch for _ in loader.epochs for batch in loader)
        touch(batches, lambda: loader._client.memory[1])
    else:
        share = {"batch": BATCH // RANKS, "pool": POOL if what == "each" else POOL // RANKS}
        loader = feed_rival.dataloader(directory, shape, **share, rank=int(os.environ["RANK"]), world=RANKS)
        touch(itertools.chain.from_iterable(itertools.repeat(loader)), lambda: 0)


def touch(batches, ring_bytes) -> None:
    for number, batch in enumerate(batches):
        for tensor in batch.values():
            tensor.sum()
        if number == SETTLED:
            print(ring_bytes(), flush=True)


def descendants(pid: int) -> list[int]:
    """The processes that a process has started, those that they have started, and so on."""
    found = []
    # A process may end at any time.
    with contextlib.suppress(OSError):
        for task in os.listdir(f"/proc/{pid}/task"):
            children = pathlib.Path(f"/proc/{pid}/task/{task}/children").read_text()
            for child in map(int, children.split()):
                found += [child, *descendants(child)]
    return found


def memory(pid: int) -> tuple[int, int]:
    """The PSS of a process, and its shared memory, which is a part of it. Memory of several processes is divided among them."""
    with contextlib.suppress(OSError):
        lines = pathlib.Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
        of = {name: 1024 * int(rest.split()[0]) for name, _, rest in (line.partition(":") for line in lines)}
        return of["Pss"], of["Pss_Shmem"]
    return 0, 0


def end(ranks: list[subprocess.Popen]) -> None:
    """Ends ranks and all that they have started, so that nothing shares memory with the ranks that are measured next."""
    pids = descendants(os.getpid())
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    for rank in ranks:
        rank.communicate()
    deadline = time.monotonic() + END_SECONDS
    while any(memory(pid)[0] for pid in pids):
        assert time.monotonic() < deadline, "processes do not end"
        time.sleep(0.05)


if __name__ == "__main__":
    take(pathlib.Path(sys.argv[1]), *sys.argv[2:])
