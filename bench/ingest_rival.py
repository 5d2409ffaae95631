#!/usr/bin/env python3
"""The rivals of `bench/ingest.py`: they read the same files into shuffled batches of 4096 rows.

    python bench/ingest_rival.py RIVAL hashed|raw FILE...

TFRecord:

* `tfdata`: tuned tf.data. Interleaves files in parallel, shuffles serialised records, parses, hashes and stacks
  whole batches in parallel, and prefetches.
* `tfdata-blocks`: tuned beyond the guides, without work per record after reading. Files deliver blocks of records;
  100,000 of them are permuted as one tensor, cut into batches and parsed.
* `tfdata-guide`: as in TensorFlow's guides to TFRecord and tf.data: shuffle, `parse_single_example` in a parallel map,
  batch, prefetch.

Parquet:

* `pyarrow`: row groups read by pyarrow's threads into NumPy arrays (float32 `[n, 13]`, int64 `[n, 26]`; strings as
  object columns), permuted within pools of 100,000 rows and cut into batches.
* `polars`: only `read_parquet`, with all its threads. No NumPy, no shuffle, no batches.
* `torch`: a DataLoader with one process per core; each does the work of `pyarrow` on its share, into tensors.
* `huggingface`: `datasets` in `numpy` format, batch by batch, with its cache built before the clock starts. No shuffle,
  which would slow it down.

The Parquet rivals keep strings unchanged; Millstream hashes them.

Prints one JSON document: rows, and seconds from building the pipeline to its last batch. This excludes importing
libraries and includes the pipeline's start-up.
"""

import argparse
import json
import os
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

NUMERIC = [f"i{i}" for i in range(1, 14)]
CATEGORICAL = [f"c{i}" for i in range(1, 27)]
BATCH, SHUFFLE, BUCKETS = 4096, 100_000, 100_000
COLUMNS = ["clicked", *NUMERIC, *CATEGORICAL]


# ---- TensorFlow


def tf_columns(files: list[str], work: str):
    """The specification for `parse_example`, and the conversion of its result."""
    import tensorflow as tf

    is_text = os.path.basename(files[0]).startswith("hex")
    spec = {name: tf.io.FixedLenFeature([], tf.int64, 0) for name in NUMERIC}
    spec |= {name: tf.io.FixedLenFeature([], tf.string if is_text else tf.int64, "" if is_text else 0) for name in CATEGORICAL}
    spec["clicked"] = tf.io.FixedLenFeature([], tf.int64)

    def finish(row, axis: int):
        dense = tf.cast(tf.stack([row[name] for name in NUMERIC], axis=axis), tf.float32)
        ids = tf.stack([row[name] for name in CATEGORICAL], axis=axis)
        if work == "hashed":
            dense = tf.math.log1p(dense)
            ids = tf.strings.to_hash_bucket_fast(ids if is_text else tf.as_string(ids), BUCKETS)
        return dense, ids, tf.cast(row["clicked"], tf.float32)

    return spec, finish


def compression_of(files: list[str]) -> str:
    return "GZIP" if files[0].endswith(".gz") else ""


def tfdata(files: list[str], work: str):
    import tensorflow as tf

    spec, finish = tf_columns(files, work)
    records = tf.data.Dataset.from_tensor_slices(files).interleave(
        lambda path: tf.data.TFRecordDataset(path, compression_of(files), buffer_size=1 << 20),
        cycle_length=len(files), block_length=64, num_parallel_calls=tf.data.AUTOTUNE, deterministic=False,
    )
    batches = records.shuffle(SHUFFLE).batch(BATCH, num_parallel_calls=tf.data.AUTOTUNE, deterministic=False)
    parsed = batches.map(lambda records: finish(tf.io.parse_example(records, spec), 1), num_parallel_calls=tf.data.AUTOTUNE, deterministic=False)
    return parsed.prefetch(tf.data.AUTOTUNE)


def tfdata_blocks(files: list[str], work: str):
    import tensorflow as tf

    spec, finish = tf_columns(files, work)
    block = 1024
    blocks = tf.data.Dataset.from_tensor_slices(files).interleave(
        lambda path: tf.data.TFRecordDataset(path, compression_of(files), buffer_size=1 << 20).batch(block),
        cycle_length=len(files), num_parallel_calls=tf.data.AUTOTUNE, deterministic=False,
    )
    pools = blocks.ragged_batch(SHUFFLE // block).map(lambda pool: tf.random.shuffle(pool.flat_values))
    batches = pools.prefetch(1).rebatch(BATCH)
    parsed = batches.map(lambda records: finish(tf.io.parse_example(records, spec), 1), num_parallel_calls=tf.data.AUTOTUNE, deterministic=False)
    return parsed.prefetch(tf.data.AUTOTUNE)


def tfdata_guide(files: list[str], work: str):
    import tensorflow as tf

    spec, finish = tf_columns(files, work)
    return (
        tf.data.TFRecordDataset(files, compression_of(files))
        .shuffle(SHUFFLE)
        .map(lambda record: finish(tf.io.parse_single_example(record, spec), 0), num_parallel_calls=tf.data.AUTOTUNE)
        .batch(BATCH)
        .prefetch(tf.data.AUTOTUNE)
    )


def run_tf(make):
    def run(files: list[str], work: str) -> tuple[int, float]:
        import tensorflow as tf

        tf.constant(0)  # Starts TensorFlow itself.
        started, rows = time.perf_counter(), 0
        for _, _, labels in make(files, work):
            rows += labels.shape[0]
        return rows, time.perf_counter() - started

    return run


# ---- Parquet


def arrays(table):
    """A block of numbers, a block of ids (or columns of strings), and the labels."""
    import numpy as np
    import pyarrow as pa

    rows = len(table)
    dense = np.empty((rows, len(NUMERIC)), np.float32)
    for at, name in enumerate(NUMERIC):
        dense[:, at] = table[name].fill_null(0).to_numpy()
    if pa.types.is_integer(table.schema.field(CATEGORICAL[0]).type):
        ids = np.empty((rows, len(CATEGORICAL)), np.int64)
        for at, name in enumerate(CATEGORICAL):
            ids[:, at] = table[name].fill_null(0).to_numpy()
        categories = [ids]
    else:
        categories = [table[name].to_numpy() for name in CATEGORICAL]
    return [dense, *categories, table["clicked"].to_numpy()]


def pooled(files: list[str], pool_rows: int, threads: bool):
    """Shuffled batches, pool by pool."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    random, held, rows = np.random.default_rng(1), [], 0

    def drain():
        blocks = arrays(pa.concat_tables(held))
        order = random.permutation(rows)
        for start in range(0, rows, BATCH):
            chosen = order[start : start + BATCH]
            yield [block[chosen] for block in blocks]

    for path in files:
        file = pq.ParquetFile(path, memory_map=True)
        for group in range(file.num_row_groups):
            table = file.read_row_group(group, columns=COLUMNS, use_threads=threads)
            while len(table):
                part = table.slice(0, pool_rows - rows)
                table = table.slice(len(part))
                held.append(part)
                rows += len(part)
                if rows == pool_rows:
                    yield from drain()
                    held, rows = [], 0
    if rows:
        yield from drain()


def run_pyarrow(files: list[str], work: str) -> tuple[int, float]:
    import pyarrow.parquet  # noqa: F401

    started, rows = time.perf_counter(), 0
    for batch in pooled(files, SHUFFLE, threads=True):
        rows += len(batch[-1])
    return rows, time.perf_counter() - started


def run_polars(files: list[str], work: str) -> tuple[int, float]:
    import polars

    started = time.perf_counter()
    rows = polars.read_parquet(files, columns=COLUMNS, glob=False).height
    return rows, time.perf_counter() - started


def run_torch(files: list[str], work: str) -> tuple[int, float]:
    import torch

    workers = os.cpu_count() or 1
    is_text = os.path.basename(files[0]).startswith("hex")

    class Rows(torch.utils.data.IterableDataset):
        def __iter__(self):
            share = torch.utils.data.get_worker_info().id
            for batch in pooled(files[share::workers], SHUFFLE // workers, threads=False):
                # PyTorch has no string tensors.
                yield [block if is_text and block.dtype == object else torch.from_numpy(block) for block in batch]

    loader = torch.utils.data.DataLoader(Rows(), batch_size=None, num_workers=workers, prefetch_factor=4)
    started, rows = time.perf_counter(), 0
    for batch in loader:
        rows += len(batch[-1])
    return rows, time.perf_counter() - started


def run_huggingface(files: list[str], work: str) -> tuple[int, float]:
    import datasets

    datasets.disable_progress_bars()
    cache = os.path.join(os.path.dirname(files[0]), "huggingface")
    rows_of = datasets.load_dataset("parquet", data_files=files, split="train", cache_dir=cache).with_format("numpy")
    started, rows = time.perf_counter(), 0
    for batch in rows_of.iter(BATCH):
        rows += len(batch["clicked"])
    return rows, time.perf_counter() - started


RIVALS = {
    "tfdata": run_tf(tfdata),
    "tfdata-blocks": run_tf(tfdata_blocks),
    "tfdata-guide": run_tf(tfdata_guide),
    "pyarrow": run_pyarrow,
    "polars": run_polars,
    "torch": run_torch,
    "huggingface": run_huggingface,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rival", choices=RIVALS)
    parser.add_argument("work", choices=["hashed", "raw"])
    parser.add_argument("files", nargs="+")
    options = parser.parse_args()
    rows, seconds = RIVALS[options.rival](options.files, options.work)
    print(json.dumps({"rival": options.rival, "rows": rows, "seconds": seconds}))


if __name__ == "__main__":
    main()
