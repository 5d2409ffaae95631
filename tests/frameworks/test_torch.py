"""Feeds with real PyTorch."""

import os
import pathlib
import signal
import socket
import subprocess
import sys

import millstream as ms
import millstream.torch
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

ROWS = 2_500


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    directory = tmp_path_factory.mktemp("feed")
    for number, first in enumerate(range(0, ROWS, 1_000)):
        numbers = np.arange(first, min(first + 1_000, ROWS))
        table = {"number": numbers, "pixels": [[float(n), n / 2, -n, 1.5] for n in numbers]}
        pq.write_table(pa.table(table), directory / f"train-{number}.parquet")
    return str(directory / "train-*.parquet")


def feed(data, **more):
    columns = {
        "x": ms.tensor("pixels", "float32", [4]),
        "number": ms.tensor("number", "int64"),
        "some": ms.ragged("pixels", "bfloat16", 3),
    }
    return ms.Feed(train=data, columns=columns, **{"batch_size": 64, "shuffle_rows": 512, "seed": 5, **more})


def test_tensors_are_views_that_keep_their_batch(data):
    loader = millstream.torch.Loader(feed(data))
    kept = []
    for batch in loader:
        assert batch["x"].dtype == torch.float32 and batch["x"].shape == (batch.rows, 4)
        assert batch["some"].values.dtype == torch.bfloat16
        assert torch.equal(batch["some"].offsets.diff(), torch.full([batch.rows], 3))
        kept.append((batch["x"][1:, 1], batch["number"].clone()))
    assert sorted(torch.cat([numbers for _, numbers in kept]).tolist()) == list(range(ROWS))
    for view, numbers in kept:
        assert torch.equal(view * 2, numbers[1:].float())
    moved = batch.to(torch.float64)
    assert moved["x"].dtype == torch.float64 and torch.equal(moved["number"], batch["number"].double())


def test_a_model_trains_as_on_tensors_by_hand_in_the_same_order(data):
    def losses(batches):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
        for x, number in batches:
            loss = (model(x / ROWS).squeeze(1) - number / ROWS).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            yield loss.item()

    loader = millstream.torch.Loader(feed(data))
    fed = list(losses((batch["x"], batch["number"]) for batch in loader))
    order = [batch["number"].clone() for batch in millstream.torch.Loader(feed(data))]
    rows = torch.tensor([[n, n / 2, -n, 1.5] for n in range(ROWS)], dtype=torch.float32)
    assert list(losses((rows[numbers], numbers) for numbers in order)) == fed


def test_workers_of_a_dataloader_are_refused_with_advice(data):
    class Wrapped(torch.utils.data.IterableDataset):
        def __init__(self):
            self.loader = ms.Loader(feed(data))

        def __iter__(self):
            return iter(self.loader)

    wrapped = torch.utils.data.DataLoader(Wrapped(), batch_size=None, num_workers=2)
    with pytest.raises(RuntimeError, match="num_workers=0"):
        next(iter(wrapped))


def start(command, world):
    """Starts the ranks of a program. (torchrun would restart them, but then Gloo of PyTorch 2.15 connects to addresses of
    the ranks before, and hangs.)"""
    with socket.create_server(("localhost", 0)) as free:
        port = free.getsockname()[1]
    variables = {**os.environ, "MASTER_ADDR": "localhost", "MASTER_PORT": str(port), "WORLD_SIZE": str(world)}
    return [
        subprocess.Popen([sys.executable, *command], env={**variables, "RANK": str(rank)}) for rank in range(world)
    ]


def test_killed_ranks_train_the_model_of_an_undisturbed_run(data, tmp_path):
    program = str(pathlib.Path(__file__).with_name("train_ddp.py"))

    def run(name, kills):
        directory = tmp_path / name
        directory.mkdir()
        for attempt in range(len(kills) + 1):
            ranks = start([program, data, str(directory), *map(str, kills)], 2)
            codes = [rank.wait(timeout=120) for rank in ranks]
            assert -signal.SIGKILL in codes or (codes == [0, 0] and attempt == len(kills)), codes
        return (directory / "result").read_text()

    steps = np.random.default_rng(3).choice(100, 5, replace=False)
    assert run("killed", sorted(steps)) == run("undisturbed", [])
