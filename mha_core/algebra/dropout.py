"""Dropout whose choices follow from a seed and an element's place alone: the same on every backend, in any block.

Random numbers from counters are hashes of their index (Salmon et al. 2011). The hash is one of 32 bits that multiplies twice,
with constants below 2^31, so that a product also fits signed integers of 64 bits (C. Wellons and T. Ettinger, hash-prospector).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any
from zlib import crc32

from .arrays import AnyIndex, Array, Namespace, device_of, index_array, is_array, pick_pairs
from .grid import Grid, Term, check_broadcast
from .parts import Part

_FACTORS = 0x21F0AAAD, 0x735A2D97
_BITS = 24  # of a hash that are compared with the rate: such a number fits integers of every backend


@dataclass(frozen=True, eq=False)
class WeightDropout(Term):
    """Dropout of attention weights: a weight is 0, or divided by 1 - rate (Vaswani et al. 2017 use it, Srivastava et al. 2014).

    The weights are those after softmax, so lse, which normalises them, is that without dropout.
    """

    rate: float
    seed: int | None = None
    array: Array | None = None
    """Booleans that broadcast to ``(..., H, L, S)``, True to keep."""
    label = "weight_dropout"

    def kept(self, grid: Grid, rows_shape: tuple[int, ...]) -> Array:
        """Return which weights of a block are kept, broadcasting to (..., H, l, s); ``rows_shape`` is (..., H, L)."""
        xp = grid.xp
        if self.array is not None:
            return pick_pairs(xp, self.array, grid.rows, grid.cols)
        assert self.seed is not None
        heads = _words(xp, range(math.prod(rows_shape[:-1])), grid.device)
        heads = xp.reshape(mixed(xp, xp.bitwise_xor(heads, _mix(self.seed))), (*rows_shape[:-1], 1, 1))
        rows, cols = (_words(xp, index, grid.device) for index in (grid.rows, grid.cols))
        return _keeps(xp, xp.bitwise_xor(mixed(xp, xp.bitwise_xor(heads, rows[:, None])), mixed(xp, cols)[None, :]), self.rate)

    def part(self, xp: Namespace, part: Part) -> WeightDropout:
        """Return the dropout of a part of the problem, in the part's indices."""
        if self.array is not None:
            return WeightDropout(self.rate, None, part.pairs(xp, self.array))
        return _PartOfDropout(self.rate, self.seed, None, part)

    def check(self, xp: Namespace, shape: tuple[int, ...]) -> None:
        if self.array is not None:
            if self.array.dtype != xp.bool:
                raise TypeError(f"weight_dropout(keep) has dtype {self.array.dtype}; expected booleans, True to keep a weight")
            check_broadcast("weight_dropout(keep)", self.array.shape, shape, "(..., H, L, S)")


@dataclass(frozen=True, eq=False)
class _PartOfDropout(WeightDropout):
    place: Part | None = None

    def kept(self, grid: Grid, rows_shape: tuple[int, ...]) -> Any:
        place = self.place
        assert place is not None
        whole = rows_shape if place.heads is None else (*rows_shape[:-2], place.num_heads, rows_shape[-1])
        return place.over_heads(grid.xp, WeightDropout(self.rate, self.seed).kept(place.whole(grid), whole), -3)


def weight_dropout(rate: float, *, seed: int | None = None, keep: Array | None = None) -> WeightDropout:
    """Dropout of attention weights, with choices from a ``seed``, or from the caller's ``keep``.

    Parameters
    ----------
    rate : float in [0, 1)
        The share of weights that become 0; the others are divided by 1 - rate.
    seed : int >= 0
        The same seed drops the same weights on every backend. Take another one in every step and for every layer.
    keep : boolean array, broadcast to (..., H, L, S)
        True: the weight is kept.

    Raises
    ------
    TypeError
        If the rate is not a number, the seed not an int, or neither or both of ``seed`` and ``keep`` are given.
    ValueError
        For a rate outside [0, 1), or a negative seed.

    Examples
    --------
    >>> import numpy as np, mha_core as mha
    >>> x = np.zeros((4, 2))
    >>> mha.attention_weights(x, x, weight_dropout=mha.weight_dropout(0.5, seed=1))[0]
    array([0. , 0. , 0. , 0.5])
    """
    checked_rate(rate)
    if (seed is None) == (keep is None):
        raise TypeError(f"weight_dropout: {'neither' if seed is None else 'both'} of seed= and keep= given; expected one")
    if keep is not None:
        if not is_array(keep):
            raise TypeError(f"weight_dropout(keep) is {type(keep).__name__}; expected a boolean array")
        return WeightDropout(float(rate), None, keep)
    return WeightDropout(float(rate), checked_seed(seed), None)


def checked_rate(rate: Any) -> float:
    """Return a rate. Raises TypeError unless it is a number, ValueError unless it is in [0, 1)."""
    if isinstance(rate, bool) or not isinstance(rate, int | float):
        raise TypeError(f"rate is {type(rate).__name__}; expected a float")
    if not 0 <= rate < 1:
        raise ValueError(f"rate is {rate}; expected at least 0 and below 1")
    return float(rate)


def checked_seed(seed: Any) -> int:
    """Return a seed. Raises TypeError unless it is an int, ValueError if it is negative."""
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise TypeError(f"seed is {type(seed).__name__}; expected an int")
    if seed < 0:
        raise ValueError(f"seed is {seed}; expected an int of at least 0")
    return seed


def kept_elements(xp: Namespace, like: Array, rate: float, seed: int) -> Array:
    """Return which elements of an array are kept, in its shape."""
    count = like.shape[-1] if like.ndim else 1
    rows, cols = (_words(xp, range(n), device_of(like)) for n in (math.prod(like.shape[:-1]), count))
    cells = xp.bitwise_xor(mixed(xp, xp.bitwise_xor(rows, _mix(seed)))[:, None], mixed(xp, cols)[None, :])
    return xp.reshape(_keeps(xp, cells, rate), like.shape)


def named_seed(seed: int, name: str) -> int:
    """Return the seed of a part of a model, which differs from those of the others."""
    return _mix(_mix(seed) ^ crc32(name.encode()))


def mixed(xp: Namespace, x: Array) -> Array:
    """Return the hash of words, which are integers of 32 bits in a wider dtype, or in an unsigned one."""
    for factor, shift in zip(_FACTORS, (16, 15), strict=True):
        x = _low(xp, xp.bitwise_xor(x, xp.bitwise_right_shift(x, shift)) * factor)
    return xp.bitwise_xor(x, xp.bitwise_right_shift(x, 15))


def _mix(x: int) -> int:
    """Return the hash of an int of any size; at most 31 bits, so that it fits integers of every backend."""
    word = x
    while word > 0xFFFFFFFF:
        word = _mix(word & 0xFFFFFFFF) ^ word >> 32
    for factor, shift in zip(_FACTORS, (16, 15), strict=True):
        word = (word ^ word >> shift) * factor & 0xFFFFFFFF
    return (word ^ word >> 15) & 0x7FFFFFFF


def _words(xp: Namespace, index: AnyIndex, device: Any) -> Array:
    words = index_array(xp, index, device)
    return words if xp.iinfo(words.dtype).bits == 64 else xp.astype(words, xp.uint32)


def _low(xp: Namespace, x: Array) -> Array:
    """Return the low 32 bits, which are all of an unsigned integer of 32."""
    return xp.bitwise_and(x, 0xFFFFFFFF) if xp.iinfo(x.dtype).bits == 64 else x


def _keeps(xp: Namespace, cells: Array, rate: float) -> Array:
    return xp.bitwise_right_shift(mixed(xp, cells), 32 - _BITS) >= math.ceil(rate * 2**_BITS)
