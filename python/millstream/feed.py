"""What a feed reads, and in which order."""

from __future__ import annotations

import json
import math
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from . import _native


def tensor(column: str, dtype: str, shape: Sequence[int] = (), *, missing: float | None = None) -> dict[str, Any]:
    """A column whose rows all have the same shape: an array `[rows, *shape]`.

    A row with another number of values is a bad record, and so is an integer that `dtype` cannot hold. `missing`
    replaces absent values, which are bad records otherwise.
    """
    return {"kind": "tensor", "column": column, "dtype": dtype, "shape": list(shape), "missing": _number(missing)}


def ragged(column: str, dtype: str, maximum: int, *, missing: float | None = None) -> dict[str, Any]:
    """A column with any number of values per row. Rows with more than `maximum` lose those at the end."""
    return {"kind": "ragged", "column": column, "dtype": dtype, "maximum": maximum, "missing": _number(missing)}


def raw(column: str, maximum: int) -> dict[str, Any]:
    """A column of bytes or text. A row with more than `maximum` bytes is a bad record."""
    return {"kind": "raw", "column": column, "maximum": maximum}


def image(
    column: str,
    size: int | Sequence[int],
    *,
    crop: str = "none",
    scale: Sequence[float] | None = None,
    ratio: Sequence[float] | None = None,
    fraction: float | None = None,
    flip: bool = False,
    jitter: Mapping[str, float] | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    color: str = "rgb",
    layout: str = "NHWC",
    dtype: str = "uint8",
    decode: str = "exact",
    max_pixels: int | None = None,
    average_bytes: int | None = None,
) -> dict[str, Any]:
    """A column of encoded images (JPEG, PNG, WebP), decoded to an array `[rows, height, width, channels]`.

    * `size`: one number, or height and width.
    * `crop`: `"none"` resizes the whole image; `"center"` takes the largest centred part of
      the result's aspect ratio, reduced by `fraction` (0.875);
      `"random_resized"` a random part, whose share of the area and ratio of width to height lie within `scale`
      (0.08 to 1) and `ratio` (3/4 to 4/3).
    * `flip`: mirrors half of the images. `jitter`: the greatest random change of `brightness`, `contrast`, `saturation`
      and `hue`.
    * `dtype`: `"uint8"` (0 to 255), or `"float16"`, `"bfloat16"`, `"float32"`: 0 to 1, then `(value - mean) / std`.
    * `layout`: `"NHWC"` or `"NCHW"`. `color`: `"rgb"` or `"gray"`.
    * `decode`: `"fast"` decodes large JPEG images at a lower resolution.
    * `max_pixels`: larger images are bad records. `average_bytes`: the usual size of an encoded image, for which memory
      is planned; without it, it is derived from the data.

    Random parts, flips and colours depend on the feed's seed, the epoch, the row and the name of the column alone.
    Evaluations draw no random numbers: a random part becomes the centred one.
    """
    given = {
        "crop": crop, "scale": scale, "ratio": ratio, "fraction": fraction, "flip": flip, "jitter": jitter,
        "mean": mean, "std": std, "color": color, "layout": layout, "dtype": dtype, "decode": decode,
        "max_pixels": max_pixels, "average_bytes": average_bytes,
    }  # fmt: skip
    return {"kind": "image", "column": column, "size": size, **given}


def tokens(
    column: str,
    dtype: str = "int32",
    *,
    bos: float | None = None,
    eos: float | None = None,
    pad: float = 0,
    maximum: int | None = None,
    missing: float | None = None,
    stored: str | None = None,
    tokenizer: str | os.PathLike[str] | None = None,
    average: int | None = None,
) -> dict[str, Any]:
    """A column of documents, lists of tokens of any length, which `pack` joins to sequences: `[rows, length]`.

    * `bos`, `eos`: the values before and after the tokens of each document. `pad`: the value of padding.
    * `maximum`: longer documents lose the tokens at their end.
    * `stored`: `"uint16"` or `"uint32"` if the column has the tokens of a document as bytes, little-endian.
    * `tokenizer`: the path of a `tokenizer.json`, as Hugging Face's library saves them, if the column has text of at most
      768 KiB. It adds no special tokens; `bos` and `eos` do.
    * `average`: the usual number of tokens of a document, for which memory is planned; without it, it is derived from the
      data.

    A feed may have several such columns, for example of tokens and of weights of the loss. A document has as many values
    in each; otherwise it is a bad record. An absent list or text is an empty document.
    """
    given = {"bos": _number(bos), "eos": _number(eos), "pad": _number(pad), "missing": _number(missing)}
    path = None if tokenizer is None else os.fspath(tokenizer)
    more = {"maximum": maximum, "stored": stored, "tokenizer": path, "average": average}
    return {"kind": "tokens", "column": column, "dtype": dtype, **given, **more}


def pack(length: int, how: str = "best_fit") -> dict[str, Any]:
    """Packs documents into sequences of `length` tokens. A row of a batch is then a sequence.

    * `how="best_fit"` cuts only documents that are longer than a sequence, and puts each piece where the least space
      remains that suffices. If most documents are far shorter than a sequence and the pool has some thousands of them
      per lane, its padding is below 0.2 %.
    * `how="concatenate"` joins documents and cuts them where a sequence ends. It has padding only at the end of each
      window.

    A batch has, besides the columns of tokens, `segment_ids` (the pieces of a sequence, counted from 1; 0 is padding),
    `positions` (from 0 in each piece) and `cu_seqlens` (a ragged column: 0, and the end of each piece).
    `millstream.packing` makes masks of them.
    """
    return {"length": length, "how": how}


class Feed:
    """Data, its order, and the columns of its batches. It reads nothing: a loader does.

    `batch_size` counts the rows of all ranks together; with `pack`, a row is a sequence of packed documents. Other keyword
    arguments are keys of `[data]`, as in a job file: `shuffle_rows`, `epochs`, `lanes`, `prefetch`, `filter`, `missing`, `memory_budget`, `on_bad_record` and so on.

    Raises `SpecError` with all problems.
    """

    def __init__(
        self,
        *,
        train: str | Sequence[str],
        columns: Mapping[str, Mapping[str, Any]],
        batch_size: int,
        eval: Mapping[str, str | Sequence[str]] | None = None,
        pack: Mapping[str, Any] | None = None,
        seed: int = 0,
        storage: Mapping[str, Any] | None = None,
        **data: Any,
    ) -> None:
        data = {"train": train, "batch_size": batch_size, "eval": eval, "base": os.getcwd(), **data}
        arguments = {"seed": seed, "data": data, "columns": columns, "pack": pack, "storage": storage}
        try:
            text = json.dumps(arguments, default=_plain, allow_nan=False)
        except ValueError as error:
            raise ValueError("numbers that are not finite may only be the `missing`, `bos`, `eos` or `pad` of a column") from error
        self._text = _native.resolve(text)

    @classmethod
    def from_toml(cls, path: str | os.PathLike[str]) -> Feed:
        """The feed of a file with the sections `[data]`, `[columns]`, `[pack]` and `[storage]`, and `seed`."""
        feed = cls.__new__(cls)
        feed._text = _native.parse(pathlib.Path(path).read_text(encoding="utf-8"), os.fspath(path))
        return feed

    @property
    def text(self) -> str:
        """The feed as self-contained TOML."""
        return self._text

    def __repr__(self) -> str:
        return f"<millstream.Feed\n{self._text}>"


def _number(value: float | None) -> float | str | None:
    """JSON has no NaN and no infinity."""
    return value if value is None or math.isfinite(value) else str(value)


def _plain(value: Any) -> Any:
    """What JSON has for a value: paths, numbers of other libraries, and sequences of any kind."""
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if getattr(value, "ndim", None) == 0:
        return value.item()
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, (set, frozenset)) or not hasattr(value, "__iter__"):
        raise TypeError(f"a feed cannot have a value of type {type(value).__name__}")
    return list(value)
