#!/usr/bin/env python3
"""Compares packing of tokenized documents in feeds with Grain and TRL, over the same documents, in turns.

    python3 bench/tokens.py [--tokens 60000000] [--rounds 5] [--epochs 5] [--only MEASURE...] [--directory target/bench/tokens]
                            [--package target/site]

Needs bench/requirements.txt and the package linked by `python/link target/site target/release`. Each measurement runs in a separate
process; the order alternates. A rival that is not installed is reported as absent. The documents have lognormal lengths with a median
of 545 tokens, in Parquet as lists of int32. They are packed into sequences of 2,048 tokens, with the number of the document and the
position of each token, in batches of 32 sequences. Longer documents are cut.

Prints medians of tokens/s, without padding, and the share of padding:

* Millstream, by best fit among 4,096 documents, in one or more epochs, and by concatenation; after the first batch;
* Grain, by best fit and by first fit in 64 open sequences, of documents in memory, so without reading; in the program itself, or in as
  many worker processes as there are cores; after the first batch, for an epoch or 20 s;
* TRL's `pack_dataset`, by best-fit decreasing among 4,096 documents without shuffling, in as many processes as there are cores, and the batches
  made of its result by NumPy; the whole time of both, without that of converting the files for Hugging Face datasets;
* memcpy of as many bytes as the batches have, from 256 MiB into a ring of 4 batches.

The program reads one value of each page of each array.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

LENGTH, BATCH, POOL, BINS, FILES = 2_048, 32, 4_096, 64, 8
VOCABULARY = 50_000
MOST_SECONDS = 20
PAGE_BYTES = 4_096
# Tokens, numbers of documents and positions, as int32.
TOKEN_BYTES = 12


def make(directory: pathlib.Path, tokens: int) -> None:
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    random = np.random.default_rng(1)
    directory.mkdir(parents=True)
    for file in range(FILES):
        lengths = np.exp(random.normal(np.log(545), 1, tokens // FILES // 400)).astype(np.int32)
        ends = np.cumsum(lengths)
        offsets = np.concatenate([[0], ends[ends <= tokens // FILES]])
        # As common tokens are in text, ids are the rarer the larger they are.
        ids = (VOCABULARY ** random.random(offsets[-1])).astype(np.int32)
        column = pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pa.array(ids))
        pq.write_table(pa.table({"input_ids": column}), directory / f"part-{file}.parquet", row_group_size=1_024)


def touch(*arrays) -> None:
    for array in arrays:
        array.reshape(-1)[:: PAGE_BYTES // array.itemsize].sum()


class Count:
    """Counts tokens and sequences."""

    def __init__(self) -> None:
        self.tokens = self.sequences = 0

    def add(self, tokens: int, sequences: int) -> None:
        self.tokens += int(tokens)
        self.sequences += sequences

    def result(self, seconds: float) -> dict[str, float]:
        return {"rate": self.tokens / seconds, "padding": 1 - self.tokens / (self.sequences * LENGTH)}


def rate(batches, add, most_seconds: float = MOST_SECONDS) -> dict[str, float]:
    """Tokens/s after the first batch. `add` counts a batch."""
    count, began = Count(), None
    for batch in batches:
        if began is None:
            began = time.perf_counter()
            continue
        add(count, batch)
        if time.perf_counter() - began > most_seconds:
            break
    return count.result(time.perf_counter() - began)


def packed_by_millstream(arguments, how: str) -> dict[str, float]:
    import millstream as ms

    feed = ms.Feed(
        train=str(arguments.directory / "*.parquet"),
        columns={"tokens": ms.tokens("input_ids")},
        pack=ms.pack(length=LENGTH, how=how),
        batch_size=BATCH,
        lanes=FILES,
        shuffle_rows=POOL * FILES,
        epochs=arguments.epochs,
    )

    def add(count, batch):
        touch(batch["tokens"], batch["segment_ids"], batch["positions"])
        offsets, ends = batch["cu_seqlens"]
        count.add(ends[offsets[1:] - 1].sum(), batch.rows)

    loader = ms.Loader(feed)
    return rate((batch for _ in loader.epochs for batch in loader), add)


def millstream_best_fit(arguments):
    return packed_by_millstream(arguments, "best_fit")


def millstream_concatenate(arguments):
    return packed_by_millstream(arguments, "concatenate")


class Pieces:
    """The documents in memory, cut to sequences: a source of Grain, which its worker processes read for themselves."""

    def __init__(self, directory: pathlib.Path) -> None:
        self.directory = directory
        self.read()

    def read(self) -> None:
        import numpy as np
        import pyarrow.parquet as pq

        column = pq.read_table(self.directory, columns=["input_ids"])["input_ids"].combine_chunks()
        self.ids = column.values.to_numpy()
        offsets = column.offsets.to_numpy().astype(np.int64)
        parts = -(-np.diff(offsets) // LENGTH)
        documents = np.repeat(np.arange(len(parts)), parts)
        part = np.arange(len(documents)) - np.repeat(np.cumsum(parts) - parts, parts)
        self.first = offsets[documents] + part * LENGTH
        self.end = np.minimum(self.first + LENGTH, offsets[documents + 1])

    def __len__(self) -> int:
        return len(self.first)

    def __getitem__(self, piece):
        return {"tokens": self.ids[self.first[piece] : self.end[piece]]}

    def __repr__(self) -> str:
        return f"Pieces({self.directory})"

    def __getstate__(self):
        return self.directory

    def __setstate__(self, directory) -> None:
        self.__init__(directory)


def packed_by_grain(arguments, packer: str, workers: int) -> dict[str, float]:
    import absl.flags
    import grain
    import numpy as np

    # Its worker processes read flags.
    absl.flags.FLAGS([sys.argv[0]])
    # Its threads that read in advance make it five times slower, because there is nothing to wait for.
    options = grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)
    pieces = grain.MapDataset.source(Pieces(arguments.directory)).shuffle(seed=1).to_iter_dataset(options)
    pack = getattr(grain.experimental, packer)
    packed = pack(pieces, length_struct={"tokens": LENGTH}, num_packing_bins=BINS).batch(BATCH)
    if workers:
        packed = packed.mp_prefetch(grain.multiprocessing.MultiprocessingOptions(num_workers=workers))

    def add(count, batch):
        tokens, segments, positions = (batch[name] for name in ("tokens", "tokens_segment_ids", "tokens_positions"))
        touch(tokens, segments, positions)
        count.add(np.count_nonzero(segments), len(tokens))

    return rate(packed, add)


def grain_best_fit(arguments):
    return packed_by_grain(arguments, "BestFitPackIterDataset", 0)


def grain_first_fit(arguments):
    return packed_by_grain(arguments, "FirstFitPackIterDataset", 0)


def grain_best_fit_in_workers(arguments):
    return packed_by_grain(arguments, "BestFitPackIterDataset", os.cpu_count())


def trl_best_fit(arguments) -> dict[str, float]:
    import datasets
    import numpy as np
    from trl import pack_dataset

    datasets.disable_progress_bars()
    with tempfile.TemporaryDirectory(dir=arguments.directory.parent) as cache:
        files = str(arguments.directory / "*.parquet")
        documents = datasets.load_dataset("parquet", data_files=files, split="train", cache_dir=cache)
        began, count = time.perf_counter(), Count()
        options = {"batch_size": POOL, "num_proc": os.cpu_count()}
        packed = pack_dataset(documents, LENGTH, "bfd_split", options).with_format("arrow")
        for table in packed.iter(batch_size=BATCH):
            lists, lengths = (table[name].combine_chunks() for name in ("input_ids", "seq_lengths"))
            filled = np.diff(lists.offsets.to_numpy())
            inside = np.arange(LENGTH) < filled[:, None]
            arrays = np.zeros((3, len(lists), LENGTH), np.int32)
            arrays[0][inside] = lists.flatten().to_numpy()
            of = lengths.flatten().to_numpy()
            first = lengths.offsets.to_numpy() - lengths.offsets[0].as_py()
            numbers = np.arange(len(of)) - np.repeat(first[:-1], np.diff(first))
            arrays[1][inside] = np.repeat(numbers + 1, of)
            arrays[2][inside] = np.arange(of.sum()) - np.repeat(np.cumsum(of) - of, of)
            touch(*arrays)
            count.add(filled.sum(), len(lists))
        return count.result(time.perf_counter() - began)


def memcpy(arguments) -> dict[str, float]:
    import numpy as np

    size = BATCH * LENGTH * TOKEN_BYTES
    source = np.ones((256 << 20) // size * size, np.uint8).reshape(-1, size)
    ring = np.ones((4, size), np.uint8)

    def batches():
        for number in range(1 + arguments.epochs * arguments.tokens // (BATCH * LENGTH)):
            np.copyto(ring[number % len(ring)], source[number % len(source)])
            yield ring[number % len(ring)]

    def add(count, batch):
        touch(batch)
        count.add(BATCH * LENGTH, BATCH)

    return rate(batches(), add)


MEASURES = [
    "millstream_best_fit",
    "millstream_concatenate",
    "grain_best_fit",
    "grain_first_fit",
    "grain_best_fit_in_workers",
    "trl_best_fit",
    "memcpy",
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, default=60_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--only", nargs="+", choices=MEASURES, default=MEASURES)
    parser.add_argument("--directory", type=pathlib.Path, default=pathlib.Path("target/bench/tokens"))
    parser.add_argument("--package", type=pathlib.Path, default=pathlib.Path("target/site"))
    parser.add_argument("--one", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        try:
            print(json.dumps(globals()[arguments.one](arguments)))
        except ModuleNotFoundError as error:
            if error.name == "millstream":
                raise
            print("null")
        return
    if not arguments.directory.exists():
        make(arguments.directory, arguments.tokens)

    def measure(what: str) -> dict[str, float] | None:
        command = [sys.executable, __file__, "--directory", arguments.directory, "--one", what]
        command += ["--tokens", str(arguments.tokens), "--epochs", str(arguments.epochs)]
        environment = {**os.environ, "PYTHONPATH": str(arguments.package.resolve()), "OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment)
        return json.loads(done.stdout.splitlines()[-1])

    model = next((line.split(": ")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")), "")
    print(f"{model}, {os.cpu_count()} CPUs; {arguments.tokens:,} tokens, {arguments.rounds} rounds, medians\n")
    results = {what: [] for what in arguments.only}
    for number in range(arguments.rounds):
        for what in arguments.only if number % 2 == 0 else reversed(arguments.only):
            results[what].append(measure(what))
    ours = [of["rate"] for of in results.get(MEASURES[0], [])]
    print("| packed to 2,048 | tokens/s | lowest, highest | padding | Millstream is |\n|---|---|---|---|---|")
    for what, of in results.items():
        name = what.replace("_", " ")
        if None in of:
            print(f"| {name} | absent | | | |")
            continue
        rates = [one["rate"] for one in of]
        spread = f"{min(rates):,.0f}, {max(rates):,.0f}"
        padding = statistics.median(one["padding"] for one in of)
        times = f"{statistics.median(ours) / statistics.median(rates):.1f}x" if ours else ""
        print(f"| {name} | {statistics.median(rates):,.0f} | {spread} | {padding:.2%} | {times} |")


if __name__ == "__main__":
    main()
