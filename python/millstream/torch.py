"""Batches as tensors of PyTorch, on the CPU or on a GPU."""

from __future__ import annotations

import collections
import os
import weakref
from collections.abc import Callable
from typing import Any

import torch

from . import _native, loader
from .feed import Feed

# `cudaHostRegisterPortable`: pinned for all devices of the process.
_PORTABLE = 1

# Copies that may hold slots of the ring at a time.
_IN_FLIGHT = 2


class Batch(loader.Batch):
    """Tensors of PyTorch: views of shared memory, or copies on the device of the loader."""

    def to(self, *arguments: Any, **options: Any) -> Batch:
        """The batch with `Tensor.to` applied to each tensor; raw columns stay as they are."""
        return self._with(lambda tensor: tensor.to(*arguments, **options))

    @property
    def mask(self) -> torch.Tensor:
        """Which rows are data, on the device of the batch."""
        mask = super().mask
        if isinstance(self._columns, loader.Views):
            return mask
        tensors = self.tensors()
        return mask.to(tensors[0].device) if tensors else mask

    @staticmethod
    def mask_of(rows: int, length: int) -> torch.Tensor:
        """The mask of a batch of `length` rows, of which the first `rows` are data."""
        return torch.arange(length) < rows

    def tensors(self) -> list[torch.Tensor]:
        """All tensors of the batch; a ragged column has two."""
        parts = [part for value in self.values() for part in (value if isinstance(value, loader.Ragged) else [value])]
        return [part for part in parts if isinstance(part, torch.Tensor)]

    def _with(self, function: Callable[[torch.Tensor], torch.Tensor]) -> Batch:
        def apply(value: Any) -> Any:
            if isinstance(value, loader.Ragged):
                return loader.Ragged(*(apply(part) for part in value))
            return function(value) if isinstance(value, torch.Tensor) else value

        return type(self)({name: apply(value) for name, value in self.items()}, self._place, self._padded)


class Loader(loader.Loader):
    """As `millstream.Loader`, with tensors of PyTorch. `rank` and `world` default to those of `torch.distributed`.

    With a CUDA `device`, batches are copied to it, one in advance, while the program computes; see `Ahead`. Without one, or
    with "cpu", tensors are views of shared memory.
    """

    _batch = Batch

    def __init__(
        self,
        feed: Feed,
        *,
        device: torch.device | str | int | None = None,
        rank: int | None = None,
        world: int | None = None,
        **options: Any,
    ) -> None:
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            rank = torch.distributed.get_rank() if rank is None else rank
            if world is None and "LOCAL_WORLD_SIZE" not in os.environ:
                world = torch.distributed.get_world_size()
        self._device = torch.device("cpu" if device is None else device)
        if self._device.type not in ("cpu", "cuda"):
            raise ValueError(f"device={device!r}: expected a CPU or a CUDA device; for others, use batch.to(device)")
        if self._device.type == "cuda" and self._device.index is None:
            self._device = torch.device("cuda", torch.cuda.current_device())
        super().__init__(feed, rank=rank, world=world, **options)

    def _gathered(self, text: str) -> list[str] | None:
        distributed = torch.distributed
        if not (distributed.is_available() and distributed.is_initialized()) or distributed.get_world_size() != self._world:
            return None
        found: list[Any] = [None] * self._world
        distributed.all_gather_object(found, text)
        return found

    def _read(self, ring: _native.Client | _native.Evaluation, padded: bool) -> loader.Reader:
        reader = super()._read(ring, padded)
        return reader if self._device.type == "cpu" else Ahead(reader, ring.memory, self._device)

    @staticmethod
    def _array(native: _native.Array) -> torch.Tensor:
        return torch.from_dlpack(native)


class Ahead(loader.Reader):
    """Copies the batches of a ring to a CUDA device, one in advance of the program.

    The whole ring is pinned once, so copies are asynchronous and as fast as the bus. They run on a separate stream: that of
    the next batch overlaps with what the program computes. PyTorch does not know when a copy from memory that it has not
    allocated is complete, so the batch in the ring is held until an event after its copy has happened; only then may its slot be
    overwritten.
    """

    def __init__(self, reader: loader.Reader, memory: tuple[int, int], device: torch.device) -> None:
        self._reader = reader
        self._device = device
        self._stream = torch.cuda.Stream(device)
        address, length = memory
        with torch.cuda.device(device):
            code = int(torch.cuda.cudart().cudaHostRegister(address, length, _PORTABLE))
        if code:
            raise _native.FeedError(
                f"CUDA cannot pin the {length:,} bytes of the feed's ring: error {code}; lower `prefetch` or `batch_size`"
            )
        self._next: _Copy | None = None
        # Copies that may still read the ring.
        self._held: collections.deque[_Copy] = collections.deque()
        # Also runs if the loader is dropped, and at the end of the program, while the ring is still mapped.
        self._release = weakref.finalize(self, _release, self._stream, self._held, address, os.getpid())

    def next(self) -> Batch | None:
        """The next batch, on the device; `None` after the last one. An exception loses none."""
        if self._next is None:
            self._next = self._start()
        current = self._next
        if current is None:
            return None
        # The first batch of the next epoch may be long in coming, and is not needed yet.
        following = None if current.source.place.last else self._start()
        self._next = following
        return current.finish(self._device)

    def _start(self) -> _Copy | None:
        while self._held and (len(self._held) >= _IN_FLIGHT or self._held[0].event.query()):
            # First the event, then the slot.
            self._held[0].event.synchronize()
            self._held.popleft()
        source = self._reader.next()
        if source is None:
            return None
        assert isinstance(source, Batch)
        copy = _Copy(source, self._device, self._stream)
        self._held.append(copy)
        return copy

    def close(self) -> None:
        """Waits for copies that are in flight, and unpins the ring."""
        self._next = None
        self._release()


def _release(stream: torch.cuda.Stream, held: collections.deque[_Copy], address: int, process: int) -> None:
    # CUDA does not work in a child that was forked.
    if os.getpid() == process:
        stream.synchronize()
        held.clear()
        torch.cuda.cudart().cudaHostUnregister(address)


class _Copy:
    """A batch that is being copied to a device."""

    def __init__(self, source: Batch, device: torch.device, stream: torch.cuda.Stream) -> None:
        self.source = source
        with torch.cuda.stream(stream):
            # Not `to`, which returns a tensor of the same device as it is.
            self.batch = source._with(lambda tensor: torch.empty_like(tensor, device=device).copy_(tensor, non_blocking=True))
            self.event = stream.record_event()

    def finish(self, device: torch.device) -> Batch:
        """The batch, for work that the program's current stream gets from now on."""
        current = torch.cuda.current_stream(device)
        current.wait_event(self.event)
        for tensor in self.batch.tensors():
            # Its memory belongs to the stream of the copy, and must not be reused there before the program is done with it.
            tensor.record_stream(current)
        return self.batch
