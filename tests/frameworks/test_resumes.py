"""Frameworks that take batches in advance, or that have their own ways to resume."""

import pathlib
import subprocess
import sys

import millstream as ms
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

ROWS, BATCHES, EPOCHS = 200, 10, 4


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    directory = tmp_path_factory.mktemp("feed")
    for number in range(4):
        rows = np.arange(number * 50, number * 50 + 50)
        pq.write_table(pa.table({"number": rows}), directory / f"train-{number}.parquet")
    return str(directory / "train-*.parquet")


def feed(data, **more):
    columns = {"number": ms.tensor("number", "int64")}
    return ms.Feed(train=data, columns=columns, batch_size=20, shuffle_rows=50, epochs=EPOCHS, seed=3, **more)


@pytest.mark.parametrize("package", ["lightning", "pytorch_lightning"])
def test_lightning_loses_no_batch_that_it_took_in_advance_and_restores_the_state(data, tmp_path, package):
    """torchdata 1520: batches that were prefetched are lost; Lightning 20550: the state is not restored if the module uses
    `estimated_stepping_batches`."""
    program = str(pathlib.Path(__file__).with_name("lightning_resumes.py"))
    command = [sys.executable, program, package, data, str(tmp_path)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    assert done.returncode == 0
    assert done.stdout.count("resumed 9 times") == 4, done.stdout


def test_accelerate_resumes_in_the_third_epoch(data, tmp_path):
    """accelerate 2016: a resume in a later epoch skips its batches in every epoch, or starts over."""
    from accelerate import Accelerator
    from millstream.torch import Loader

    def run(until=None, state=None):
        accelerator = Accelerator(cpu=True)
        loader = accelerator.prepare(Loader(feed(data)))
        assert type(loader) is Loader
        accelerator.register_for_checkpointing(loader)
        if state is not None:
            accelerator.load_state(state)
        seen = []
        for _ in loader.epochs:
            for batch in loader:
                seen.append((batch.epoch, batch["number"].tolist()))
                if seen[-1][0] == 2 and batch.number == until:
                    accelerator.save_state(tmp_path / f"at-{until}")
                    return seen
        return seen

    whole = run()
    assert len(whole) == BATCHES * EPOCHS
    for until in (0, 4, 9):
        seen = run(until)
        assert seen == whole[: 2 * BATCHES + until + 1]
        assert run(state=tmp_path / f"at-{until}") == whole[len(seen) :]


def test_a_tensorflow_pipeline_carries_the_state_of_each_batch_past_what_it_prefetches(data):
    import json

    import millstream.tf

    def batches(state=None):
        loader = ms.Loader(feed(data))
        loader.load_state_dict(state)
        dataset = millstream.tf.dataset(loader, state="state").prefetch(5)
        for _ in loader.epochs:
            for batch in dataset:
                yield batch["number"].numpy().tolist(), json.loads(batch["state"].numpy())

    whole = list(batches())
    assert sorted(sum((rows for rows, _ in whole[:BATCHES]), [])) == list(range(ROWS))
    assert len(whole) == BATCHES * EPOCHS
    for place in (0, 8, 9, 10, 27):
        rest = [rows for rows, _ in batches(whole[place][1])]
        assert rest == [rows for rows, _ in whole[place + 1 :]]


def test_batches_that_were_taken_in_vain_are_handed_out_again(data):
    loader = ms.Loader(feed(data))
    whole = [batch["number"].tolist() for batch in ms.Loader(feed(data))]
    with pytest.raises(RuntimeError, match="no batch is left to train"):
        loader.trained()
    loader.await_training()
    first = iter(loader)
    ahead = [next(first)["number"].tolist() for _ in range(3)]
    assert loader.state_dict() is None
    loader.trained()
    again = [batch["number"].tolist() for batch in loader]
    assert ahead + again[2:] == whole and again[:2] == whole[1:3]
    resumed = ms.Loader(feed(data))
    resumed.load_state_dict(loader.state_dict())
    assert next(iter(resumed))["number"].tolist() == whole[1]


def test_a_batch_that_a_framework_converts_keeps_its_columns(data):
    from millstream.torch import Loader

    batch = next(iter(Loader(feed(data), tail="pad", mask="is_row")))
    assert list(batch) == ["number", "is_row"] and len(batch) == 2
    converted = type(batch)({name: value.double() for name, value in batch.items()})
    assert converted["number"].tolist() == batch["number"].tolist() and converted["is_row"].sum() == 20
    with pytest.raises(RuntimeError, match="no place in a feed"):
        converted.state_dict()
    with pytest.raises(ms.SpecError, match="choose another"):
        next(iter(Loader(feed(data), mask="number")))
