"""Batches for any trainer, straight from shared memory.

    import millstream as ms

    feed = ms.Feed(
        train="gs://bucket/train-*.tfrecord",
        columns={"pixels": ms.tensor("image/raw", "float32", shape=[28, 28]), "label": ms.tensor("label", "int64")},
        batch_size=1024, shuffle_rows=16384, epochs=10, seed=7)
    loader = ms.Loader(feed)
    for batch in loader:                       # one epoch
        train(batch["pixels"], batch["label"])  # NumPy arrays, without a copy
        checkpoint["data"] = batch.state_dict()

`millstream.torch` and `millstream.jax` have loaders whose batches have arrays of those libraries. `millstream.packing` has
masks for packed documents of tokens.
"""

from ._native import FeedError, RankLost, SpecError
from .feed import Feed, image, pack, ragged, raw, tensor, tokens
from .loader import Batch, Loader, Ragged

__all__ = [
    "Batch",
    "Feed",
    "FeedError",
    "Loader",
    "Ragged",
    "RankLost",
    "SpecError",
    "image",
    "pack",
    "ragged",
    "raw",
    "tensor",
    "tokens",
]
