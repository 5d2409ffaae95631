#!/usr/bin/env python3
"""Compares feeds of JSON lines, WebDataset and MDS with the libraries that read them, over the same files, in turns.

    python3 bench/formats.py [--rows 500000] [--rounds 5] [--streaming PYTHON] [--only TABLE...]
                             [--directory target/bench/formats] [--package target/site]

Needs bench/requirements.txt and the package linked by `python/link target/site target/release`. `--streaming` names a Python with
mosaicml-streaming, which needs an older NumPy; without it, MDS is not measured. Each measurement runs in a separate
process; the order alternates. The rows are clicks: a label, 8 numbers and 16 ids, in batches of 1,024; the samples are 60 kB of bytes
and a label, in batches of 64.

Prints medians of rows/s, after the first batch, in one epoch or its first 20 s. `clicks` are shuffled among 16,384 rows. Hugging Face datasets streams
and shuffles them; pyarrow.json reads whole files into columns, without batches. `samples` are shuffled among 512; webdataset reads
them in as many worker processes as there are cores, or in the program itself. Beside `clicks`, the same rows in Parquet. MosaicML
Streaming reads both from MDS, and shuffles by its default algorithm; its dataset is read by a DataLoader with as many workers.
"""

import argparse
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tarfile
import time

BATCH, POOL, FILES = 1_024, 16_384, 8
SAMPLE_BATCH, SAMPLE_POOL, SAMPLE_BYTES = 64, 512, 60_000
MOST_SECONDS = 20
NUMBERS = [f"number{n}" for n in range(8)]
IDS = [f"id{n}" for n in range(16)]


def make(directory: pathlib.Path, rows: int) -> None:
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq
    import webdataset

    random = np.random.default_rng(1)
    for file in range(FILES):
        count = rows // FILES
        table = {"label": random.integers(0, 2, count)}
        table |= {name: random.normal(size=count).round(4) for name in NUMBERS}
        table |= {name: random.integers(0, 10 ** (1 + n % 7), count) for n, name in enumerate(IDS)}
        table = pa.table(table)
        (directory / "clicks").mkdir(parents=True, exist_ok=True)
        pq.write_table(table, directory / "clicks" / f"part-{file}.parquet", row_group_size=16_384)
        with open(directory / "clicks" / f"part-{file}.jsonl", "w", encoding="utf-8") as lines:
            lines.writelines(json.dumps(row) + "\n" for row in table.to_pylist())
        (directory / "samples").mkdir(parents=True, exist_ok=True)
        with webdataset.TarWriter(str(directory / "samples" / f"part-{file}.tar")) as archive:
            for number in range(count // 64):
                archive.write({"__key__": f"{file}-{number:06}", "bin": random.bytes(SAMPLE_BYTES), "cls": number % 1000})


def rate(batches, length) -> float:
    """Rows/s after the first batch, for an epoch or some seconds."""
    rows, began = 0, None
    for batch in batches:
        if began is None:
            began = time.perf_counter()
            continue
        rows += length(batch)
        if time.perf_counter() - began > MOST_SECONDS:
            break
    return rows / (time.perf_counter() - began)


def clicks(directory: pathlib.Path, files: str) -> float:
    import millstream as ms

    columns = {"label": ms.tensor("label", "int64")}
    columns |= {name: ms.tensor(name, "float32") for name in NUMBERS}
    columns |= {name: ms.tensor(name, "int64") for name in IDS}
    feed = ms.Feed(train=str(directory / "clicks" / files), columns=columns, batch_size=BATCH, shuffle_rows=POOL)
    return rate(ms.Loader(feed), lambda batch: batch.rows)


def millstream_jsonl(directory):
    return clicks(directory, "*.jsonl")


def millstream_parquet(directory):
    return clicks(directory, "*.parquet")


def millstream_mds(directory):
    return clicks(directory, "mds/*.mds")


def streaming_mds(directory):
    return streamed(directory / "clicks" / "mds", BATCH, os.cpu_count())


def streaming_mds_alone(directory):
    return streamed(directory / "clicks" / "mds", BATCH, 0)


def datasets_jsonl(directory):
    import datasets
    import torch

    files = sorted(map(str, (directory / "clicks").glob("*.jsonl")))
    rows = datasets.load_dataset("json", data_files=files, split="train", streaming=True)
    rows = rows.shuffle(seed=1, buffer_size=POOL).with_format("torch")
    loader = torch.utils.data.DataLoader(rows, batch_size=BATCH, num_workers=os.cpu_count())
    return rate(loader, lambda batch: len(batch["label"]))


def pyarrow_jsonl(directory):
    from pyarrow import json as arrow

    files = sorted((directory / "clicks").glob("*.jsonl"))
    return rate((arrow.read_json(file) for file in files), len)


def millstream_tar(directory):
    import millstream as ms

    columns = {"data": ms.raw("bin", SAMPLE_BYTES), "label": ms.tensor("cls", "int64")}
    return samples_of_feed(directory / "samples" / "*.tar", columns)


def millstream_samples_mds(directory):
    import millstream as ms

    columns = {"data": ms.raw("data", SAMPLE_BYTES), "label": ms.tensor("label", "int64")}
    return samples_of_feed(directory / "samples" / "mds" / "*.mds", columns)


def samples_of_feed(files, columns):
    import millstream as ms

    feed = ms.Feed(train=str(files), columns=columns, batch_size=SAMPLE_BATCH, shuffle_rows=SAMPLE_POOL)
    return rate(ms.Loader(feed), lambda batch: batch.rows)


def samples(directory, workers):
    import torch
    import webdataset

    files = sorted(map(str, (directory / "samples").glob("*.tar")))
    read = webdataset.WebDataset(files, shardshuffle=False).shuffle(SAMPLE_POOL)
    read = read.map(lambda sample: (sample["bin"], int(sample["cls"]))).batched(SAMPLE_BATCH)
    loader = torch.utils.data.DataLoader(read, batch_size=None, num_workers=workers)
    return rate(loader, lambda batch: len(batch[1]))


def webdataset_tar(directory):
    return samples(directory, os.cpu_count())


def webdataset_tar_alone(directory):
    return samples(directory, 0)


def streaming_samples_mds(directory):
    return streamed(directory / "samples" / "mds", SAMPLE_BATCH, os.cpu_count())


def streaming_samples_mds_alone(directory):
    return streamed(directory / "samples" / "mds", SAMPLE_BATCH, 0)


def streamed(directory, batch: int, workers: int) -> float:
    import streaming
    import torch

    streaming.base.util.clean_stale_shared_memory()
    rows = streaming.StreamingDataset(local=str(directory), shuffle=True, batch_size=batch)
    loader = torch.utils.data.DataLoader(rows, batch_size=batch, num_workers=workers)
    return rate(loader, lambda columns: len(columns["label"]))


def write_mds(directory: pathlib.Path) -> None:
    """Writes the rows and the samples as MDS, unless they are there."""

    def rows():
        for file in sorted((directory / "clicks").glob("*.jsonl")):
            with open(file, encoding="utf-8") as lines:
                yield from map(json.loads, lines)

    def samples():
        for file in sorted((directory / "samples").glob("*.tar")):
            with tarfile.open(file) as archive:
                contents = (archive.extractfile(entry).read() for entry in archive)
                for data, label in zip(contents, contents):
                    yield {"data": data, "label": int(label)}

    from streaming import MDSWriter

    numbers = {"label": "int64", **dict.fromkeys(NUMBERS, "float64"), **dict.fromkeys(IDS, "int64")}
    for shape, columns, of in ("clicks", numbers, rows()), ("samples", {"data": "bytes", "label": "int64"}, samples()):
        written, unfinished = directory / shape / "mds", directory / shape / "mds.unfinished"
        if not written.exists():
            shutil.rmtree(unfinished, ignore_errors=True)
            with MDSWriter(out=str(unfinished), columns=columns) as writer:
                for row in of:
                    writer.write(row)
            unfinished.rename(written)


# Each is compared with the first of its table.
TABLES = {
    "clicks": ["millstream_jsonl", "datasets_jsonl", "pyarrow_jsonl", "millstream_parquet"],
    "clicks in MDS": ["millstream_mds", "streaming_mds", "streaming_mds_alone"],
    "samples": ["millstream_tar", "webdataset_tar", "webdataset_tar_alone"],
    "samples in MDS": ["millstream_samples_mds", "streaming_samples_mds", "streaming_samples_mds_alone"],
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=500_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--directory", type=pathlib.Path, default=pathlib.Path("target/bench/formats"))
    parser.add_argument("--package", type=pathlib.Path, default=pathlib.Path("target/site"))
    parser.add_argument("--streaming", type=pathlib.Path, help="a Python with mosaicml-streaming and torch")
    parser.add_argument("--only", nargs="+", choices=TABLES, default=list(TABLES))
    parser.add_argument("--one", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(globals()[arguments.one](arguments.directory)))
        return
    if not (arguments.directory / "samples").exists():
        make(arguments.directory, arguments.rows)

    def measure(what: str) -> float | None:
        python = arguments.streaming if what.startswith(("streaming", "write")) else sys.executable
        command = [python, __file__, "--directory", arguments.directory, "--one", what]
        environment = {**os.environ, "PYTHONPATH": str(arguments.package.resolve()), "OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment)
        return json.loads(done.stdout.splitlines()[-1])

    model = next((line.split(": ")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")), "")
    print(f"{model}, {os.cpu_count()} CPUs; {arguments.rows:,} rows, {arguments.rounds} rounds, medians\n")
    if arguments.streaming and any("MDS" in table for table in arguments.only):
        measure("write_mds")
    for table in arguments.only:
        measures = TABLES[table]
        if "MDS" in table and not arguments.streaming:
            print(f"{table}: not measured without --streaming\n")
            continue
        rates = {what: [] for what in measures}
        for number in range(arguments.rounds):
            for what in measures if number % 2 == 0 else reversed(measures):
                rates[what].append(measure(what))
        medians = {what: statistics.median(of) for what, of in rates.items()}
        ours = medians[measures[0]]
        print(f"| {table} | rows/s | lowest, highest | Millstream is |\n|---|---|---|---|")
        for what, of in medians.items():
            spread = f"{min(rates[what]):,.0f}, {max(rates[what]):,.0f}"
            print(f"| {what.replace('_', ' ')} | {of:,.0f} | {spread} | {ours / of:.1f}x |")
        print(flush=True)


if __name__ == "__main__":
    main()
