"""Data of the examples."""

import hashlib
import io
import pathlib

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

# Horizontal stripes, vertical stripes, checks, rings.
PATTERNS = 4

# Columns of clicks, and the values of each id.
NUMBERS, IDS, ID_VALUES = 5, 6, 1_000


def write(directory: pathlib.Path, rows: int = 4_000, files: int = 4) -> str:
    """Writes rows of eight numbers, whose label says whether a fixed sum of them is positive; returns the pattern of the files."""
    random = np.random.default_rng(7)
    x = random.normal(size=(rows, 8)).astype(np.float32)
    label = (x @ np.array([1, -2, 3, -1, 0.5, 0, 2, -3], np.float32) > 0).astype(np.int64)
    return _write(directory, pa.table({"row": np.arange(rows), "x": list(x), "label": label}), files)


def write_clicks(directory: pathlib.Path, rows: int = 4_000, files: int = 4) -> str:
    """Writes rows of numbers and ids, whose labels depend on both; returns the pattern of the files."""
    random = np.random.default_rng(9)
    numbers = random.normal(size=(rows, NUMBERS)).astype(np.float32)
    ids = (ID_VALUES ** random.random((rows, IDS))).astype(np.int64)
    label = (numbers[:, 0] + (ids % 2).sum(1) - IDS / 2 > 0).astype(np.int64)
    table = {"label": label} | {f"number{n}": numbers[:, n] for n in range(NUMBERS)}
    table |= {f"id{n}": ids[:, n] for n in range(IDS)}
    return _write(directory, pa.table(table), files)


def write_documents(directory: pathlib.Path, documents: int = 1_000, files: int = 3) -> str:
    """Writes documents of tokens, each of which follows from the one before it; returns the pattern of the files."""
    random = np.random.default_rng(5)
    lengths = np.exp(random.normal(2.8, 1, documents)).astype(int)
    lengths[::100] = 0
    first, step = random.integers(0, 97, (2, documents))
    tokens = [3 + (first[row] + step[row] % 5 * np.arange(length)) % 97 for row, length in enumerate(lengths)]
    return _write(directory, pa.table({"input_ids": pa.array(tokens, pa.list_(pa.int32()))}), files)


def write_images(directory: pathlib.Path, images: int = 1_000, files: int = 3, size: int = 48) -> str:
    """Writes JPEG images of patterns in random colours, with the number of the pattern; returns the pattern of the files."""
    from PIL import Image

    random = np.random.default_rng(6)
    label = np.arange(images) % PATTERNS
    y, x = np.mgrid[0:size, 0:size] / size - 0.5
    encoded = []
    for of in label:
        places = [y, x, np.sign(np.sin(25 * y)) * 0.1 + x, np.hypot(x, y)][of]
        wave = np.sin(random.uniform(25, 50) * places + random.uniform(0, 6))[..., None]
        levels = 128 + wave * random.uniform(-80, 80, 3) + random.normal(0, 15, (size, size, 3))
        file = io.BytesIO()
        Image.fromarray(levels.clip(0, 255).astype(np.uint8)).save(file, "JPEG", quality=90)
        encoded.append(file.getvalue())
    return _write(directory, pa.table({"image": pa.array(encoded, pa.binary()), "label": label}), files)


def _write(directory: pathlib.Path, table: pa.Table, files: int) -> str:
    directory.mkdir(parents=True, exist_ok=True)
    rows = len(table)
    for number in range(files):
        path = directory / f"part-{number}.parquet"
        # Files that are written again would be other data to a checkpoint.
        if not path.exists():
            first, end = number * rows // files, (number + 1) * rows // files
            pq.write_table(table.slice(first, end - first), path, row_group_size=1_000)
    return str(directory / "part-*.parquet")


def digest(weights: list[np.ndarray]) -> str:
    """Names the exact values of weights."""
    return hashlib.sha256(b"".join(np.ascontiguousarray(array).tobytes() for array in weights)).hexdigest()[:16]
