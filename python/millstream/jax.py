"""Batches as arrays of JAX."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import numpy

from . import _native, loader
from ._native import SpecError

# The length of a gathered text, padded with spaces.
_GATHERED_BYTES = 4096


class Loader(loader.Loader):
    """As `millstream.Loader`, with arrays of JAX on the CPU: views of shared memory. `jax.device_put` moves them.

    Without `jax_enable_x64`, JAX has no 64-bit types and would narrow them silently, so such columns are refused.
    """

    def _check_columns(self, columns: Mapping[str, loader.Column]) -> None:
        wide = [name for name, of in columns.items() if of.kind != "raw" and of.dtype.endswith("64")]
        if wide and not jax.config.jax_enable_x64:
            names = ", ".join(f"`{name}`" for name in wide)
            raise SpecError(
                f"JAX would narrow {names} to 32 bits: ask for 32-bit types, or enable jax_enable_x64"
            )

    def _gathered(self, text: str) -> list[str] | None:
        if jax.process_count() != self._world:
            return None
        from jax.experimental import multihost_utils

        # All processes gather arrays of one size. Spaces around JSON mean nothing.
        padded = text.encode().ljust(_GATHERED_BYTES)
        assert len(padded) == _GATHERED_BYTES, text
        mine = numpy.frombuffer(padded, numpy.uint8)
        found = numpy.asarray(multihost_utils.process_allgather(mine))
        return [of.tobytes().decode() for of in found]

    @staticmethod
    def _array(native: _native.Array) -> Any:
        return jax.dlpack.from_dlpack(native)
