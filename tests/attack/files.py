"""Small data files of many layouts, and mutations of them."""

import pathlib
import random

import numpy
import pyarrow
import pyarrow.parquet

from host import BUILT, run

ROWS = 1500

# Settings of the writer, by the name of the file.
LAYOUTS = {
    "snappy": {"compression": "snappy", "row_group_size": 400},
    "plain": {"compression": "none", "use_dictionary": False},
    "gzip": {"compression": "gzip", "data_page_size": 2000},
    "zstd-v2": {"compression": "zstd", "data_page_version": "2.0", "data_page_size": 3000},
    "brotli": {"compression": "brotli", "use_dictionary": False, "data_page_size": 4000},
    "lz4-index": {"compression": "lz4", "write_page_index": True, "data_page_size": 2000},
    "delta": {
        "compression": "none",
        "use_dictionary": False,
        "column_encoding": {"clicked": "DELTA_BINARY_PACKED", "color": "DELTA_BYTE_ARRAY", "x": "BYTE_STREAM_SPLIT"},
    },
    "checksums": {"compression": "snappy", "write_page_checksum": True, "store_schema": False},
}


def table(seed: int) -> pyarrow.Table:
    """Rows for the job in `JOB`, some values absent."""
    draw = numpy.random.default_rng(seed)
    colors = [None if value == 9 else f"color-{value}" for value in draw.integers(0, 10, ROWS)]
    tags = [None if count == 4 else [f"tag-{value}" for value in draw.integers(0, 50, count)] for count in draw.integers(0, 5, ROWS)]
    x = draw.normal(size=ROWS).astype("float32")
    clicked = ((x > 0) ^ (draw.random(ROWS) < 0.1)).astype("int64")
    return pyarrow.table({"clicked": clicked, "x": x, "color": colors, "tags": tags})


JOB = """
name = "attacked"
seed = 3
[data]
eval = []
train = [{files}]
batch_size = 64
epochs = 1
lanes = 2
shuffle_rows = 512
memory_budget = "{budget}"
{bad}
[label]
column = "clicked"
[features]
x = {{ kind = "numeric", missing = 0 }}
color = {{ kind = "vocabulary" }}
tags = {{ kind = "hashed", multi = true, maximum = 4, buckets = 64 }}
[model]
kind = "wide_deep"
wide.features = ["color", "tags"]
wide.optimizer = {{ kind = "ftrl", learning_rate = 0.1 }}
deep.features = ["x", "color"]
deep.embedding_dim = 2
deep.hidden = [4]
deep.optimizer = {{ kind = "adagrad", learning_rate = 0.05 }}
[training]
threads = 1
[checkpoint]
directory = "checkpoints"
"""


def job(files: list[pathlib.Path], budget: str, skip: bool) -> str:
    """The text of a job that trains on `files`."""
    bad = 'on_bad_record = "skip"\nmax_bad_records = 100000' if skip else ""
    return JOB.format(files=", ".join(f'"{path}"' for path in files), budget=budget, bad=bad)


def seeds(room: pathlib.Path) -> dict[str, bytes]:
    """Undamaged files by name, the format as the extension."""
    for name, settings in LAYOUTS.items():
        options = {key: value for key, value in settings.items() if key != "row_group_size"}
        group = settings.get("row_group_size")
        pyarrow.parquet.write_table(table(1), room / f"{name}.parquet", row_group_size=group, **options)
    for extension in ["tfrecord", "tfrecord.gz", "tfrecord.zst"]:
        converted = run(BUILT / "millstream", "convert", room / "plain.parquet", room / f"records.{extension}")
        assert converted.code == 0, converted.error
    return {path.name: path.read_bytes() for path in sorted(room.iterdir())}


def mutate(draw: random.Random, content: bytes, others: list[bytes]) -> bytes:
    """`content` with a few changes of the kinds that storage, networks and attackers make."""
    changed = bytearray(content)
    for _ in range(draw.randint(1, 4)):
        # Half of the changes hit the end, where Parquet keeps its metadata.
        first = max(0, len(changed) - 2500) if draw.random() < 0.5 else 0
        at = draw.randint(first, max(first, len(changed) - 1))
        length = min(draw.choice([1, 2, 4, 8, 64, 1000]), len(changed) - at)
        match draw.randrange(9):
            case 0 if changed:
                changed[at] ^= 1 << draw.randrange(8)
            case 1:
                changed[at : at + length] = draw.randbytes(length)
            case 2:
                changed[at : at + length] = bytes(length)
            case 3:
                # The largest number as a varint, and as bytes.
                changed[at : at + length] = draw.choice([b"\xff" * length, b"\xff" * 9 + b"\x01", b"\xfe\xff\xff\xff\x0f"])
            case 4:
                del changed[at : at + length]
            case 5:
                changed[at:at] = draw.randbytes(length)
            case 6:
                changed[at:at] = changed[at : at + length] * draw.choice([1, 3, 50])
            case 7:
                del changed[at:]
            case 8:
                other = draw.choice(others)
                place = draw.randrange(max(1, len(other)))
                changed[at : at + length] = other[place : place + length]
    return bytes(changed)
