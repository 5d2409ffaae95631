"""Feeds of several machines that read a shard of the data each. The machines are hosts of this one."""

import io
import json
import pathlib
import socket

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

import millstream as ms
from support import hosts, ranks

COLUMNS = {"number": ms.tensor("number", "int64")}


def write(directory, files, **columns):
    """Writes rows, numbered from 0, with the lists of `columns`."""
    columns = {"number": np.arange(len(next(iter(columns.values())))), **columns}
    for file, rows in enumerate(np.array_split(columns["number"], files)):
        table = {name: pa.array([values[row] for row in rows]) for name, values in columns.items()}
        pq.write_table(pa.table(table), directory / f"{file:03}.parquet", row_group_size=1_000)
    return str(directory / "*.parquet")


def feed(train, columns=None, **more):
    options = {"batch_size": 10, "shuffle_rows": 64, "seed": 1, **more}
    return ms.Feed(train=train, columns=columns or COLUMNS, **options)


def rows(loader):
    return [batch["number"][batch.mask].tolist() for batch in loader]


def flat(seen):
    """What all ranks have taken, sorted."""
    return sorted(row for taken in seen for step in taken for row in step)


def test_machines_take_equal_steps_and_read_each_file_once(tmp_path):
    train = write(tmp_path, 13, value=range(1_001))
    for world, local_world in ((2, 1), (6, 2), (5, 2)):
        of = feed(train, batch_size=12 * world)
        seen = ranks(of, world, lambda loader: [(batch["number"][batch.mask].tolist(), batch.state_dict()) for batch in loader],
                     local_world=local_world, shard=True)  # fmt: skip
        assert len({len(taken) for taken in seen}) == 1
        numbers = [[step for step, _ in taken] for taken in seen]
        assert flat(numbers) == list(range(1_001))
        # From any state on, with or without shards.
        done = len(numbers[0]) // 2
        left = flat([taken[done:] for taken in numbers])
        for more in ({"local_world": local_world, "shard": True}, {}):
            assert flat(ranks(of, world, rows, state=seen[0][done - 1][1], **more)) == left

    large = tmp_path / "large"
    large.mkdir()
    stored = 20_000 * 512 * 4
    train = write(large, 8, values=list(np.random.default_rng(1).random((20_000, 512), dtype=np.float32)))

    def read_bytes(shard):
        before = set(hosts())
        columns = {**COLUMNS, "values": ms.tensor("values", "float32", [512])}
        ranks(feed(train, columns, batch_size=200), 2, rows, local_world=1, shard=shard)
        # They live for some seconds more.
        files = [pathlib.Path(f"/proc/{pid}/io") for pid in set(hosts()) - before]
        return sum(int(file.read_text().split()[1]) for file in files)

    shared, all_by_each = read_bytes(True), read_bytes(False)
    assert shared < 1.5 * stored and all_by_each > 1.9 * stored


def test_bad_records_are_skipped_by_the_machine_that_reads_them(tmp_path):
    bad = list(range(3, 600, 50))
    train = write(tmp_path, 8, value=[-1 if row in bad else row for row in range(600)])
    columns = {**COLUMNS, "value": ms.tensor("value", "uint16")}
    of = feed(train, columns, batch_size=40, on_bad_record="skip", max_bad_records=len(bad))
    for world, local_world in ((2, 1), (4, 2)):
        seen = ranks(of, world, rows, local_world=local_world, shard=True)
        assert len({len(taken) for taken in seen}) == 1
        assert flat(seen) == [row for row in range(600) if row not in bad]


@pytest.mark.parametrize("how", ["best_fit", "concatenate"])
def test_each_token_occurs_once(tmp_path, how):
    random = np.random.default_rng(1)
    lengths = np.exp(random.normal(3, 1, 900)).astype(int)
    ends = np.cumsum(lengths)
    documents = [np.arange(end - of, end, dtype=np.int32) for of, end in zip(lengths, ends)]
    train = write(tmp_path, 9, tokens=documents)
    # Segment 0 is padding.
    tokens = lambda loader: [batch["tokens"][batch["segment_ids"] > 0].tolist() for batch in loader]  # noqa: E731
    columns, pack = {"tokens": ms.tokens("tokens")}, ms.pack(length=64, how=how)
    for world, local_world in ((2, 1), (5, 2)):
        of = feed(train, columns, pack=pack, batch_size=4 * world, shuffle_rows=300, lanes=6)
        seen = ranks(of, world, tokens, local_world=local_world, shard=True)
        assert len({len(taken) for taken in seen}) == 1
        assert flat(seen) == list(range(ends[-1]))


def test_each_image_is_decoded_once(tmp_path):
    def encoded(number):
        file = io.BytesIO()
        # Of one colour, which says the number.
        Image.new("RGB", (20, 16), (number, 255 - number, 7)).save(file, "PNG")
        return file.getvalue()

    train = write(tmp_path, 5, image=[encoded(number) for number in range(120)])
    columns = {**COLUMNS, "image": ms.image("image", 8, crop="random_resized", flip=True)}
    see = lambda loader: [(batch["number"][batch.mask], batch["image"][batch.mask]) for batch in loader]  # noqa: E731
    seen = ranks(feed(train, columns, batch_size=16), 4, see, local_world=2, shard=True)
    assert len({len(taken) for taken in seen}) == 1
    assert flat([[numbers for numbers, _ in taken] for taken in seen]) == list(range(120))
    for numbers, images in (step for taken in seen for step in taken):
        for number, image in zip(numbers, images):
            assert (image == [number, 255 - number, 7]).all()


def free_ports(count):
    """The first of so many free ports in a row."""
    for first in range(21_000, 30_000, count):
        with_them = [socket.socket() for _ in range(count)]
        try:
            for port, of in enumerate(with_them, first):
                of.bind(("", port))
            return first
        except OSError:
            continue
        finally:
            for of in with_them:
                of.close()
    raise AssertionError("no ports are free")


def test_a_rank_that_cannot_use_the_columns_ends_all(tmp_path):
    of = feed(write(tmp_path, 4, value=range(200)), batch_size=20)

    def see(loader):
        if loader._rank == 1:
            loader._mask = "number"
        try:
            return rows(loader)
        except (ms.FeedError, ms.SpecError) as error:
            return str(error)

    for shard in (True, False):
        errors = ranks(of, 2, see, local_world=1, shard=shard, gathered=True)
        assert all("mask='number': the feed has a column with that name" in error for error in errors)
        assert errors[0].startswith("rank 1 cannot use the columns")


def test_the_environment_sets_ports_and_address(tmp_path, monkeypatch):
    of = feed(write(tmp_path, 4, value=range(200)), batch_size=24)
    listening = set()

    def gather(texts):
        listening.update(json.loads(json.loads(text)[2])["port"] for text in texts)
        addresses = [json.loads(json.loads(text)[2])["addresses"] for text in texts]
        assert addresses == [["127.0.0.1"]] * 3
        return texts

    def see(loader):
        of_framework = loader._gather
        loader._gather = lambda text: gather(of_framework(text))
        return rows(loader)

    first = free_ports(3)
    monkeypatch.setenv("MILLSTREAM_SHARD_PORTS", f"{first}-{first + 2}")
    monkeypatch.setenv("MILLSTREAM_SHARD_ADDRESS", "127.0.0.1")
    assert flat(ranks(of, 3, see, local_world=1, shard=True)) == list(range(200))
    assert listening == {first, first + 1, first + 2}

    def fails(loader):
        try:
            return rows(loader)
        except ms.FeedError as error:
            return str(error)

    monkeypatch.setenv("MILLSTREAM_SHARD_PORTS", str(first))
    errors = ranks(of, 2, fails, local_world=1, shard=True)
    # One has the port. Nobody waits for the other.
    assert all(f"port {first}: none is free for shards on this machine" in str(error) for error in errors)


@pytest.mark.parametrize(
    "name, value",
    [
        *(("PORTS", value) for value in ("http", "7439-7430", "70000", "80")),
        *(("ADDRESS", value) for value in ("node1", "0.0.0.0", "fe80::1%eth0", "ff02::1")),
    ],
)
def test_a_mistake_in_the_environment_is_named(tmp_path, monkeypatch, name, value):
    monkeypatch.setenv(f"MILLSTREAM_SHARD_{name}", value)
    loader = ms.Loader(
        feed(write(tmp_path, 2, value=range(20))), rank=0, world=2, local_world=1, tail="pad", shard=True, gather=None
    )
    with pytest.raises(ValueError, match=f"MILLSTREAM_SHARD_{name}={value}: not a"):
        next(iter(loader))
