"""What users of other loaders complain about, as tests of feeds. Each names issues of those projects."""

import collections
import os
import pathlib
import signal
import subprocess
import sys
import time

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import millstream as ms
from support import ranks


def write(directory, rows, files=1, width=1):
    random = np.random.default_rng(1)
    for number, numbers in enumerate(np.array_split(np.arange(rows), files)):
        values = random.random((len(numbers), width), dtype=np.float32)
        table = {"number": numbers, "values": pa.array(list(values))}
        pq.write_table(pa.table(table), directory / f"{number:03}.parquet", row_group_size=1_000)
    return str(directory / "*.parquet")


def feed(train, **more):
    columns = {"number": ms.tensor("number", "int64"), "values": ms.ragged("values", "float32", 64)}
    return ms.Feed(train=train, columns=columns, **{"batch_size": 10, "shuffle_rows": 64, "seed": 1, **more})


def rows(loader):
    return [batch["number"][batch.mask].tolist() for batch in loader]


def test_uneven_rows_do_not_hang_ranks(tmp_path):
    """pytorch 141069, torchrec 3132, litData 233: ranks with fewer rows than others hang NCCL."""
    train = write(tmp_path, 1_001)
    for world in range(1, 8):
        of, steps = feed(train, batch_size=12 * world), -(-1_001 // (12 * world))
        seen = ranks(of, world, rows)
        assert {len(taken) for taken in seen} == {steps}
        assert sorted(row for taken in seen for step in taken for row in step) == list(range(1_001))
        dropped = ranks(of, world, lambda loader: [len(batch["number"]) for batch in loader], tail="drop")
        assert dropped == [[12] * (steps - 1)] * world


def test_rows_are_not_repeated_to_divide_evenly(tmp_path):
    """Streaming 706: samples are repeated so that every rank has as many."""
    seen = ranks(feed(write(tmp_path, 500), batch_size=32), 32, rows)
    assert collections.Counter(row for steps in seen for step in steps for row in step) == dict.fromkeys(range(500), 1)


def test_every_epoch_has_each_row_once(tmp_path):
    """webdataset 234, 271: "use resampling"."""
    loader = ms.Loader(feed(write(tmp_path, 700, files=7), epochs=5))
    orders = [sum(rows(loader), []) for _ in loader.epochs]
    assert all(sorted(order) == list(range(700)) for order in orders)
    assert len({tuple(order) for order in orders}) == 5


def test_many_resumes_in_one_epoch_lose_and_repeat_nothing(tmp_path):
    """datasets 7901, 8308, 8408, KempnerForge 57, accelerate 2016: the second resume starts over, or loses the buffer."""
    of = feed(write(tmp_path, 1_000, files=5), epochs=4, shuffle_rows=300)
    whole = ms.Loader(of)
    expected = [step for _ in whole.epochs for step in rows(whole)]
    state, seen = None, []
    while len(seen) < len(expected):
        loader = ms.Loader(of)
        loader.load_state_dict(state)
        # Twenty resumes in each epoch.
        for batch in loader:
            seen.append(batch["number"].tolist())
            if len(seen) % 5 == 0:
                break
        state = batch.state_dict()
        loader.close()
    assert seen == expected


def test_a_resume_does_not_read_the_past_again(tmp_path):
    """accelerate 2859, datasets 5454: a resume replays for hours."""
    of = feed(write(tmp_path, 200_000, files=20, width=64), batch_size=1_000, shuffle_rows=2_000, lanes=4)
    loader = ms.Loader(of)
    state = next(batch.state_dict() for batch in loader if batch.number == 197)
    whole = read_bytes()
    loader.close()
    resumed = ms.Loader(of)
    resumed.load_state_dict(state)
    assert [batch.number for batch in resumed] == [198, 199]
    assert read_bytes() - whole < whole / 10


def host():
    """The process that hosts the feeds of this one: the child that was started last."""
    children = pathlib.Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    found = [pid for pid in children if b"host.main()" in pathlib.Path(f"/proc/{pid}/cmdline").read_bytes()]
    return max(map(int, found))


def read_bytes():
    """The bytes that the host has read, from files or the page cache."""
    lines = pathlib.Path(f"/proc/{host()}/io").read_text().splitlines()
    return int(dict(line.split(": ") for line in lines)["rchar"])


def memory(pid, key="Pss"):
    lines = pathlib.Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith(f"{key}:")).split()[1])


def test_memory_is_flat_over_ten_epochs(tmp_path):
    """pytorch 13246: memory grows with every epoch."""
    loader = ms.Loader(feed(write(tmp_path, 50_000, files=5, width=16), batch_size=500, epochs=10, shuffle_rows=2_000))
    after = []
    for _ in loader.epochs:
        for _ in loader:
            pass
        after.append(memory(os.getpid()) + memory(host()))
    assert max(after[3:]) < 1.05 * after[2] + (8 << 20), after


PROGRAM = """
import os, signal, sys, time
import millstream as ms
# Where the tests run in the background, it is ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)
feed = ms.Feed(train=sys.argv[1], columns={"values": ms.tensor("values", "float32", [1024])}, batch_size=4096,
               shuffle_rows=4096, lanes=4, epochs=1000, memory_budget="1GiB")
loader = ms.Loader(feed, run=sys.argv[2])
batch = next(iter(loader))
if os.fork() == 0:
    time.sleep(60)
print("trains", flush=True)
for batch in loader:
    pass
"""


def with_rings():
    """The processes that have the memory of a ring."""
    found = set()
    for directory in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            maps = (directory / "maps").read_text()
        except OSError:
            continue
        if "millstream-ring" in maps:
            found.add(int(directory.name))
    return found


def processes(argument):
    """The processes with this argument."""
    found = []
    for directory in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            command = (directory / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if argument.encode() in command:
            found.append(int(directory.name))
    assert found
    return found


def can_mount():
    """Whether this user may mount, as root may outside of most containers."""
    return subprocess.run(["unshare", "--mount", "true"], capture_output=True).returncode == 0


def start(train, run):
    return subprocess.Popen([sys.executable, "-c", PROGRAM, train, run], stdout=subprocess.PIPE, text=True)


def test_killed_programs_with_children_leave_no_memory(tmp_path):
    """pytorch 5736, 8805: orphans hold memory; Streaming 573, 781: shared memory that is stale after Ctrl-C."""
    train = write(tmp_path, 8_000, width=1_024)
    before = with_rings()
    for attempt, how in enumerate([signal.SIGKILL, signal.SIGINT] * 4):
        # The same name: a program that starts again at once is in no way hindered by the one before.
        program = start(train, str(tmp_path))
        assert program.stdout.readline() == "trains\n", attempt
        assert len(with_rings() - before) >= 3, "the program, its child and the host"
        program.send_signal(how)
        program.wait()
    # Each of them has a view of the batches of its parent.
    for child in processes(str(tmp_path)):
        os.kill(child, signal.SIGKILL)
    deadline = time.monotonic() + 60
    while with_rings() - before:
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.skipif(not can_mount(), reason="a small /dev/shm cannot be mounted here")
def test_a_small_dev_shm_is_enough(tmp_path):
    """pytorch 5040: a bus error where /dev/shm is small, as in containers."""
    train = write(tmp_path, 20_000, width=1_024)
    mount = 'mount -t tmpfs -o size=16m none /dev/shm && exec "$@"'
    code = (
        "import sys, millstream as ms\n"
        "feed = ms.Feed(train=sys.argv[1], columns={'values': ms.tensor('values', 'float32', [1024])},\n"
        "               batch_size=16384, shuffle_rows=0, lanes=1, prefetch=2, memory_budget='2GiB')\n"
        "print(sum(len(batch['values']) for batch in ms.Loader(feed)))\n"
    )
    command = ["unshare", "--mount", "sh", "-c", mount, "sh", sys.executable, "-c", code, train]
    assert subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout == "20000\n"
