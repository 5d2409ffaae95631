"""Feeds as programs use them: NumPy, TensorFlow and JAX see the batches of real processes, and real processes are killed."""

import decimal
import gc
import json
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import millstream as ms

ROWS = 2_500


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    directory = tmp_path_factory.mktemp("feed")
    for number, first in enumerate(range(0, ROWS, 1_000)):
        numbers = np.arange(first, min(first + 1_000, ROWS))
        table = {
            "number": numbers,
            "pixels": [[float(n), n / 2, -n, 1.5] for n in numbers],
            "tags": [list(range(n % 4)) for n in numbers],
            "name": [f"row {n}" for n in numbers],
        }
        pq.write_table(pa.table(table), directory / f"train-{number}.parquet")
    return directory


def feed(data, **more):
    columns = {
        "number": ms.tensor("number", "int32"),
        "pixels": ms.tensor("pixels", "float32", [2, 2]),
        "tags": ms.ragged("tags", "int16", 3),
        "name": ms.raw("name", 20),
    }
    arguments = {"batch_size": 128, "epochs": 2, "shuffle_rows": 512, "seed": 5, **more}
    return ms.Feed(train=str(data / "train-*.parquet"), columns=columns, **arguments)


def numbers(loader):
    return [batch["number"].copy() for batch in loader]


def check(batch):
    """Checks the columns of a batch against its numbers."""
    rows = batch["number"]
    assert rows.dtype == np.int32 and len(rows) == batch.rows
    assert batch["pixels"].shape == (batch.rows, 2, 2)
    np.testing.assert_array_equal(batch["pixels"][:, 0, 1], rows / np.float32(2))
    offsets, values = batch["tags"]
    assert (offsets.dtype, values.dtype) == (np.int32, np.int16)
    np.testing.assert_array_equal(np.diff(offsets.astype(np.int64)), rows % 4)
    np.testing.assert_array_equal(values, np.concatenate([np.arange(n % 4) for n in rows]))
    assert batch["name"] == [f"row {n}".encode() for n in rows]


def test_each_row_occurs_once_per_epoch(data):
    loader = ms.Loader(feed(data))
    assert (len(loader), loader.epochs) == (20, range(2))
    for epoch in range(2):
        seen = []
        for batch in loader:
            assert batch.epoch == epoch
            check(batch)
            seen.append(batch["number"].copy())
        assert [len(rows) for rows in seen] == [128] * 19 + [68]
        assert sorted(np.concatenate(seen)) == list(range(ROWS))
    assert list(loader) == []


def test_a_state_is_that_of_its_batch(data):
    loader = ms.Loader(feed(data))
    batches = [(batch.state_dict(), batch["number"].copy()) for _ in range(2) for batch in loader]
    for place in (0, 7, 18, 19, 20, 38, 39):
        state = json.loads(json.dumps(batches[place][0]))
        again = ms.Loader(feed(data))
        again.load_state_dict(state)
        assert again.epochs == range((place + 1) // 20, 2)
        rest = [rows for _ in again.epochs for rows in numbers(again)]
        assert len(rest) == len(batches) - place - 1, place
        for rows, (_, expected) in zip(rest, batches[place + 1 :]):
            np.testing.assert_array_equal(rows, expected)
    # A program that takes a batch in advance saves the state of the one that it has trained.
    ahead = ms.Loader(feed(data))
    iterator = iter(ahead)
    trained, _ = next(iterator), next(iterator)
    resumed = ms.Loader(feed(data))
    resumed.load_state_dict(trained.state_dict())
    np.testing.assert_array_equal(next(iter(resumed))["number"], batches[1][1])


def test_batches_and_views_that_are_kept_stay_valid_and_stop_nothing(data):
    loader = ms.Loader(feed(data, prefetch=3))
    kept, views = [], []
    for batch in loader:
        views.append(batch["pixels"][3:, 1])
        kept.append(batch)
    assert [batch._columns.native.is_copy for batch in kept] == [False] * 2 + [True] * 18
    for batch, view in zip(kept, views):
        check(batch)
        np.testing.assert_array_equal(view[:, 0], -batch["number"][3:])
    del kept, batch
    gc.collect()
    # The views still hold two slots.
    assert all(batch._columns.native.is_copy for batch in loader)
    assert views[0][0, 0] == -numbers(ms.Loader(feed(data)))[0][3]
    del views, view
    gc.collect()
    fresh = ms.Loader(feed(data, prefetch=3))
    assert not any(batch._columns.native.is_copy for batch in fresh)


def test_numpy_arrays_are_read_only_views_of_all_types(data):
    names = "bool uint8 int8 uint16 int16 uint32 int32 uint64 int64 float16 bfloat16 float32 float64".split()
    columns = {name: ms.tensor("number", name) for name in names}
    few = ms.Feed(
        train=str(data / "train-*.parquet"),
        columns=columns,
        batch_size=2,
        shuffle_rows=0,
        lanes=1,
        filter=[{"column": "number", "op": "<", "value": 2}],
    )
    loader = ms.Loader(few)
    batch = next(iter(loader))
    for name in names:
        assert str(batch[name].dtype) == name
        np.testing.assert_array_equal(batch[name].astype(np.float64), [0, 1])
        assert not batch[name].flags.writeable
        place = loader.columns[name].place
        _, array = batch._columns.native.column(place, False)
        assert batch[name].ctypes.data == array.__array_interface__["data"][0]


def test_short_last_batches_are_padded_or_dropped(data):
    for batch in (loader := ms.Loader(feed(data), tail="pad")):
        assert batch["number"].shape == (128,) and len(batch["name"]) == 128
        assert batch.mask.sum() == batch.rows
        assert not batch["pixels"][batch.rows :].any()
        assert (np.diff(batch["tags"].offsets.astype(np.int64))[batch.rows :] == 0).all()
    assert batch.rows == 68
    dropping = ms.Loader(feed(data), tail="drop")
    assert (len(loader), len(dropping)) == (20, 19)
    assert [len(list(dropping)), len(list(dropping)), len(list(dropping))] == [19, 19, 0]


def test_tensorflow_reads_batches_of_all_kinds_and_keeps_what_it_prefetches(data):
    import tensorflow as tf

    import millstream.tf

    columns = {
        "number": ms.tensor("number", "int32"),
        "pixels": ms.tensor("pixels", "float32", [2, 2]),
        "small": ms.tensor("pixels", "bfloat16", [4]),
        "tags": ms.ragged("tags", "int16", 3),
        "name": ms.raw("name", 20),
    }
    held_out = {"val": str(data / "train-2.parquet")}
    of = ms.Feed(train=str(data / "train-*.parquet"), eval=held_out, columns=columns, batch_size=128, shuffle_rows=512, seed=5)
    loader = ms.Loader(of)
    kept = list(millstream.tf.dataset(loader).prefetch(4))
    assert len(kept) == 20
    assert list(millstream.tf.dataset(loader)) == []
    kept_held_out = list(millstream.tf.dataset(ms.Loader(of), evaluate="val"))
    for batches, rows in ((kept, range(ROWS)), (kept_held_out, range(2_000, 2_500))):
        for batch in batches:
            numbers_of = batch["number"].numpy()
            np.testing.assert_array_equal(batch["pixels"][:, 1, 0], -numbers_of)
            assert batch["small"].dtype == tf.bfloat16 and (batch["small"][:, 3].numpy() == 1.5).all()
            assert batch["tags"].dtype == tf.int16
            assert batch["tags"].to_list() == [list(range(n % 4)) for n in numbers_of]
            assert batch["name"].numpy().tolist() == [f"row {n}".encode() for n in numbers_of]
        assert sorted(np.concatenate([batch["number"] for batch in batches])) == list(rows)
    shapes = {name: spec.shape.as_list() for name, spec in millstream.tf.dataset(of).element_spec.items()}
    assert shapes == {"number": [None], "pixels": [None, 2, 2], "small": [None, 4], "tags": [None, None], "name": [None]}
    with pytest.raises(ValueError, match="choose another"):
        millstream.tf.dataset(of, state="name")


def test_jax_sees_batches_without_a_copy_and_no_type_is_narrowed(data):
    import jax
    import jax.numpy as jnp
    import millstream.jax

    loader = millstream.jax.Loader(feed(data, epochs=1))
    kept = []
    for batch in loader:
        assert isinstance(batch["pixels"], jax.Array) and batch["pixels"].shape == (batch.rows, 2, 2)
        assert jnp.array_equal(batch["pixels"][:, 1, 0], -batch["number"])
        place = loader.columns["pixels"].place
        _, array = batch._columns.native.column(place, False)
        assert batch["pixels"].unsafe_buffer_pointer() == array.__array_interface__["data"][0]
        kept.append((batch["pixels"], np.asarray(batch["number"]).copy()))
    for pixels, rows in kept:
        np.testing.assert_array_equal(np.asarray(pixels)[:, 0, 0], rows)
    wide = ms.Feed(train=str(data / "*.parquet"), columns={"number": ms.tensor("number", "int64")}, batch_size=8)
    with pytest.raises(ms.SpecError, match="narrow `number` to 32 bits"):
        next(iter(millstream.jax.Loader(wide)))


def test_absent_numbers_are_replaced(tmp_path):
    pq.write_table(pa.table({"x": [1.0, None, 3.0], "y": [None, 5, 6]}), tmp_path / "a.parquet")
    columns = {"x": ms.tensor("x", "float32", missing=float("nan")), "y": ms.tensor("y", "int8", missing=-1)}
    few = ms.Feed(train=str(tmp_path / "*.parquet"), columns=columns, batch_size=3, shuffle_rows=0)
    batch = next(iter(ms.Loader(few)))
    np.testing.assert_array_equal(batch["x"], [1, np.nan, 3])
    np.testing.assert_array_equal(batch["y"], [-1, 5, 6])


def test_a_loop_that_is_left_continues_where_it_was(data):
    expected = numbers(ms.Loader(feed(data)))
    loader = ms.Loader(feed(data))
    seen = []
    for stop in (3, 7):
        for batch in loader:
            seen.append(batch["number"].copy())
            if batch.number == stop:
                break
    state = loader.state_dict()
    loader.close()
    assert loader.state_dict() == state == batch.state_dict()
    seen += numbers(loader)
    assert all((one == other).all() for one, other in zip(seen, expected, strict=True))


def test_held_out_data_is_evaluated_within_training_and_its_mistakes_do_not_end_training(data):
    few = {"filter": [{"column": "number", "op": ">=", "value": 2_200}], "shuffle_rows": 0}
    held_out = {"val": str(data / "train-2.parquet"), "bad": str(data / "bad.parquet")}
    pq.write_table(pa.table({"number": [2_201, 1 << 40], "pixels": [[0.0] * 4] * 2, "tags": [[]] * 2, "name": ["", ""]}), data / "bad.parquet")
    loader = ms.Loader(feed(data, eval=held_out, **few))
    seen = []
    for batch in loader:
        seen.append(batch["number"].copy())
        if batch.number == 1:
            for _ in range(2):
                rows = [row for held in loader.evaluate("val") for row in held["number"].tolist()]
                assert rows == list(range(2_200, 2_500))
            with pytest.raises(ms.FeedError, match="`vl`; it has `bad`, `val`"):
                next(loader.evaluate("vl"))
            with pytest.raises(ms.FeedError, match=r"bad\.parquet.*record 1"):
                list(loader.evaluate("bad"))
            # One that is not read to its end.
            next(loader.evaluate("val"))
    (data / "bad.parquet").unlink()
    assert np.concatenate(seen).tolist() == list(range(2_200, 2_500))


def test_mistakes_are_explained(data):
    with pytest.raises(ms.SpecError) as error:
        ms.Feed(train="x", columns={"a": ms.tensor("a", "flaot32")}, batch_size=0, shufle_rows=3)
    for part in ("columns.a.dtype: ", "did you mean `float32`?", "data.batch_size: ", "did you mean `shuffle_rows`?"):
        assert part in str(error.value)
    with pytest.raises(ms.FeedError, match="nothing-.*no file matches"):
        next(iter(ms.Loader(ms.Feed(train=str(data / "nothing-*"), columns={"a": ms.tensor("a", "int8")}, batch_size=1))))
    small = ms.Feed(train=str(data / "*.parquet"), columns={"number": ms.tensor("number", "uint8")}, batch_size=8, shuffle_rows=0)
    with pytest.raises(ms.FeedError, match=r"train-0\.parquet.*record 256.*from 0 to 255"):
        list(ms.Loader(small))
    with pytest.raises(ms.FeedError, match="no rows that meet the filter"):
        list(ms.Loader(feed(data, filter=[{"column": "number", "op": "<", "value": 0}])))
    large = ms.Feed(
        train=str(data / "train-1.parquet"),
        columns={"number": ms.tensor("number", "uint8")},
        batch_size=8,
        on_bad_record="skip",
        max_bad_records=2_000,
    )
    with pytest.raises(ms.FeedError, match=r"no usable rows: 1000 bad records skipped; the last: .*train-1\.parquet.*from 0 to 255"):
        list(ms.Loader(large))
    with pytest.raises(ValueError, match='tail="pad"'):
        ms.Loader(feed(data), rank=0, world=2)
    with pytest.raises(TypeError, match="num_workers=0"):
        __import__("pickle").dumps(ms.Loader(feed(data)))
    with pytest.raises(ms.SpecError, match="columns.i.size: ") as error:
        ms.Feed(train="x", columns={"i": ms.image("i", size=0, layout="NCHW")}, batch_size=1)
    assert "unknown key" not in str(error.value)
    with pytest.raises(ValueError, match="not finite may only"):
        ms.Feed(train="x", columns={"a": ms.image("a", 8, dtype="float32", std=[float("nan")] * 3)}, batch_size=1)
    with pytest.raises(TypeError, match="found list"):
        ms.Loader(feed(data)).load_state_dict([1])


def test_numbers_of_numpy_are_arguments(data):
    columns = {"pixels": ms.tensor("pixels", "float32", np.array([2, 2]))}
    of_numpy = ms.Feed(train=str(data / "*.parquet"), columns=columns, batch_size=np.int64(64), seed=np.array(3), drop_last=np.True_)
    assert next(iter(ms.Loader(of_numpy)))["pixels"].shape == (64, 2, 2)


def test_decimals_and_bytes_of_fixed_length_are_exact(tmp_path):
    large = [(1 << 53) + 1, (1 << 63) - 1, -(1 << 63)]
    ids = pa.array([decimal.Decimal(value) for value in large], pa.decimal128(20, 0))
    keys = [bytes([number] * 16) for number in range(3)]
    pq.write_table(pa.table({"id": ids, "key": pa.array(keys, pa.binary(16))}), tmp_path / "a.parquet")

    def of(**more):
        columns = {"id": ms.tensor("id", "int64"), "key": ms.raw("key", 16)}
        arguments = {"columns": columns, "batch_size": 3, "shuffle_rows": 0, **more}
        return next(iter(ms.Loader(ms.Feed(train=str(tmp_path / "a.parquet"), **arguments))))

    batch = of()
    assert batch["id"].tolist() == large and batch["key"] == keys
    found = of(filter=[{"column": "id", "op": "==", "value": (1 << 53) + 1}])
    assert found["id"].tolist() == large[:1]


def test_more_epochs_continue_a_feed_that_has_ended(data):
    expected = list(epochs_of(ms.Loader(feed(data, epochs=4))))
    ended = ms.Loader(feed(data))
    assert len(list(epochs_of(ended))) == 2
    for epochs in (4, 2):
        loader = ms.Loader(feed(data, epochs=epochs))
        loader.load_state_dict(ended.state_dict())
        assert loader.epochs == range(2, epochs)
        assert list(epochs_of(loader)) == expected[2:epochs]


def epochs_of(loader):
    """The numbers of the rows of each epoch that is left."""
    for _ in loader.epochs:
        yield [number for batch in loader for number in batch["number"].tolist()]


def test_a_second_thread_is_refused_while_one_takes_a_batch(data):
    loader = ms.Loader(feed(data, epochs=1, eval={"val": str(data / "train-2.parquet")}))
    batches = iter(loader)
    seen = next(batches)["number"].tolist()
    reader, waits, continues = loader._reader, threading.Event(), threading.Event()
    take = reader.next

    def take_slowly():
        waits.set()
        assert continues.wait(60)
        return take()

    reader.next = take_slowly
    thread = threading.Thread(target=lambda: seen.extend(next(batches)["number"].tolist()))
    thread.start()
    assert waits.wait(60)
    for use in (lambda: next(iter(loader)), lambda: loader.epochs, loader.close, lambda: next(loader.evaluate("val"))):
        with pytest.raises(RuntimeError, match="another thread"):
            use()
    continues.set()
    thread.join()
    seen += [number for batch in loader for number in batch["number"].tolist()]
    assert sorted(seen) == list(range(ROWS))


def test_threads_that_begin_together_attach_once(data):
    for _ in range(5):
        loader, seen, errors = ms.Loader(feed(data, epochs=1, batch_size=8)), [], []

        def take(loader=loader, seen=seen, errors=errors):
            try:
                for batch in loader:
                    seen.extend(batch["number"].tolist())
            except Exception as error:
                errors.append(error)

        threads = [threading.Thread(target=take) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        take()
        assert sorted(seen) == list(range(ROWS))
        assert all(isinstance(error, RuntimeError) and "another thread" in str(error) for error in errors), errors


def test_a_forked_child_is_refused_and_harms_nothing(data):
    loader = ms.Loader(feed(data))
    iterator = iter(loader)
    first = next(iterator)
    rows, second = first["number"].copy(), next(iterator)
    child = os.fork()
    if child == 0:
        try:
            next(iter(loader))
        except RuntimeError as error:
            # What is dropped here is still the parent's.
            del first, second, iterator, loader
            gc.collect()
            os._exit(7 if "num_workers=0" in str(error) else 1)
        os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    rest = []
    for batch in iterator:
        check(batch)
        rest.append(batch["number"].copy())
    np.testing.assert_array_equal(first["number"], rows)
    assert sorted(np.concatenate([rows, second["number"], *rest])) == list(range(ROWS))


RANK = """
import json, os, sys, time
import millstream as ms
path, log, state, pause = sys.argv[1], sys.argv[2], sys.argv[3], float(sys.argv[4])
columns = {"number": ms.tensor("number", "int64")}
feed = ms.Feed(train=path, columns=columns, batch_size=60, epochs=3, shuffle_rows=512, seed=5)
loader = ms.Loader(feed, tail="pad")
if os.path.exists(state):
    loader.load_state_dict(json.load(open(state)))
try:
    for _ in loader.epochs:
        for batch in loader:
            rows = batch["number"][batch.mask].tolist()
            with open(log, "a") as file:
                print(json.dumps([batch.epoch, batch.number, rows, batch.state_dict()]), file=file)
            time.sleep(pause)
except ms.RankLost as error:
    sys.exit(9)
"""


def ranks(data, directory, world, state, pause):
    """Starts the ranks of a program, as torchrun does."""
    environment = {**os.environ, "WORLD_SIZE": str(world), "MASTER_ADDR": "localhost", "MASTER_PORT": str(directory)}
    arguments = [str(data / "train-*.parquet")]

    def start(rank):
        log = directory / f"{world}-{rank}.jsonl"
        command = [sys.executable, "-c", RANK, *arguments, str(log), str(state), str(pause)]
        return subprocess.Popen(command, env={**environment, "RANK": str(rank)}), log

    return [start(rank) for rank in range(world)]


def read(log):
    """The batches of a rank, without a line that its death cut."""
    if not log.exists():
        return []
    return [json.loads(line) for line in log.read_text().splitlines(keepends=True) if line.endswith("\n")]


def hosts():
    """The processes that host feeds for programs of this test: they inherit the variable in which pytest names it."""
    test, found = f"PYTEST_CURRENT_TEST={os.environ['PYTEST_CURRENT_TEST']}".encode(), set()
    for directory in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            command, environment = ((directory / name).read_bytes() for name in ("cmdline", "environ"))
        except OSError:
            continue
        if b"host.main()" in command and test in environment:
            found.add(int(directory.name))
    return found


def test_killed_ranks_go_on_after_their_checkpoint_with_another_number_of_ranks(data, tmp_path):
    state = tmp_path / "state.json"
    seen = {}
    random = np.random.default_rng(int(os.environ.get("MILLSTREAM_SEED", 11)))
    for attempt, world in enumerate((3, 2, 4, 1, 3)):
        directory = tmp_path / str(attempt)
        directory.mkdir()
        last = attempt == 4
        running = ranks(data, directory, world, state, 0 if last else 0.01)
        if not last:
            deadline = time.monotonic() + 60
            wanted = random.integers(3, 12)
            while len(read(running[0][1])) < wanted and time.monotonic() < deadline:
                time.sleep(0.005)
            assert hosts()
            os.kill(running[random.integers(world)][0].pid, signal.SIGKILL)
        codes = [process.wait(timeout=60) for process, _ in running]
        assert sorted(codes) == ([0] * world if last else [-9] + [9] * (world - 1)), codes
        logs = [read(log) for _, log in running]
        # What all ranks have trained on is in the checkpoint.
        complete = min(map(len, logs))
        assert complete > 0
        for step in range(complete):
            parts = [log[step] for log in logs]
            assert len({(epoch, number, json.dumps(state)) for epoch, number, _, state in parts}) == 1
            epoch, number, _, reached = parts[0]
            assert (epoch, number) not in seen
            seen[epoch, number] = [row for part in parts for row in part[2]]
        state.write_text(json.dumps(reached))
    assert list(seen) == [(epoch, number) for epoch in range(3) for number in range(42)]
    for epoch in range(3):
        assert sorted(row for (of, _), rows in seen.items() if of == epoch for row in rows) == list(range(ROWS))
    undisturbed = ms.Loader(feed(data, batch_size=60, epochs=3))
    expected = [rows.tolist() for _ in range(3) for rows in numbers(undisturbed)]
    assert list(seen.values()) == expected
    undisturbed.close()
    deadline = time.monotonic() + 30
    while len(hosts()) > 1 and time.monotonic() < deadline:
        time.sleep(0.1)
    assert len(hosts()) <= 1, "the hosts of killed programs end"


def test_ctrl_c_ends_a_wait_for_other_ranks(data, tmp_path):
    code = (
        "import signal, sys, millstream as ms\n"
        # Where the tests run in the background, it is ignored.
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "feed = ms.Feed(train=sys.argv[1], columns={'number': ms.tensor('number', 'int64')}, batch_size=10)\n"
        "loader = ms.Loader(feed, rank=0, world=2, tail='pad', run=sys.argv[2])\n"
        "print('waits', flush=True)\n"
        "next(iter(loader))\n"
    )
    command = [sys.executable, "-c", code, str(data / "train-*.parquet"), str(tmp_path)]
    waiting = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert waiting.stdout.readline() == "waits\n"
    time.sleep(1)
    began = time.monotonic()
    waiting.send_signal(signal.SIGINT)
    _, errors = waiting.communicate(timeout=30)
    assert "KeyboardInterrupt" in errors
    assert time.monotonic() - began < 5
