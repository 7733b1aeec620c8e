"""Initial weights: one seed gives the same numbers on every backend."""

from __future__ import annotations

import math
import random
from typing import Any

from ..algebra.arrays import Array, compute_dtype
from ..dispatch.default import backend_without_arrays
from ..ops import check


class Weights:
    """A generator of weights for one backend, dtype and device; each call continues the random sequence."""

    def __init__(self, seed: int, backend: str | None, dtype: Any, device: Any) -> None:
        self.backend = backend_without_arrays(backend, device)
        self.dtype = check.floating(self.backend, dtype)
        self.device = device
        self._random = random.Random(check.integer("seed", seed, 0))

    def glorot(self, rows: int, columns: int) -> Array:
        """Return (rows, columns), uniform within sqrt(6 / (rows + columns)) of 0 (Glorot and Bengio 2010, equation 16)."""
        import numpy  # only passes on the bytes; the backend does the arithmetic

        if rows < 1 or columns < 1:
            raise ValueError(f"a weight would have shape ({rows}, {columns}); expected sizes of at least 1")
        xp, count = self.backend.xp, rows * columns
        integers = numpy.frombuffer(bytearray(self._random.randbytes(4 * count)), dtype="<i4").reshape(rows, columns)
        wide = compute_dtype(xp, self.dtype)
        bound = math.sqrt(6 / (rows + columns)) / 2**31
        return xp.astype(xp.astype(self.backend.from_numpy(integers, self.device), wide) * bound, self.dtype, copy=False)

    def zeros(self, size: int) -> Array:
        return self.backend.xp.zeros((size,), dtype=self.dtype, device=self.device)

    def ones(self, size: int) -> Array:
        return self.backend.xp.ones((size,), dtype=self.dtype, device=self.device)


def heads_of(d_model: int, num_heads: int) -> int:
    """Return the size of a head. Raises ValueError if num_heads does not divide d_model, TypeError if one is not an int."""
    for name, value in (("d_model", d_model), ("num_heads", num_heads)):
        if isinstance(value, bool) or not isinstance(value, int):
            raise TypeError(f"{name} is {type(value).__name__}; expected an int")
    if d_model < 1 or num_heads < 1 or d_model % num_heads:
        raise ValueError(f"d_model is {d_model}; expected a multiple of num_heads = {num_heads}, both at least 1")
    return d_model // num_heads
