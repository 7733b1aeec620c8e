"""Masks of every kind, each as mha_core's mask and as a boolean array for the oracle; random expressions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

import mha_core as mha

Make = Callable[[np.ndarray], Any]
"""Turns a NumPy array into an array of the backend."""


@dataclass(frozen=True)
class AnyMask:
    """A mask for any backend, and as an array."""

    make: Callable[[Make], Any]
    allowed: np.ndarray
    """Which pairs attend: an array that broadcasts to (..., H, L, S)."""

    def __call__(self, make: Make) -> Any:
        return self.make(make)

    def __and__(self, other: AnyMask) -> AnyMask:
        return AnyMask(lambda make: self(make) & other(make), self.allowed & other.allowed)

    def __or__(self, other: AnyMask) -> AnyMask:
        return AnyMask(lambda make: self(make) | other(make), self.allowed | other.allowed)

    def __invert__(self) -> AnyMask:
        return AnyMask(lambda make: ~self(make), ~self.allowed)

    def by_name(self, prefix: str) -> tuple[dict[str, np.ndarray], Callable[[Mapping[str, Any]], Any]]:
        """Return the arrays of the mask by name, and a function that makes the mask from arrays of these names."""
        arrays: list[np.ndarray] = []

        def collect(x: np.ndarray) -> np.ndarray:
            arrays.append(x)
            return x

        self.make(collect)
        names = {id(x): f"{prefix} {at}" for at, x in enumerate(arrays)}
        return {names[id(x)]: x for x in arrays}, lambda made: self.make(lambda x: made[names[id(x)]])


def _written(allowed: np.ndarray, mask: Callable[..., Any], *arguments: Any) -> AnyMask:
    """Return ``mask(*arguments)`` with its arrays made in the backend's library."""
    return AnyMask(lambda make: mask(*(make(x) if isinstance(x, np.ndarray) else x for x in arguments)), allowed)


# every kind, from the positions q of the queries, (..., L, 1), and k of the keys


def band(q: np.ndarray, k: np.ndarray, low: int | None, high: int | None) -> AnyMask:
    """Return a causal mask or a window: limits of k - q."""
    inside = (k - q >= (-np.inf if low is None else low)) & (k - q <= (np.inf if high is None else high))
    causal = (low, high) == (None, 0)
    return _written(inside, mha.causal) if causal else _written(inside, mha.window, None if low is None else -low, high)


def prefix(k: np.ndarray, n: int) -> AnyMask:
    return _written(k < n, mha.prefix, n)


def key_lengths(k: np.ndarray, n: int | np.ndarray) -> AnyMask:
    return _written(k < (n[..., None, None, None] if isinstance(n, np.ndarray) else n), mha.key_lengths, n)


def chunks(q: np.ndarray, k: np.ndarray, size: int) -> AnyMask:
    return _written(q // size == k // size, mha.chunks, size)


def segments(of_query: np.ndarray, of_key: np.ndarray) -> AnyMask:
    return _written(of_query[..., None, :, None] == of_key[..., None, None, :], mha.segments, of_query, of_key)


def packed(lengths: list[int]) -> AnyMask:
    ids = np.repeat(np.arange(len(lengths)), lengths)
    return _written(ids[:, None] == ids[None, :], mha.packed, lengths)


def array(allowed: np.ndarray) -> AnyMask:
    return _written(allowed, mha.array_mask, allowed)


def leaf_masks(rng: np.random.Generator, q: np.ndarray, k: np.ndarray, batch: tuple[int, ...], heads: int) -> list[AnyMask]:
    """Return every kind of mask, from the positions q of the queries, (..., L, 1), and k of the keys."""
    queries, keys = q.shape[-2], len(k)
    row = rng.random((1, keys)) < 0.6
    leaves = [
        *(band(q, k, *limits) for limits in ((None, 0), (-2, 1), (None, 2), (0, None))),
        prefix(k, 3),
        key_lengths(k, 2),
        key_lengths(k, rng.integers(0, keys + 1, size=batch) if batch else keys // 2),
        chunks(q, k, 3),
        segments(*(rng.integers(0, 3, size=(*batch, length)) for length in (queries, keys))),
        array(rng.random((*batch, heads, queries, keys)) < 0.6),
        AnyMask(lambda make: make(row), row),
    ]
    if queries == keys:
        leaves.append(packed([2, 0, 1, queries - 3] if queries > 3 else [queries]))
    return leaves


def random_mask(
    structure: np.random.Generator,
    rng: np.random.Generator,
    q: np.ndarray,
    k: np.ndarray,
    batch: tuple[int, ...],
    heads: int,
    *,
    depth: int = 3,
) -> AnyMask:
    """Draw an expression of ``&``, ``|`` and ``~`` over every kind of mask; ``rng`` draws the arrays in it."""
    if depth == 0 or structure.random() < 0.3:
        leaves = leaf_masks(rng, q, k, batch, heads)
        leaf = leaves[structure.integers(len(leaves))]
        return AnyMask(lambda make: _as_mask(leaf(make)), leaf.allowed)
    left, right = (random_mask(structure, rng, q, k, batch, heads, depth=depth - 1) for _ in range(2))
    choice = structure.random()
    return left & right if choice < 0.5 else left | right if choice < 0.8 else ~left


def _as_mask(mask: Any) -> Any:
    return mask if hasattr(mask, "relation") else mha.array_mask(mask)
