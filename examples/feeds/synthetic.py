"""Data of the examples: rows of eight numbers, whose label says whether a fixed sum of them is positive."""

import hashlib
import pathlib

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq


def write(directory: pathlib.Path, rows: int = 4_000, files: int = 4) -> str:
    """Writes the files, unless they exist; returns their pattern."""
    directory.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(7)
    x = random.normal(size=(rows, 8)).astype(np.float32)
    label = (x @ np.array([1, -2, 3, -1, 0.5, 0, 2, -3], np.float32) > 0).astype(np.int64)
    table = pa.table({"row": np.arange(rows), "x": list(x), "label": label})
    for number in range(files):
        path = directory / f"part-{number}.parquet"
        # Files that are written again would be other data to a checkpoint.
        if not path.exists():
            pq.write_table(table.slice(number * rows // files, rows // files), path)
    return str(directory / "part-*.parquet")


def digest(weights: list[np.ndarray]) -> str:
    """Names the exact values of weights."""
    return hashlib.sha256(b"".join(np.ascontiguousarray(array).tobytes() for array in weights)).hexdigest()[:16]
