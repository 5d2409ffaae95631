"""What users of other loaders complain about, as tests of feeds. Each names issues of those projects.

Tests without a file are in this one; `frameworks` is tests/frameworks.

| complaint | tests |
|---|---|
| memory times workers (pytorch 13246, 5902) | test_eight_ranks_need_the_memory_of_one, test_memory_is_flat_over_ten_epochs |
| Bus error, small /dev/shm (pytorch 5040) | test_a_small_dev_shm_is_enough |
| orphans hold memory (pytorch 5736, 8805) | test_killed_programs_with_children_leave_no_memory, test_killed_ranks_with_children_leave_no_memory |
| rows repeat per worker (pytorch 30599, datasets 3423, tfrecord 78) | frameworks/test_torch.py: test_workers_of_a_dataloader_are_refused_with_advice; test_feeds.py: test_a_forked_child_is_refused_and_harms_nothing |
| uneven ranks hang (pytorch 141069, torchrec 3132, litData 233) | test_uneven_rows_do_not_hang_ranks; test_feed_shards.py: test_machines_take_equal_steps_and_read_each_file_once |
| resume loses the buffer, repeats a row (datasets 7901, 8408) | test_a_state_of_any_batch_continues_with_equal_bytes |
| second resume starts over (datasets 8308, KempnerForge 57, accelerate 2016) | test_many_resumes_in_one_epoch_lose_and_repeat_nothing; frameworks/test_resumes.py: test_accelerate_resumes_in_the_third_epoch |
| resume replays for hours (accelerate 2859, datasets 5454) | test_a_resume_does_not_read_the_past_again; bench/feed.py measures the time to the first batch |
| prefetched batches lost (torchdata 1520, Lightning) | frameworks/test_resumes.py: test_lightning_loses_no_batch_that_it_took_in_advance_and_restores_the_state |
| state never restored (Lightning 20550, Streaming 880) | the same, with `estimated_stepping_batches` |
| stale memory after Ctrl-C (Streaming 781, 573) | test_killed_programs_with_children_leave_no_memory: 50 restarts under one name |
| samples repeated to divide (Streaming 706) | test_rows_are_not_repeated_to_divide_evenly |
| "use resampling" (webdataset 234, 271) | test_every_epoch_has_each_row_once_over_twenty_kills |
| next() 224 ms for a 21 ms batch (grain 851); data lost with workers (grain 1129) | test_the_host_does_not_interrupt_programs, and bench/feed.py measures the time to take a ready batch; test_every_epoch_has_each_row_once_over_twenty_kills |
| journal not tied to checkpoints (tensorflow 63079) | frameworks: test_killed_programs_train_the_model_of_an_undisturbed_run in test_examples.py, test_tokens.py, test_images.py and test_clicks.py |
| invalid JPEG leaks, kills the pipeline (DALI 4740, 4076) | test_feed_images.py: test_one_percent_of_broken_images_is_counted, test_broken_images_leak_no_memory |
| pip install fails (ffcv 394, 239, 133) | tests/wheel |
| slow at every epoch, 1 TB spilled (ray 49190, 42479) | test_the_next_epoch_is_ready_before_the_last_batch_is_taken, test_nothing_is_written_to_disk |
| no resume at another world size (ray 48224) | test_eight_ranks_resume_as_three |
"""

import collections
import contextlib
import json
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
from support import host, memory, policies, ranks


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
        for machines in (1, 2, 3):
            seen = ranks(of, world, rows, local_world=-(-world // machines))
            assert {len(taken) for taken in seen} == {steps}
            assert sorted(row for taken in seen for step in taken for row in step) == list(range(1_001))
        dropped = ranks(of, world, lambda loader: [len(batch["number"]) for batch in loader], tail="drop")
        assert dropped == [[12] * (steps - 1)] * world


def test_rows_are_not_repeated_to_divide_evenly(tmp_path):
    """Streaming 706: samples are repeated so that every rank has as many."""
    seen = ranks(feed(write(tmp_path, 500), batch_size=32), 32, rows)
    assert collections.Counter(row for steps in seen for step in steps for row in step) == dict.fromkeys(range(500), 1)


STEPS = """
import json, sys
import millstream as ms
train, epochs, run, state = sys.argv[1], int(sys.argv[2]), sys.argv[3], json.loads(sys.argv[4])
feed = ms.Feed(train=train, columns={"number": ms.tensor("number", "int64")}, batch_size=10, epochs=epochs,
               shuffle_rows=64, seed=1)
loader = ms.Loader(feed, run=run)
loader.load_state_dict(state)
for _ in loader.epochs:
    for batch in loader:
        print(json.dumps([batch.epoch, batch["number"].tolist(), batch.state_dict()]), flush=True)
        sys.stdin.readline()
"""


def test_every_epoch_has_each_row_once_over_twenty_kills(tmp_path):
    """webdataset 234, 271: "use resampling"; grain 1129: data is lost with workers."""
    train, epochs, kills = write(tmp_path, 700, files=7), 5, 20
    random = np.random.default_rng(int(os.environ.get("MILLSTREAM_SEED", 5)))
    ends = sorted(random.choice(np.arange(1, 70 * epochs), kills, replace=False).tolist()) + [70 * epochs]
    seen, state = [[] for _ in range(epochs)], None
    for taken, end in zip([0, *ends], ends):
        # The same name, so that a program may meet the host of the one before.
        arguments = [train, str(epochs), str(tmp_path), json.dumps(state)]
        program = subprocess.Popen(
            [sys.executable, "-c", STEPS, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(end - taken):
            epoch, numbers, state = json.loads(program.stdout.readline())
            seen[epoch] += numbers
            program.stdin.write("\n")
            program.stdin.flush()
        if end < ends[-1]:
            program.kill()
        program.communicate()
        assert program.returncode == (0 if end == ends[-1] else -signal.SIGKILL)
    assert all(sorted(numbers) == list(range(700)) for numbers in seen)
    assert len({tuple(numbers) for numbers in seen}) == epochs
    loader = ms.Loader(feed(train, epochs=epochs))
    assert [sum(rows(loader), []) for _ in loader.epochs] == seen


def test_a_state_of_any_batch_continues_with_equal_bytes(tmp_path):
    """datasets 7901, 8408: a resume loses the buffer, or repeats a row."""
    of = feed(write(tmp_path, 230, files=3, width=3), batch_size=20, shuffle_rows=100, epochs=2)

    def contents(batch):
        return [batch["number"].tobytes(), *(part.tobytes() for part in batch["values"])]

    whole = ms.Loader(of)
    batches = [(batch.state_dict(), contents(batch)) for _ in whole.epochs for batch in whole]
    assert len(batches) == 2 * 12
    for place in range(12):
        loader = ms.Loader(of)
        loader.load_state_dict(json.loads(json.dumps(batches[place][0])))
        rest = [contents(batch) for _ in loader.epochs for batch in loader]
        assert rest == [expected for _, expected in batches[place + 1 :]], place
        loader.close()


def test_eight_ranks_resume_as_three(tmp_path):
    """ray 48224: no resume with another number of ranks."""
    of = feed(write(tmp_path, 1_000, files=5), batch_size=48, shuffle_rows=200, epochs=2)

    def first(loader):
        return [(batch["number"][batch.mask].tolist(), batch.state_dict()) for _, batch in zip(range(9), loader)]

    def rest(loader):
        loader.load_state_dict(state)
        return [(batch.epoch, batch["number"][batch.mask].tolist()) for _ in loader.epochs for batch in loader]

    before = ranks(of, 8, first)
    assert len({json.dumps(state) for steps in before for _, state in steps}) == 9
    state = before[5][-1][1]
    after = ranks(of, 3, rest)
    assert {len(steps) for steps in after} == {21 - 9 + 21}
    seen = [row for steps in before for numbers, _ in steps for row in numbers]
    seen += [row for steps in after for epoch, numbers in steps for row in numbers if epoch == 0]
    assert sorted(seen) == list(range(1_000))
    assert sorted(row for steps in after for epoch, numbers in steps for row in numbers if epoch) == list(range(1_000))


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


def read_bytes():
    """The bytes that the host has read, from files or the page cache."""
    lines = pathlib.Path(f"/proc/{host()}/io").read_text().splitlines()
    return int(dict(line.split(": ") for line in lines)["rchar"])


MEASURED = """
import sys
import millstream as ms
import numpy
feed = ms.Feed(train=sys.argv[1], columns={"values": ms.tensor("values", "float32", [256])}, batch_size=4096,
               shuffle_rows=4096, lanes=4, epochs=1000, prefetch=4, memory_budget="256MiB")
loader = ms.Loader(feed, tail="pad", run=sys.argv[2])
numpy.ones(1 << 20).sum()
print("starts", flush=True)
sys.stdin.readline()
batches = (batch for _ in loader.epochs for batch in loader)
for _ in range(20):
    batch = next(batches)
    batch["values"].sum()
print(loader._client.memory[1], flush=True)
sys.stdin.readline()
"""


def memory_of_ranks(train, world, run):
    """The memory that ranks and their host need to take batches, and the bytes of the rings."""
    command = [sys.executable, "-c", MEASURED, train, run]
    others = with_rings()
    ranks = [
        subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "RANK": str(rank), "WORLD_SIZE": str(world)},
        )
        for rank in range(world)
    ]
    assert [rank.stdout.readline() for rank in ranks] == ["starts\n"] * world
    # Without the code, which they share with other processes.
    own = lambda pid: memory(pid, "Pss_Anon") + memory(pid, "Pss_Shmem")  # noqa: E731
    before = sum(own(rank.pid) for rank in ranks)
    for rank in ranks:
        rank.stdin.write("\n")
        rank.stdin.flush()
    rings = sum(int(rank.stdout.readline()) for rank in ranks)
    pids = {rank.pid for rank in ranks}
    attached = with_rings() - others
    assert pids < attached and len(attached) == world + 1, "the ranks and their host"
    after = sum(own(pid) for pid in attached)
    for rank in ranks:
        rank.communicate("\n")
        assert rank.returncode == 0
    return after - before, rings


def test_eight_ranks_need_the_memory_of_one(tmp_path):
    """pytorch 13246, 5902: memory grows with the number of workers."""
    train = write(tmp_path, 20_000, files=4, width=256)
    (alone, ring), (together, rings) = (memory_of_ranks(train, world, f"{tmp_path} {world}") for world in (1, 8))
    # Four slots of 4 MiB, or of an eighth of that each.
    assert ring > 4 * 4096 * 256 * 4 and abs(rings - ring) < 1 << 20
    assert together < alone + 8 * (3 << 20), (alone, together)


def test_memory_is_flat_over_ten_epochs(tmp_path):
    """pytorch 13246: memory grows with every epoch."""
    loader = ms.Loader(feed(write(tmp_path, 50_000, files=5, width=16), batch_size=500, epochs=10, shuffle_rows=2_000))
    after = []
    for _ in loader.epochs:
        for _ in loader:
            pass
        after.append(memory(os.getpid()) + memory(host()))
    assert max(after[3:]) < 1.05 * after[2] + (8 << 20), after


def test_nothing_is_written_to_disk(tmp_path):
    """ray 42479: a shuffle spills to disk."""
    loader = ms.Loader(feed(write(tmp_path, 20_000, files=5, width=64), batch_size=500, epochs=4, shuffle_rows=5_000))
    next(iter(loader))
    # The first run writes compiled modules of Python.
    before = written(host())
    assert sum(len(batch["number"]) for _ in loader.epochs for batch in loader) == 4 * 20_000 - 500
    assert written(host()) == before


def written(pid):
    """The bytes that the process has caused to be written to storage."""
    lines = pathlib.Path(f"/proc/{pid}/io").read_text().splitlines()
    return int(dict(line.split(": ") for line in lines)["write_bytes"])


def test_the_next_epoch_is_ready_before_the_last_batch_is_taken(tmp_path):
    """ray 49190: every epoch starts slowly."""
    loader = ms.Loader(feed(write(tmp_path, 400, files=4), epochs=2, prefetch=4))
    batches = iter(loader)
    assert [next(batches).number for _ in range(39)] == list(range(39))
    stop_when_idle(host())
    try:
        # A host that is stopped delivers what is in the ring, so these never end if it has not read ahead. The batch before is
        # still held, in one of the four slots.
        with alarm():
            ahead = [batch.number for batch in batches] + [batch.number for _, batch in zip(range(2), loader)]
    finally:
        os.kill(host(), signal.SIGCONT)
    assert ahead == [39, 0, 1]
    assert [batch.number for batch in loader] == list(range(2, 40))


def test_the_host_does_not_interrupt_programs(tmp_path):
    """grain 851: taking a batch that is ready takes as long as others need to make the next ones."""
    # This run has a separate host, which is the last one started.
    loader = ms.Loader(feed(write(tmp_path, 400, files=4)), run=str(tmp_path))
    next(iter(loader))
    names, found = zip(*policies(host()))
    assert {"ingest-packer", "ingest-lane-0"} < set(names) and set(found) == {os.SCHED_BATCH}, found


def stop_when_idle(pid):
    """Stops a process once it waits for something: no thread runs or could run for some time."""
    deadline, idle, before = time.monotonic() + 60, 0, None
    while idle < 50:
        assert time.monotonic() < deadline
        # The state, and the time that it has run.
        stats = [path.read_text().rpartition(")")[2].split() for path in pathlib.Path(f"/proc/{pid}/task").glob("*/stat")]
        now = [(stat[0], stat[11], stat[12]) for stat in stats]
        idle = idle + 1 if now == before and {state for state, _, _ in now} == {"S"} else 0
        before = now
        time.sleep(0.01)
    os.kill(pid, signal.SIGSTOP)


@contextlib.contextmanager
def alarm(seconds=60):
    """Ends what waits for longer."""

    def end(*_):
        raise TimeoutError

    signal.signal(signal.SIGALRM, end)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)


PROGRAM = """
import os, signal, sys, time
import millstream as ms
# Where the tests run in the background, it is ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)
feed = ms.Feed(train=sys.argv[1], columns={"values": ms.tensor("values", "float32", [1024])}, batch_size=512,
               shuffle_rows=4096, lanes=4, epochs=1000, memory_budget="1GiB")
loader = ms.Loader(feed, run=sys.argv[2])
batch = next(iter(loader))
if os.fork() == 0:
    time.sleep(60)
print("trains", flush=True)
# Longer than it takes to kill it.
for _ in loader.epochs:
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
    for attempt, how in enumerate([signal.SIGKILL, signal.SIGINT] * 25):
        # The same name: a program that starts again at once is in no way hindered by the one before.
        program = start(train, str(tmp_path))
        assert program.stdout.readline() == "trains\n", attempt
        assert len(with_rings() - before) >= 3, "the program, its child and the host"
        program.send_signal(how)
        program.wait()
    end_children(str(tmp_path), before)


def end_children(argument, before):
    """Ends the children of killed programs, each of which has a view of the batches of its parent: nothing is left."""
    for child in processes(argument):
        os.kill(child, signal.SIGKILL)
    deadline = time.monotonic() + 60
    while with_rings() - before:
        assert time.monotonic() < deadline
        time.sleep(0.05)


RANK_WITH_CHILD = """
import os, sys, time
import millstream as ms
feed = ms.Feed(train=sys.argv[1], columns={"values": ms.tensor("values", "float32", [1024])}, batch_size=510,
               shuffle_rows=4096, lanes=4, epochs=1000)
loader = ms.Loader(feed, tail="pad", run=sys.argv[2])
batch = next(iter(loader))
if os.fork() == 0:
    time.sleep(600)
print("trains", flush=True)
try:
    # Longer than it takes to kill a rank.
    for _ in loader.epochs:
        for batch in loader:
            pass
except ms.RankLost:
    sys.exit(9)
"""


def test_killed_ranks_with_children_leave_no_memory(tmp_path):
    """pytorch 5736, 8805: orphans hold memory, and keep what waits for their parent waiting."""
    train, before = write(tmp_path, 8_000, width=1_024), with_rings()
    command = [sys.executable, "-c", RANK_WITH_CHILD, train, str(tmp_path)]
    for attempt in range(10):
        running = [
            subprocess.Popen(
                command, stdout=subprocess.PIPE, text=True, env={**os.environ, "RANK": str(rank), "WORLD_SIZE": "3"}
            )
            for rank in range(3)
        ]
        assert [rank.stdout.readline() for rank in running] == ["trains\n"] * 3, attempt
        killed = running[attempt % 3]
        killed.kill()
        # Its child lives on, and has its connection.
        codes = [rank.wait(timeout=60) for rank in running]
        assert codes == [-signal.SIGKILL if rank is killed else 9 for rank in running], attempt
    end_children(str(tmp_path), before)


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
