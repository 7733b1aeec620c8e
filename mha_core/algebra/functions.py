"""Masks and scores as functions of the indices of a pair, which are evaluated block by block like any mask or bias."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

from .arrays import Array, Namespace, is_array
from .expressions import Mask
from .grid import Grid, Relation, check_broadcast
from .parts import known_relation

Bounds: TypeAlias = tuple[int, int]
"""The first and the last position of some queries or keys."""

BLOCK = 64
"""The number of queries, and of keys, of a tile of a block map."""


@dataclass(frozen=True, eq=False)
class FunctionMask(Mask):
    """``function(batch, head, query, key, *inputs)`` is True for the pairs that attend."""

    function: Callable[..., Any]
    inputs: tuple[Array, ...]
    bounds: Callable[[Bounds, Bounds], bool | None] | None = None
    label = "mask_function"
    reads_query_position = True
    reads_heads = True

    def block(self, grid: Grid) -> Array:
        return called(self, self.function, grid, self.inputs)

    def relation(self, grid: Grid) -> Relation:
        if self.bounds is None or grid.query_bounds is None:
            return Relation.SOME
        match self.bounds(grid.query_bounds, grid.key_bounds):
            case True:
                return Relation.ALL
            case False:
                return Relation.NONE
            case None:
                return Relation.SOME
            case other:
                name = f"mask_function({name_of(self.function)}, relation=...)"
                raise TypeError(f"the relation of {name} is {other!r}; expected True, False or None")


def called(term: Any, function: Callable[..., Any], grid: Grid, inputs: Sequence[Any], *scores: Any) -> Any:
    """Return ``function(*scores, batch, head, query, key, *inputs)``: numbers if there are scores, otherwise booleans.

    Raises TypeError for a result of another kind, ValueError for one whose shape does not fit.
    """
    x = function(*scores, grid.batch_index, grid.head_index, grid.query_position, grid.key_index, *inputs)
    name = f"{term.label}({name_of(function)})"
    expected = "floating numbers" if scores else "booleans"
    if not is_array(x):
        raise TypeError(f"{name} returned {type(x).__name__}; expected an array of {expected}, made of what it received")
    if not (is_floating(grid.xp, x) if scores else x.dtype == grid.xp.bool):
        raise TypeError(f"{name} returned an array of dtype {x.dtype}; expected {expected}")
    check_broadcast(f"the result of {name}", x.shape, grid.shape, "the pairs, (..., H, queries, keys)")
    return x


def is_floating(xp: Namespace, x: Any) -> bool:
    """Return whether an array is of floating numbers, such as bfloat16, which some namespaces do not know."""
    try:
        return not xp.isdtype(x.dtype, ("bool", "integral", "complex floating"))
    except TypeError:  # NumPy's isdtype raises it for dtypes of other packages
        return True


def name_of(function: Any) -> str:
    """Return how messages name a function; of a ``functools.partial``, the function inside."""
    while not hasattr(function, "__name__") and hasattr(function, "func"):
        function = function.func
    return str(getattr(function, "__name__", type(function).__name__))


@dataclass(frozen=True, eq=False)
class MappedMask(Mask):
    """A mask with a map of its tiles of ``BLOCK`` queries and keys: whether none, some or all of their pairs attend."""

    inner: Mask
    codes: tuple[bytes, ...]
    """For each tile of queries, the ``Relation`` of each tile of keys, over all batch elements and heads."""
    num_queries: int
    num_keys: int
    offset: int
    batch: tuple[int, ...] | None = None
    """The batch axes and the number of heads that it was made for; None if it does not depend on them."""
    num_heads: int | None = None
    sees_every_key: bool = False
    """True if in each batch element and head some query sees each key."""
    label = "block_mask"

    @property
    def counts(self) -> dict[str, int]:
        """The number of tiles of which none, some and all pairs attend."""
        whole = b"".join(self.codes)
        return {relation.name.lower(): whole.count(relation) for relation in Relation}

    @cached_property
    def memo(self) -> dict[str, Any]:  # type: ignore[override]
        return {}

    def codes_at(self, offset: int | Array) -> tuple[bytes, ...] | None:
        """Return the map for calls with this ``query_offset``; None if it was made for another."""
        return self.codes if isinstance(offset, int) and offset == self.offset else None

    def __repr__(self) -> str:
        return f"block_mask({self.num_queries} queries, {self.num_keys} keys: {self.counts})"

    def block(self, grid: Grid) -> Array:
        return self.inner.block(grid)

    def relation(self, grid: Grid) -> Relation:
        if not isinstance(grid.rows, range) or not isinstance(grid.cols, range) or self.codes_at(grid.offset) is None:
            return known_relation(self.inner, grid)
        rows, cols = (slice(min(i[0], i[-1]) // BLOCK, max(i[0], i[-1]) // BLOCK + 1) for i in (grid.rows, grid.cols))
        kinds = set().union(*(codes[cols] for codes in self.codes[rows]))
        return Relation(kinds.pop()) if len(kinds) == 1 else Relation.SOME

    def check(self, xp: Namespace, shape: tuple[int, ...]) -> None:
        *batch, heads, queries, keys = shape
        if (queries, keys) != (self.num_queries, self.num_keys):
            raise ValueError(
                f"block_mask was made for {self.num_queries} queries and {self.num_keys} keys; there are {queries} and {keys}"
            )
        if self.num_heads not in (None, heads):
            raise ValueError(f"block_mask was made for {self.num_heads} heads; the query has {heads}")
        if self.batch is not None and self.batch != tuple(batch):
            raise ValueError(f"block_mask was made for the batch shape {self.batch}; that of the call is {tuple(batch)}")


def codes_of(xp: Namespace, block: Array, num_rows: int, num_cols: int) -> Array:
    """Return the ``Relation`` of each tile, (tiles of queries, tiles of keys); ``block`` broadcasts to (..., rows, cols)."""
    return reduced(xp, block, num_rows, num_cols)[0]


def reduced(xp: Namespace, block: Array, num_rows: int, num_cols: int) -> tuple[Array, Array]:
    """Return ``codes_of``, and which keys some query sees, (..., cols)."""
    anywhere, everywhere = (_tiled(xp, block, -2, num_rows, reduce) for reduce in (xp.any, xp.all))
    seen, leading = xp.any(anywhere, axis=-2), tuple(range(block.ndim - 2))
    anywhere, everywhere = xp.any(anywhere, axis=leading), xp.all(everywhere, axis=leading)
    anywhere, everywhere = (_tiled(xp, x, -1, num_cols, reduce) for x, reduce in ((anywhere, xp.any), (everywhere, xp.all)))
    return xp.astype(anywhere, xp.uint8) + xp.astype(everywhere, xp.uint8), seen


def _tiled(xp: Namespace, x: Array, axis: int, size: int, reduce: Callable[..., Any]) -> Array:
    """Return x (..., rows, cols) with an axis, of ``size`` members or 1, reduced over each ``BLOCK`` members."""
    axis, count = axis + x.ndim, -(-size // BLOCK)
    if x.shape[axis] == 1:
        return xp.broadcast_to(x, (*x.shape[:axis], count, *x.shape[axis + 1 :]))
    whole = size // BLOCK * BLOCK
    before, after = x.shape[:axis], x.shape[axis + 1 :]
    parts = []
    if whole:
        inside = x[(slice(None),) * axis + (slice(0, whole), ...)]
        parts.append(reduce(xp.reshape(inside, (*before, whole // BLOCK, BLOCK, *after)), axis=axis + 1))
    if whole < size:
        parts.append(reduce(x[(slice(None),) * axis + (slice(whole, size), ...)], axis=axis, keepdims=True))
    return xp.concat(parts, axis=axis)
