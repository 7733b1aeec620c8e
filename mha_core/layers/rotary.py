"""The rotary embedding of attention layers: tables, and their rows for each position."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from numbers import Integral
from typing import Any, Self

from ..algebra.arrays import Array, device_of, is_array
from ..dispatch.selection import backend_of
from ..ops.functional import embedding
from ..ops.positions import rotary, rotary_tables
from .base import Layer


@dataclass(frozen=True, eq=False)
class Rotary(Layer):
    """The tables of ``rotary`` for positions 0 to max_length - 1.

    Source: Su et al. 2021, section 3.2.2.

    >>> import mha_core as mha
    >>> mha.Rotary.init(max_length=16, dim=8, interleaved=False).cos.shape
    (16, 4)
    """

    cos: Array
    """(max_length, r / 2), or (..., 1, L, r / 2) for a batch of positions; see ``at``."""
    sin: Array
    """As ``cos``."""
    interleaved: bool
    """The pairing of features; see ``rotary``."""

    fixed = ("cos", "sin")

    @classmethod
    def init(
        cls,
        *,
        max_length: int,
        dim: int,
        interleaved: bool,
        base: float = 10000.0,
        backend: str | None = None,
        dtype: Any = None,
        device: Any = None,
    ) -> Self:
        """``dim`` is r, the number of features of a head that are rotated; the others pass through."""
        cos, sin = rotary_tables(max_length, dim, base=base, backend=backend, dtype=dtype, device=device)
        return cls(cos, sin, interleaved)

    def at(self, positions: Array) -> Self:
        """Return the rows of positions, integers (..., L): the tables of tokens that are not at 0, 1, 2 and so on.

        Positions outside the tables are as indices outside an array: the library decides.
        """
        cos, sin = (embedding(positions, table) for table in (self.cos, self.sin))
        if positions.ndim > 1:  # between the batch and the positions are the heads
            cos, sin = cos[..., None, :, :], sin[..., None, :, :]
        return replace(self, cos=cos, sin=sin)

    def __call__(self, x: Array, offset: int | Array = 0) -> Array:
        """Rotate x (..., heads, L, head_dim), at positions offset to offset + L - 1.

        ``offset`` is an int, or integers of the batch shape. Positions outside the tables raise ValueError if it is an int,
        and give NaN if it is an array.
        """
        length = x.shape[-2]
        if length is None:
            raise ValueError(
                f"rotary needs the number of positions, and None stands for a number not known: x {tuple(x.shape)}"
            )
        if isinstance(offset, Integral):
            offset = int(offset)
            if offset < 0 or offset + length > self.cos.shape[-2]:
                asked, known = f"{offset} to {offset + length - 1}", f"0 to {self.cos.shape[-2] - 1}"
                raise ValueError(f"positions {asked} are outside the rotary tables, which hold {known}")
            cos, sin = (table[..., offset : offset + length, :] for table in (self.cos, self.sin))
        else:
            assert is_array(offset)
            xp = backend_of({"query_offset": offset}).xp
            ids = offset[..., None] + xp.arange(length, dtype=offset.dtype, device=device_of(offset))
            # the values of offset are not read, so positions outside the tables cannot raise: they give NaN
            known = ((ids >= 0) & (ids < self.cos.shape[0]))[..., None]
            ids = xp.where(known[..., 0], ids, 0)
            cos, sin = (xp.where(known, embedding(ids, table), math.nan)[..., None, :, :] for table in (self.cos, self.sin))
        return rotary(x, cos, sin, interleaved=self.interleaved)
