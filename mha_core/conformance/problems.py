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


_WRITTEN = 1000  # numbers of an array, at most: longer ones nobody reads


@dataclass(frozen=True)
class Limits:
    """What random problems are drawn from.

    times: stands before the scores. longest, widest: the greatest length and width. copies: the most batch elements, key
    heads, and query heads of a key head. masked, options: how often there is a mask, and each of the other options.
    depth: of an expression of masks. shapes: draw (batch, key heads, groups, queries, keys, width, width of the values)
    from these alone, for libraries that compile every operation anew for every shape.
    """

    times: float = 3.0
    longest: int = 8
    widest: int = 4
    copies: int = 2
    masked: float = 0.9
    options: float = 0.3
    depth: int = 3
    shapes: tuple[tuple[int, ...], ...] = ()

    def shape(self, rng: np.random.Generator) -> tuple[int, ...]:
        if self.shapes:
            return self.shapes[rng.integers(len(self.shapes))]
        copies = (int(n) for n in rng.integers(1, self.copies + 1, size=3))
        queries = int(rng.integers(0, self.longest + 1))
        keys = queries if rng.random() < 0.5 else int(rng.integers(0, self.longest + 1))
        return (*copies, queries, keys, int(rng.integers(0, self.widest + 1)), int(rng.integers(1, self.widest + 1)))


@dataclass(frozen=True)
class WrittenMask:
    """A mask that knows how one writes it."""

    make: MakeMask
    write: Callable[[], str]

    def __call__(self, make: Make) -> Any:
        return self.make(make)

    def __str__(self) -> str:
        return self.write()


@dataclass
class Problem:
    """NumPy arrays; ``options(make)`` gives the options of a call, ``oracle`` the same for the oracle."""

    query: np.ndarray
    key: np.ndarray
    value: np.ndarray
    mask: WrittenMask | None
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

    def __str__(self) -> str:
        """The shapes, and the options as one writes them."""
        shapes = (f"{name} {getattr(self, name).shape}" for name in ("query", "key", "value"))
        arrays = {name: _literal(x) for name in ("bias", "sink") if (x := getattr(self, name)) is not None}
        options = {"mask": None if self.mask is None else str(self.mask), **arrays, "softcap": self.softcap}
        options["query_offset"] = self.offset
        return f"{', '.join(shapes)}; {', '.join(f'{name}={x}' for name, x in options.items() if x is not None)}"

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


def random_problem(rng: np.random.Generator, limits: Limits = Limits(), *, dtype: Any = np.float64) -> Problem:
    """Grouped heads, broadcasting keys, another width of values, any expression of masks, and any options with it."""
    batch, key_heads, groups, queries, keys, width, value_width = limits.shape(rng)
    heads = key_heads * groups
    offset = int(rng.integers(-3, 4))
    mask, allowed = None, None
    if rng.random() < limits.masked:
        mask, allowed = random_mask(rng, queries, keys, offset, batch, heads, depth=limits.depth)
    return Problem(
        query=(rng.normal(size=(batch, heads, queries, width)) * limits.times).astype(dtype),
        key=rng.normal(size=(batch if rng.random() < 0.5 else 1, key_heads, keys, width)).astype(dtype),
        value=rng.normal(size=(batch, key_heads, keys, value_width)).astype(dtype),
        mask=mask,
        allowed=allowed,
        bias=rng.normal(size=(heads, queries, keys)).astype(dtype) if rng.random() < limits.options else None,
        sink=rng.normal(size=heads).astype(dtype) if rng.random() < limits.options else None,
        softcap=2.0 if rng.random() < limits.options else None,
        offset=offset,
    )


def leaf_masks(
    rng: np.random.Generator, queries: int, keys: int, offset: int, batch: int, heads: int
) -> list[tuple[WrittenMask, np.ndarray]]:
    """Every kind of mask: (make -> Mask, whole boolean array)."""
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
        (WrittenMask(lambda make: make(row), lambda: _literal(row)), row & everywhere),
    ]
    if queries == keys:
        lengths_packed = [2, 0, 1, queries - 3] if queries > 3 else [queries]
        ids = np.repeat(np.arange(len(lengths_packed)), lengths_packed)
        leaves.append((_written(mha.packed, lengths_packed), ids[:, None] == ids[None, :]))
    return leaves


def _written(mask: Callable[..., Any], *arguments: Any) -> WrittenMask:
    """``mask(*arguments)``, whose arrays are made in the library of a backend."""
    return WrittenMask(
        lambda make: mask(*(make(x) if isinstance(x, np.ndarray) else x for x in arguments)),
        lambda: f"mha.{mask.__name__}({', '.join(map(_literal, arguments))})",
    )


def _literal(x: Any) -> str:
    if not isinstance(x, np.ndarray):
        return repr(x)
    if x.size > _WRITTEN:
        return f"<{x.dtype} array of {x.shape}>"
    return f"xp.asarray({x.tolist()})" if x.size else f"xp.zeros({x.shape}, dtype=xp.{x.dtype})"


def random_mask(rng: np.random.Generator, *shape: Any, depth: int = 3) -> tuple[WrittenMask, np.ndarray]:
    """An expression of ``& | ~`` over every kind of mask."""
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
