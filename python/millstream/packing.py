"""Masks and labels for packed documents of tokens, in arrays of any library.

A batch of a feed with `pack` has several documents in a row. A model must not let a token attend to those of another
document, and must not predict the first token of a document from the last one of another.

Kernels for sequences of varying length, such as FlashAttention's, take `cu_seqlens` of a batch instead of a mask.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def attention_mask(batch: Mapping[str, Any], *, causal: bool = True) -> Any:
    """Whether the token at place `i` of a sequence may attend to the one at `j`: `[rows, i, j]`, boolean.

    Both are of one piece of a document and, if `causal`, `j` is not after `i`. Padding attends to nothing and nothing to
    it, so its rows are all false: where a softmax of these yields NaN, ignore the results of padding.
    """
    segments, positions = batch["segment_ids"], batch["positions"]
    mask = (segments[:, :, None] == segments[:, None, :]) & (segments[:, :, None] != 0)
    if causal:
        mask = mask & (positions[:, :, None] >= positions[:, None, :])
    return mask


def labels(batch: Mapping[str, Any], column: str = "tokens", *, ignore: int = -100) -> Any:
    """The tokens of `column`, with `ignore` where there is nothing to predict: at the first token of each piece, and in
    padding. `[rows, length]`

    They are those of models that compare the prediction at a place with the label of the next place, as those of Hugging
    Face transformers do.
    """
    tokens = batch[column]
    # The first token of a piece has position 0, and so has padding.
    predicted = batch["positions"] > 0
    return tokens * predicted + ignore * ~predicted
