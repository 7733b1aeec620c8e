"""Random mask expressions, as mha_core's masks, as full boolean arrays for the oracle, and as source code."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

import mha_core as mha

from .attention_problem import Make

_LONGEST = 1000
"""Arrays with more elements than this are not written out."""


@dataclass(frozen=True)
class WrittenMask:
    """A mask for any backend, and its source code."""

    make: Callable[[Make], Any]
    write: Callable[[], str]

    def __call__(self, make: Make) -> Any:
        return self.make(make)

    def by_name(self) -> tuple[dict[str, np.ndarray], Callable[[Mapping[str, Any]], Any]]:
        """Return the arrays of the mask by name, and a function that makes the mask from arrays of these names."""
        arrays: list[np.ndarray] = []

        def collect(x: np.ndarray) -> np.ndarray:
            arrays.append(x)
            return x

        self.make(collect)
        names = {id(x): f"array {at} of the mask" for at, x in enumerate(arrays)}
        return {names[id(x)]: x for x in arrays}, lambda made: self.make(lambda x: made[names[id(x)]])

    def __str__(self) -> str:
        return self.write()


def leaf_masks(
    rng: np.random.Generator, queries: int, keys: int, offset: int, batch: int, heads: int
) -> list[tuple[WrittenMask, np.ndarray]]:
    """Return every kind of mask, each with its full boolean array."""
    q, k = np.arange(queries)[:, None] + offset, np.arange(keys)[None, :]
    everywhere = np.ones((queries, keys), dtype=bool)
    lengths = rng.integers(0, keys + 1, size=batch)
    array, row = rng.random((batch, heads, queries, keys)) < 0.6, rng.random((1, keys)) < 0.6
    query_ids, key_ids = rng.integers(0, 3, size=(batch, queries)), rng.integers(0, 3, size=(batch, keys))
    leaves: list[tuple[WrittenMask, np.ndarray]] = [
        (_written(mha.causal), k <= q),
        (_written(mha.window, 2, 1), (k >= q - 2) & (k <= q + 1)),
        (_written(mha.window, None, 2), k <= q + 2),
        (_written(mha.window, 0, None), k >= q),
        (_written(mha.prefix, 3), (k < 3) & everywhere),
        (_written(mha.key_lengths, 2), (k < 2) & everywhere),
        (_written(mha.chunks, 3), q // 3 == k // 3),
        (_written(mha.key_lengths, lengths), k < lengths[:, None, None, None]),
        (_written(mha.segments, query_ids, key_ids), query_ids[:, None, :, None] == key_ids[:, None, None, :]),
        (_written(mha.array_mask, array), array),
        (WrittenMask(lambda make: make(row), lambda: literal(row)), row & everywhere),
    ]
    if queries == keys:
        lengths_packed = [2, 0, 1, queries - 3] if queries > 3 else [queries]
        ids = np.repeat(np.arange(len(lengths_packed)), lengths_packed)
        leaves.append((_written(mha.packed, lengths_packed), ids[:, None] == ids[None, :]))
    return leaves


def _written(mask: Callable[..., Any], *arguments: Any) -> WrittenMask:
    """Return ``mask(*arguments)`` with its arrays made in the backend's library."""
    return WrittenMask(
        lambda make: mask(*(make(x) if isinstance(x, np.ndarray) else x for x in arguments)),
        lambda: f"mha.{mask.__name__}({', '.join(map(literal, arguments))})",
    )


def literal(x: Any) -> str:
    """Return an array or a number as source code; a long array only as its dtype and shape."""
    if not isinstance(x, np.ndarray):
        return repr(x)
    if x.size > _LONGEST:
        return f"<{x.dtype} array of {x.shape}>"
    return f"xp.asarray({x.tolist()})" if x.size else f"xp.zeros({x.shape}, dtype=xp.{x.dtype})"


def random_mask(rng: np.random.Generator, *shape: Any, depth: int = 3) -> tuple[WrittenMask, np.ndarray]:
    """Draw an expression of ``&``, ``|`` and ``~`` over every kind of mask, with its full boolean array."""
    if depth == 0 or rng.random() < 0.3:
        leaves = leaf_masks(rng, *shape)
        leaf, allowed = leaves[rng.integers(len(leaves))]
        return WrittenMask(lambda make: _as_mask(leaf(make)), leaf.write), allowed
    (left, a), (right, b) = random_mask(rng, *shape, depth=depth - 1), random_mask(rng, *shape, depth=depth - 1)
    choice = rng.random()
    if choice < 0.5:
        return WrittenMask(lambda make: left(make) & right(make), lambda: f"({left} & {right})"), a & b
    if choice < 0.8:
        return WrittenMask(lambda make: left(make) | right(make), lambda: f"({left} | {right})"), a | b
    return WrittenMask(lambda make: ~left(make), lambda: f"~{left}"), ~a


def _as_mask(mask: Any) -> Any:
    return mask if hasattr(mask, "relation") else mha.array_mask(mask)
