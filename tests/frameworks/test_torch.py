"""Feeds with real PyTorch."""

import collections
import contextlib
import ctypes
import gc
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


def start(command, world, local_world):
    """Starts the ranks of a program. (torchrun would restart them, but then Gloo of PyTorch 2.15 connects to addresses of
    the ranks before, and hangs.)"""
    with socket.create_server(("localhost", 0)) as free:
        port = free.getsockname()[1]
    variables = {**os.environ, "MASTER_ADDR": "localhost", "MASTER_PORT": str(port), "WORLD_SIZE": str(world)}
    variables["LOCAL_WORLD_SIZE"] = str(local_world)
    return [
        subprocess.Popen([sys.executable, *command], env={**variables, "RANK": str(rank)}) for rank in range(world)
    ]


@pytest.mark.parametrize("world, local_world", [(2, 2), (2, 1)])
def test_killed_ranks_train_the_model_of_an_undisturbed_run(data, tmp_path, world, local_world):
    program = str(pathlib.Path(__file__).with_name("train_ddp.py"))

    def run(name, kills):
        directory = tmp_path / name
        directory.mkdir()
        for attempt in range(len(kills) + 1):
            ranks = start([program, data, str(directory), *map(str, kills)], world, local_world)
            codes = [rank.wait(timeout=120) for rank in ranks]
            assert -signal.SIGKILL in codes or (not any(codes) and attempt == len(kills)), codes
        return (directory / "result").read_text()

    steps = np.random.default_rng(3).choice(100, 5, replace=False)
    assert run("killed", sorted(steps)) == run("undisturbed", [])


class LateGpu:
    """Stands in for the parts of torch.cuda that a loader with a device uses. Copies happen as late as they may, and read
    memory by its address, as a GPU does: a slot of the ring that is overwritten before shows in the result."""

    def __init__(self, monkeypatch):
        self.pinned, self.copies, self.waited, self.used = {}, collections.deque(), [], []
        self.begun = self.happened = 0
        gpu = self

        class Event:
            def __init__(self):
                self.after = gpu.begun

            def query(self):
                return gpu.happened >= self.after

            def synchronize(self):
                gpu.run(self.after)

        class Stream:
            def __init__(self, device=None):
                pass

            def record_event(self):
                return Event()

            def synchronize(self):
                gpu.run(gpu.begun)

            def wait_event(self, event):
                gpu.waited.append(event)

        class Runtime:
            def cudaHostRegister(self, address, length, flags):
                gpu.pinned[address] = length
                return 0

            def cudaHostUnregister(self, address):
                del gpu.pinned[address]

        def copy(target, source, non_blocking=False):
            assert non_blocking and gpu.holds(source)
            gpu.begun += 1
            address, length = source.data_ptr(), source.numel() * source.element_size()
            gpu.copies.append(lambda: ctypes.memmove(target.data_ptr(), address, length))
            return target

        monkeypatch.setattr(torch.cuda, "Stream", Stream)
        monkeypatch.setattr(torch.cuda, "stream", contextlib.nullcontext)
        monkeypatch.setattr(torch.cuda, "device", contextlib.nullcontext)
        monkeypatch.setattr(torch.cuda, "current_stream", Stream)
        monkeypatch.setattr(torch.cuda, "cudart", Runtime)
        monkeypatch.setattr(torch.Tensor, "copy_", copy)
        monkeypatch.setattr(torch.Tensor, "record_stream", lambda tensor, stream: gpu.used.append(tensor.data_ptr()))

    def holds(self, tensor):
        return any(0 <= tensor.data_ptr() - address < length for address, length in self.pinned.items())

    def run(self, until):
        while self.happened < until:
            self.copies.popleft()()
            self.happened += 1


class OnDevice(millstream.torch.Loader):
    """A loader for a GPU, whose memory is that of the CPU."""

    def _read(self, ring, padded):
        return millstream.torch.Ahead(super()._read(ring, padded), ring.memory, torch.device("cpu"))


def test_copies_to_a_device_overlap_and_hold_their_slots_until_they_happened(data, monkeypatch):
    gpu = LateGpu(monkeypatch)
    columns = {"x": ms.tensor("pixels", "float32", [4]), "number": ms.tensor("number", "int64")}
    short = ms.Feed(train=data, columns=columns, batch_size=10, shuffle_rows=512, seed=5, eval={"val": data})
    expected = [batch["number"].tolist() for batch in ms.Loader(short)]
    assert len(expected) == ROWS // 10
    loader = OnDevice(short)
    kept = []
    for batch in loader:
        kept.append((batch["x"], batch["number"]))
        # Two copies a batch: that of the next one has begun, and the program's stream waits for this one alone.
        assert gpu.begun == 2 * min(len(kept) + 1, len(expected))
        assert len(gpu.waited) == len(kept) and gpu.waited[-1].after == 2 * len(kept)
        assert set(gpu.used[-2:]) == {tensor.data_ptr() for tensor in kept[-1]}
        assert not gpu.holds(batch["x"])
    state = loader.state_dict()
    assert gpu.happened < gpu.begun and len(gpu.pinned) == 1
    held_out = [batch["number"] for batch in loader.evaluate("val")]
    assert len(gpu.pinned) == 1
    loader.close()
    assert gpu.happened == gpu.begun and not gpu.pinned
    assert [number.tolist() for _, number in kept] == expected
    for x, number in kept:
        assert torch.equal(x[:, 1] * 2, number.float())
    assert torch.cat(held_out).tolist() == list(range(ROWS))
    assert state == loader.state_dict() and list(loader) == []
    loader.close()


def test_a_loop_on_a_device_that_is_left_loses_no_batch(data, monkeypatch):
    gpu = LateGpu(monkeypatch)
    expected = [batch["number"].tolist() for batch in ms.Loader(feed(data, batch_size=100))]
    columns = {"number": ms.tensor("number", "int64")}
    loader = OnDevice(ms.Feed(train=data, columns=columns, batch_size=100, shuffle_rows=512, seed=5))
    seen = []
    for batch in loader:
        seen.append(batch["number"])
        if batch.number == 5:
            break
    seen += [batch["number"] for _, batch in zip(range(4), loader)]
    # A new connection begins after the batch that was handed out last, not after the one that was copied in advance.
    loader.close()
    seen += [batch["number"] for batch in loader]
    gpu.run(gpu.begun)
    assert [number.tolist() for number in seen] == expected
    del loader, batch
    gc.collect()
    assert not gpu.pinned
