"""Random attention problems, each with its mask and bias also as whole arrays for the oracle."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np

import mha_core as mha

Make: TypeAlias = Callable[[np.ndarray], Any]
"""A NumPy array in the library of a backend."""
MakeMask: TypeAlias = Callable[[Make], Any]


@dataclass
class Problem:
    """NumPy arrays; ``options(make)`` gives the options of a call, ``oracle`` the same for the oracle."""

    query: np.ndarray
    key: np.ndarray
    value: np.ndarray
    mask: MakeMask | None
    allowed: np.ndarray | None
    bias: np.ndarray | None
    sink: np.ndarray | None
    softcap: float | None
    offset: int

    def options(self, make: Make) -> dict[str, Any]:
        return {
            "mask": None if self.mask is None else self.mask(make),
            "bias": None if self.bias is None else make(self.bias),
            "sink": None if self.sink is None else make(self.sink),
            "softcap": self.softcap,
            "query_offset": self.offset,
        }

    @property
    def oracle(self) -> dict[str, Any]:
        return {"allowed": self.allowed, "bias": self.bias, "sink": self.sink, "softcap": self.softcap}

    def map(self, function: Callable[[np.ndarray], np.ndarray]) -> Problem:
        """The same problem with ``function`` applied to every floating array, such as rounding to another dtype."""
        names = ("query", "key", "value", "bias", "sink")
        changes: dict[str, Any] = {name: function(x) for name in names if (x := getattr(self, name)) is not None}
        return replace(self, **changes)

    def seen(self) -> tuple[np.ndarray, np.ndarray]:
        """Which keys and which values any query may see, in the shapes of key and value without their last axis."""
        *batch, heads, queries, keys = np.broadcast_shapes(
            (*self.query.shape[:-3], *self.query.shape[-3:-1], 1),
            (*self.value.shape[:-3], 1, 1, self.key.shape[-2]),
        )
        allowed = np.broadcast_to(True if self.allowed is None else self.allowed, (*batch, heads, queries, keys))
        groups = heads // self.key.shape[-3]
        seen: np.ndarray = np.any(allowed, axis=-2).reshape(*batch, self.key.shape[-3], groups, keys)
        seen = np.any(seen, axis=-2)
        key_seen: np.ndarray = np.any(seen, axis=0, keepdims=True) if self.key.shape[0] == 1 else seen
        return key_seen, seen

    def poisoned(self) -> tuple[np.ndarray, np.ndarray]:
        """Key and value with NaN and inf wherever nobody may look."""
        key, value = self.key.copy(), self.value.copy()
        key_seen, value_seen = self.seen()
        key[~key_seen] = np.nan
        value[~value_seen] = np.inf
        return key, value


def random_problem(
    rng: np.random.Generator, *, dtype: Any = np.float64, times: float = 3.0, longest: int = 8, widest: int = 4
) -> Problem:
    """Grouped heads, broadcasting keys, another width of values, any expression of masks, and any options with it.

    ``times`` stands before the scores; lengths go up to ``longest``, widths up to ``widest``.
    """
    batch, key_heads, groups = (int(n) for n in rng.integers(1, 3, size=3))
    heads = key_heads * groups
    queries = int(rng.integers(0, longest + 1))
    keys = queries if rng.random() < 0.5 else int(rng.integers(0, longest + 1))
    width, value_width = int(rng.integers(0, widest + 1)), int(rng.integers(1, widest + 1))
    offset = int(rng.integers(-3, 4))
    mask, allowed = random_mask(rng, queries, keys, offset, batch, heads) if rng.random() < 0.9 else (None, None)
    return Problem(
        query=(rng.normal(size=(batch, heads, queries, width)) * times).astype(dtype),
        key=rng.normal(size=(batch if rng.random() < 0.5 else 1, key_heads, keys, width)).astype(dtype),
        value=rng.normal(size=(batch, key_heads, keys, value_width)).astype(dtype),
        mask=mask,
        allowed=allowed,
        bias=rng.normal(size=(heads, queries, keys)).astype(dtype) if rng.random() < 0.3 else None,
        sink=rng.normal(size=heads).astype(dtype) if rng.random() < 0.3 else None,
        softcap=2.0 if rng.random() < 0.3 else None,
        offset=offset,
    )


def leaf_masks(
    rng: np.random.Generator, queries: int, keys: int, offset: int, batch: int, heads: int
) -> list[tuple[MakeMask, np.ndarray]]:
    """Every kind of mask: (make -> Mask, whole boolean array)."""
    q, k = np.arange(queries)[:, None] + offset, np.arange(keys)[None, :]
    everywhere = np.ones((queries, keys), dtype=bool)
    lengths = rng.integers(0, keys + 1, size=batch)
    array, row = rng.random((batch, heads, queries, keys)) < 0.6, rng.random((1, keys)) < 0.6
    query_ids, key_ids = rng.integers(0, 3, size=(batch, queries)), rng.integers(0, 3, size=(batch, keys))
    leaves: list[tuple[MakeMask, np.ndarray]] = [
        (lambda make: mha.causal(), k <= q),
        (lambda make: mha.window(2, 1), (k >= q - 2) & (k <= q + 1)),
        (lambda make: mha.window(None, 2), k <= q + 2),
        (lambda make: mha.window(0, None), k >= q),
        (lambda make: mha.prefix(3), (k < 3) & everywhere),
        (lambda make: mha.key_lengths(2), (k < 2) & everywhere),
        (lambda make: mha.chunks(3), q // 3 == k // 3),
        (lambda make: mha.key_lengths(make(lengths)), k < lengths[:, None, None, None]),
        (lambda make: mha.segments(make(query_ids), make(key_ids)), query_ids[:, None, :, None] == key_ids[:, None, None, :]),
        (lambda make: mha.array_mask(make(array)), array),
        (lambda make: make(row), row & everywhere),
    ]
    if queries == keys:
        lengths_packed = [2, 0, 1, queries - 3] if queries > 3 else [queries]
        ids = np.repeat(np.arange(len(lengths_packed)), lengths_packed)
        leaves.append((lambda make: mha.packed(lengths_packed), ids[:, None] == ids[None, :]))
    return leaves


def random_mask(rng: np.random.Generator, *shape: Any, depth: int = 3) -> tuple[MakeMask, np.ndarray]:
    """An expression of ``& | ~`` over every kind of mask."""
    if depth == 0 or rng.random() < 0.3:
        leaves = leaf_masks(rng, *shape)
        make_leaf, allowed = leaves[rng.integers(len(leaves))]
        return lambda make: _as_mask(make_leaf(make)), allowed
    (left, a), (right, b) = random_mask(rng, *shape, depth=depth - 1), random_mask(rng, *shape, depth=depth - 1)
    choice = rng.random()
    if choice < 0.5:
        return lambda make: left(make) & right(make), a & b
    if choice < 0.8:
        return lambda make: left(make) | right(make), a | b
    return lambda make: ~left(make), ~a


def _as_mask(mask: Any) -> Any:
    return mask if hasattr(mask, "relation") else mha.array_mask(mask)
