"""Batches as tensors of PyTorch."""

from __future__ import annotations

import os
from typing import Any

import torch

from . import _native, loader


class Batch(loader.Batch):
    """Tensors of PyTorch: views of shared memory."""

    def to(self, *arguments: Any, **options: Any) -> dict[str, Any]:
        """The columns with `Tensor.to` applied to each tensor; raw columns stay as they are."""

        def move(value: Any) -> Any:
            if isinstance(value, loader.Ragged):
                return loader.Ragged(*(move(part) for part in value))
            return value.to(*arguments, **options) if isinstance(value, torch.Tensor) else value

        return {name: move(value) for name, value in self.items()}

    @property
    def mask(self) -> torch.Tensor:
        return torch.arange(self._capacity) < self._native.rows


class Loader(loader.Loader):
    """As `millstream.Loader`, with tensors of PyTorch. `rank` and `world` default to those of `torch.distributed`."""

    _batch = Batch

    def __init__(self, feed: Any, *, rank: int | None = None, world: int | None = None, **options: Any) -> None:
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            rank = torch.distributed.get_rank() if rank is None else rank
            if world is None and "LOCAL_WORLD_SIZE" not in os.environ:
                world = torch.distributed.get_world_size()
        super().__init__(feed, rank=rank, world=world, **options)

    @staticmethod
    def _array(native: _native.Array) -> torch.Tensor:
        return torch.from_dlpack(native)
