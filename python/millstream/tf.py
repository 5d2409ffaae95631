"""Batches as datasets of TensorFlow."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import tensorflow

from . import loader
from .feed import Feed


def dataset(
    source: Feed | loader.Loader, *, evaluate: str | None = None, state: str | None = None
) -> tensorflow.data.Dataset:
    """The batches of a feed as a `tf.data.Dataset` of dictionaries of tensors. Each iteration is an epoch.

    Tensors are views of shared memory, also those that `prefetch` keeps. Ragged columns are `tf.RaggedTensor`, and raw
    columns are strings. `evaluate` names held-out data to read instead.

    `state` names one more column, a string: the state of the batch as JSON. A pipeline takes batches in advance, so
    `loader.state_dict()` is not that of the batch trained last.

        loader = ms.Loader(feed)
        loader.load_state_dict(json.loads(checkpoint["data"]))
        for batch in millstream.tf.dataset(loader, state="state").prefetch(2):
            step(batch["x"], batch["label"])
            checkpoint["data"] = batch["state"].numpy().decode()
    """
    source = loader.Loader(source) if isinstance(source, Feed) else source
    columns = source.columns
    if state in columns:
        raise ValueError(f"state={state!r}: the feed has a column with that name; choose another")

    def batches() -> Iterator[dict[str, Any]]:
        for batch in source if evaluate is None else source.evaluate(evaluate):
            values = {name: _tensor(batch[name], column) for name, column in columns.items()}
            if state is not None:
                values[state] = json.dumps(batch.state_dict())
            yield values

    signature = {name: _signature(column) for name, column in columns.items()}
    if state is not None:
        signature[state] = tensorflow.TensorSpec([], tensorflow.string)
    return tensorflow.data.Dataset.from_generator(batches, output_signature=signature)


def _signature(column: loader.Column) -> tensorflow.TypeSpec:
    if column.kind == "raw":
        return tensorflow.TensorSpec([None], tensorflow.string)
    dtype = tensorflow.as_dtype(column.dtype)
    if column.kind == "ragged":
        return tensorflow.RaggedTensorSpec([None, None], dtype, row_splits_dtype=tensorflow.int32)
    return tensorflow.TensorSpec([None, *column.shape], dtype)


def _tensor(value: Any, column: loader.Column) -> Any:
    if column.kind != "ragged":
        return value
    return tensorflow.RaggedTensor.from_row_splits(value.values, value.offsets, validate=False)
