"""Runs an example on tensors that it makes itself, by pyarrow, in an order that it is given.

    python by_hand.py EXAMPLE DIRECTORY ORDER

ORDER is a file of JSON: the rows of each batch of each epoch.
"""

import json
import pathlib
import runpy
import sys

import millstream as ms
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

example, directory = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
order = json.loads(pathlib.Path(sys.argv[3]).read_text())
framework = example.stem.removeprefix("train_")


class Batch(dict):
    def state_dict(self):
        return {}


class ByHand:
    """Has the methods of a loader that the examples and the frameworks call."""

    make = staticmethod(np.asarray)

    def __init__(self, feed, **options):
        tables = [pq.read_table(path) for path in sorted(directory.glob("part-*.parquet"))]
        table = pa.concat_tables(tables)
        self.x = np.array(table["x"].to_pylist(), np.float32)
        self.label = table["label"].to_numpy()
        self.name = "labels" if "labels" in feed.text else "label"
        self.epoch = 0

    def __iter__(self):
        # Not every framework iterates to the end.
        self.epoch += 1
        for rows in order[self.epoch - 1]:
            yield Batch({"x": self.make(self.x[rows]), self.name: self.make(self.label[rows])})

    def __len__(self):
        return len(order[0])

    epochs = property(lambda self: range(len(order)))

    def evaluate(self, name):
        yield Batch({"x": self.make(self.x), self.name: self.make(self.label)})

    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass

    def await_training(self):
        pass

    def trained(self):
        pass


if framework == "tensorflow":
    import millstream.tf
    import tensorflow

    class Tensors(ByHand):
        make = staticmethod(tensorflow.constant)

        def __iter__(self):
            return ({**batch, "state": "{}"} for batch in super(Tensors, self).__iter__())

        def prefetch(self, number):
            return self

    ms.Loader = Tensors
    millstream.tf.dataset = lambda loader, state: loader
elif framework == "jax":
    import millstream.jax

    class Arrays(ByHand):
        make = staticmethod(lambda values: values.astype(np.int32) if values.dtype == np.int64 else values)

    millstream.jax.Loader = Arrays
else:
    import millstream.torch
    import torch

    class Tensors(ByHand):
        make = staticmethod(torch.tensor)

    millstream.torch.Loader = Tensors

sys.path.insert(0, str(example.parent))
sys.argv = [str(example), str(directory)]
runpy.run_path(str(example), run_name="__main__")
