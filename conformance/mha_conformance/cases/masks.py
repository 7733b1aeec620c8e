"""Masks of every kind, each as mha_core's mask, as a boolean array for the oracle, and as source code; random expressions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

import mha_core as mha

Make = Callable[[np.ndarray], Any]
"""Turns a NumPy array into an array of the backend."""
_LONGEST = 1000
"""Arrays with more elements than this are not written out."""


@dataclass(frozen=True)
class WrittenMask:
    """A mask for any backend, as an array, and its source code."""

    make: Callable[[Make], Any]
    write: Callable[[], str]
    allowed: np.ndarray
    """Which pairs attend: an array that broadcasts to (..., H, L, S)."""

    def __call__(self, make: Make) -> Any:
        return self.make(make)

    def __str__(self) -> str:
        return self.write()

    def __and__(self, other: WrittenMask) -> WrittenMask:
        return WrittenMask(lambda make: self(make) & other(make), lambda: f"({self} & {other})", self.allowed & other.allowed)

    def __or__(self, other: WrittenMask) -> WrittenMask:
        return WrittenMask(lambda make: self(make) | other(make), lambda: f"({self} | {other})", self.allowed | other.allowed)

    def __invert__(self) -> WrittenMask:
        return WrittenMask(lambda make: ~self(make), lambda: f"~{self}", ~self.allowed)

    def by_name(self, prefix: str) -> tuple[dict[str, np.ndarray], Callable[[Mapping[str, Any]], Any]]:
        """Return the arrays of the mask by name, and a function that makes the mask from arrays of these names."""
        arrays: list[np.ndarray] = []

        def collect(x: np.ndarray) -> np.ndarray:
            arrays.append(x)
            return x

        self.make(collect)
        names = {id(x): f"{prefix} {at}" for at, x in enumerate(arrays)}
        return {names[id(x)]: x for x in arrays}, lambda made: self.make(lambda x: made[names[id(x)]])


def _written(allowed: np.ndarray, mask: Callable[..., Any], *arguments: Any) -> WrittenMask:
    """Return ``mask(*arguments)`` with its arrays made in the backend's library."""
    return WrittenMask(
        lambda make: mask(*(make(x) if isinstance(x, np.ndarray) else x for x in arguments)),
        lambda: f"mha.{mask.__name__}({', '.join(map(literal, arguments))})",
        allowed,
    )


def literal(x: Any) -> str:
    """Return an array or a number as source code; a long array only as its dtype and shape."""
    if not isinstance(x, np.ndarray):
        return repr(x)
    if x.size > _LONGEST:
        return f"<{x.dtype} array of {x.shape}>"
    return f"xp.asarray({x.tolist()})" if x.size else f"xp.zeros({x.shape}, dtype=xp.{x.dtype})"


# every kind, from the positions q of the queries, (..., L, 1), and k of the keys


def band(q: np.ndarray, k: np.ndarray, low: int | None, high: int | None) -> WrittenMask:
    """Return a causal mask or a window: limits of k - q."""
    inside = (k - q >= (-np.inf if low is None else low)) & (k - q <= (np.inf if high is None else high))
    causal = (low, high) == (None, 0)
    return _written(inside, mha.causal) if causal else _written(inside, mha.window, None if low is None else -low, high)


def prefix(k: np.ndarray, n: int) -> WrittenMask:
    return _written(k < n, mha.prefix, n)


def key_lengths(k: np.ndarray, n: int | np.ndarray) -> WrittenMask:
    return _written(k < (n[..., None, None, None] if isinstance(n, np.ndarray) else n), mha.key_lengths, n)


def chunks(q: np.ndarray, k: np.ndarray, size: int) -> WrittenMask:
    return _written(q // size == k // size, mha.chunks, size)


def segments(of_query: np.ndarray, of_key: np.ndarray) -> WrittenMask:
    return _written(of_query[..., None, :, None] == of_key[..., None, None, :], mha.segments, of_query, of_key)


def packed(lengths: list[int]) -> WrittenMask:
    ids = np.repeat(np.arange(len(lengths)), lengths)
    return _written(ids[:, None] == ids[None, :], mha.packed, lengths)


def array(allowed: np.ndarray) -> WrittenMask:
    return _written(allowed, mha.array_mask, allowed)


def leaf_masks(
    rng: np.random.Generator, queries: int, keys: int, offset: int, batch: int, heads: int
) -> list[tuple[WrittenMask, np.ndarray]]:
    """Return every kind of mask, each with its full boolean array."""
    q, k = np.arange(queries)[:, None] + offset, np.arange(keys)[None, :]
    row = rng.random((1, keys)) < 0.6
    leaves = [
        *(band(q, k, *limits) for limits in ((None, 0), (-2, 1), (None, 2), (0, None))),
        prefix(k, 3),
        *(key_lengths(k, n) for n in (2, rng.integers(0, keys + 1, size=batch))),
        chunks(q, k, 3),
        segments(rng.integers(0, 3, size=(batch, queries)), rng.integers(0, 3, size=(batch, keys))),
        array(rng.random((batch, heads, queries, keys)) < 0.6),
        WrittenMask(lambda make: make(row), lambda: literal(row), row),
    ]
    if queries == keys:
        leaves.append(packed([2, 0, 1, queries - 3] if queries > 3 else [queries]))
    everywhere = np.ones((queries, keys), dtype=bool)
    return [(leaf, leaf.allowed & everywhere) for leaf in leaves]


def random_mask(rng: np.random.Generator, *shape: Any, depth: int = 3) -> tuple[WrittenMask, np.ndarray]:
    """Draw an expression of ``&``, ``|`` and ``~`` over every kind of mask, with its full boolean array."""
    if depth == 0 or rng.random() < 0.3:
        leaves = leaf_masks(rng, *shape)
        leaf, allowed = leaves[rng.integers(len(leaves))]
        return WrittenMask(lambda make: _as_mask(leaf(make)), leaf.write, allowed), allowed
    (left, _), (right, _) = random_mask(rng, *shape, depth=depth - 1), random_mask(rng, *shape, depth=depth - 1)
    choice = rng.random()
    mask = left & right if choice < 0.5 else left | right if choice < 0.8 else ~left
    return mask, mask.allowed


def _as_mask(mask: Any) -> Any:
    return mask if hasattr(mask, "relation") else mha.array_mask(mask)
