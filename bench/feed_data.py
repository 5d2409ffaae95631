"""The rows of bench/feed.py, and the feeds that read them."""

import pathlib

BATCH = 4_096
POOL = 65_536
NUMBERS = [f"n{place}" for place in range(13)]
IDS = [f"c{place}" for place in range(26)]
SHAPES = ("clicks", "vectors")


def make(directory: pathlib.Path, rows: int) -> None:
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    random, files = np.random.default_rng(1), 16
    for shape in SHAPES:
        (directory / shape).mkdir(parents=True, exist_ok=True)
        for number in range(files):
            count = rows // files
            table = {"label": random.integers(0, 2, count)}
            if shape == "clicks":
                table |= {name: random.random(count, dtype=np.float32) for name in NUMBERS}
                table |= {name: random.integers(0, 100_000, count) for name in IDS}
            else:
                flat = pa.array(random.random(count * 256, dtype=np.float32))
                offsets = pa.array(np.arange(count + 1, dtype=np.int32) * 256)
                table["vector"] = pa.ListArray.from_arrays(offsets, flat)
            path = directory / shape / f"{number:02}.parquet"
            pq.write_table(pa.table(table), path, row_group_size=16_384, compression="zstd")


def files_of(directory: pathlib.Path, shape: str) -> list[pathlib.Path]:
    return sorted((directory / shape).glob("*.parquet"))


def feed(directory: pathlib.Path, shape: str, ids: str = "int64", **more):
    import millstream as ms

    columns = {"label": ms.tensor("label", "int64")}
    if shape == "clicks":
        columns |= {name: ms.tensor(name, "float32") for name in NUMBERS}
        columns |= {name: ms.tensor(name, ids) for name in IDS}
    else:
        columns["vector"] = ms.tensor("vector", "float32", [256])
    options = {"batch_size": BATCH, "shuffle_rows": POOL, "epochs": 2, **more}
    return ms.Feed(train=str(directory / shape / "*.parquet"), columns=columns, **options)
