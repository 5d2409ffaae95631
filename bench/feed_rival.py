"""The rivals of bench/feed.py: loaders of PyTorch, torchdata and Hugging Face over the same rows.

DataLoader reads row groups by pyarrow in two processes, and shuffles and cuts whole arrays, the fastest way known to us. The
map-style dataset of StatefulDataLoader reads arrays that were written before, one file per column, because rows of Parquet cannot
be read one by one.
"""

import pathlib

from feed_data import BATCH, POOL, files_of

WORKERS = 2


def arrays(table) -> dict:
    """The columns of a table of Arrow as arrays of NumPy."""
    return {
        name: column.combine_chunks().flatten().to_numpy().reshape(len(column), -1)
        if name == "vector"
        else column.to_numpy()
        for name, column in zip(table.column_names, table.columns)
    }


def shuffled(directory: pathlib.Path, shape: str, batch: int = BATCH, pool: int = POOL, rank: int = 0, world: int = 1):
    """An iterable dataset of shuffled batches. Each worker reads its share of the files, with its share of the pool of its rank."""
    import numpy as np
    import pyarrow.parquet as pq
    import torch

    class Rows(torch.utils.data.IterableDataset):
        def __iter__(self):
            worker = torch.utils.data.get_worker_info()
            first, of = rank * worker.num_workers + worker.id, world * worker.num_workers
            random, held, rows = np.random.default_rng(first), [], 0
            for path in files_of(directory, shape)[first::of]:
                file = pq.ParquetFile(path)
                for group in range(file.num_row_groups):
                    held.append(arrays(file.read_row_group(group, use_threads=False)))
                    rows += len(held[-1]["label"])
                    if rows >= pool // worker.num_workers:
                        yield from self.cut(held, random)
                        held, rows = [], 0
            if held:
                yield from self.cut(held, random)

        def cut(self, held, random):
            whole = {name: np.concatenate([part[name] for part in held]) for name in held[0]}
            order = random.permutation(len(whole["label"]))
            for start in range(0, len(order), batch):
                chosen = order[start : start + batch]
                yield {name: torch.from_numpy(array[chosen]) for name, array in whole.items()}

    return Rows()


def dataloader(directory: pathlib.Path, shape: str, prefetch: int = 4, **share):
    import torch

    rows = shuffled(directory, shape, **share)
    return torch.utils.data.DataLoader(rows, batch_size=None, num_workers=WORKERS, prefetch_factor=prefetch)


def datasets(directory: pathlib.Path, shape: str):
    import datasets as hf
    import torch

    rows = hf.load_dataset("parquet", data_files=str(directory / shape / "0[01].parquet"), split="train", streaming=True)
    rows = rows.shuffle(seed=1, buffer_size=POOL // 8).with_format("torch")
    return torch.utils.data.DataLoader(rows, batch_size=BATCH, num_workers=WORKERS, prefetch_factor=4)


def stateful_iterable(directory: pathlib.Path, shape: str):
    from torchdata.stateful_dataloader import StatefulDataLoader

    return StatefulDataLoader(shuffled(directory, shape), batch_size=None, num_workers=WORKERS, prefetch_factor=4)


def stateful_map(directory: pathlib.Path, shape: str):
    import numpy as np
    import torch
    from torchdata.stateful_dataloader import StatefulDataLoader

    class Rows(torch.utils.data.Dataset):
        def __init__(self):
            paths = sorted((directory / "arrays" / shape).glob("*.npy"))
            self.arrays = {path.stem: np.load(path, mmap_mode="r") for path in paths}

        def __len__(self):
            return len(self.arrays["label"])

        def __getitems__(self, places):
            return {name: torch.from_numpy(array[places]) for name, array in self.arrays.items()}

    # All of a batch is read at once, so nothing is left to collate.
    options = {"collate_fn": lambda batch: batch, "num_workers": WORKERS, "prefetch_factor": 4}
    return StatefulDataLoader(Rows(), BATCH, shuffle=True, generator=torch.Generator().manual_seed(1), **options)


def write_arrays(directory: pathlib.Path, shape: str) -> None:
    """Writes the files that the map-style dataset reads, unless they exist."""
    import numpy as np
    import pyarrow.parquet as pq

    made = directory / "arrays" / shape
    if made.exists():
        return
    table = pq.read_table(directory / shape)
    made.mkdir(parents=True)
    for name, array in arrays(table).items():
        np.save(made / f"{name}.npy", array)
