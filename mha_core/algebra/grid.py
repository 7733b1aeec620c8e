"""A block of queries and keys with their positions, and the base class of masks and biases, which are functions of a block."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass
from enum import IntEnum
from functools import cached_property
from inspect import Parameter, signature
from types import FunctionType
from typing import Any

from .arrays import AnyIndex, Array, Namespace, as_integers, bounds, index_array, is_array

FARTHEST = 2**62
"""The greatest position, and the greatest size of a mask: a sum of two still fits 64 bits."""


@dataclass(frozen=True)
class Grid:
    """Query indices ``rows`` against key indices ``cols``.

    A key's position is its index. A query's position is its index plus ``offset``, an int or integers of the
    batch shape. The arrays below broadcast to ``(..., H, len(rows), len(cols))``.
    """

    xp: Namespace
    device: Any
    rows: AnyIndex
    cols: AnyIndex
    offset: int | Array = 0
    dtype: Any = None
    """The dtype of scores, and so of biases."""
    leading: tuple[int, ...] = (1,)
    """The batch axes and the number of heads, ``(..., H)``, of the whole problem."""

    @cached_property
    def batch_index(self) -> Array:
        """The number of each batch element, ``(..., 1, 1, 1)``, in the order of memory; 0 without batch axes."""
        *batch, _ = self.leading
        number = index_array(self.xp, range(math.prod(batch)), self.device)
        return self.xp.reshape(number, (*batch, 1, 1, 1))

    @cached_property
    def head_index(self) -> Array:
        return index_array(self.xp, range(self.leading[-1]), self.device)[:, None, None]

    @property
    def shape(self) -> tuple[int, ...]:
        """(..., H, len(rows), len(cols))."""
        return (*self.leading, len(self.rows), len(self.cols))

    @cached_property
    def query_index(self) -> Array:
        return index_array(self.xp, self.rows, self.device)[:, None]

    @cached_property
    def key_index(self) -> Array:
        return index_array(self.xp, self.cols, self.device)[None, :]

    @cached_property
    def query_position(self) -> Array:
        if isinstance(self.offset, int):
            return self.query_index + self.offset
        return over_heads(as_integers(self.xp, self.offset)) + self.query_index

    @property
    def query_bounds(self) -> tuple[int, int] | None:
        """Smallest and largest query position; None if the offset is an array, whose values are not read."""
        if not isinstance(self.offset, int):
            return None
        low, high = bounds(self.rows)
        return low + self.offset, high + self.offset

    @property
    def key_bounds(self) -> tuple[int, int]:
        return bounds(self.cols)


class Relation(IntEnum):
    """The share of the pairs of a block that attend."""

    NONE = 0
    SOME = 1
    ALL = 2


def over_heads(per_batch: Array) -> Array:
    """``(...)`` -> ``(..., 1, 1, 1)``: a number for each batch element, to broadcast over heads, queries and keys."""
    return per_batch[(..., None, None, None)]


class Term:
    """A function of (query, key) pairs that is evaluated block by block: a mask or a bias."""

    reads_query_position = False
    reads_heads = False
    """True if it reads the numbers of batch elements and heads."""
    label = ""
    """The name in error messages."""
    memo: dict[str, Any] | None = None
    """What kernels and operations keep beside the term, by their names, if its values never change. It ends with the term."""

    def block(self, grid: Grid) -> Array:
        """Return values that broadcast to ``(..., H, len(grid.rows), len(grid.cols))``."""
        raise NotImplementedError

    def check(self, xp: Namespace, shape: tuple[int, ...]) -> None:
        """Raise TypeError or ValueError unless this term, not those inside it, fits scores of ``shape`` (..., H, L, S)."""

    @cached_property
    def key(self) -> Hashable:
        """A key that equal terms share, computed once; None if it contains arrays, or attributes that are not fields."""
        if "__dataclass_fields__" not in vars(type(self)):
            return None
        values = [value.key if isinstance(value, Term) else _key(value) for _, value in self._fields()]
        return None if any(value is None for value in values) else (type(self), *values)

    def walk(self) -> Iterator[Term]:
        """Yield this term and every term inside it."""
        yield self
        for _, value in self._fields():
            if isinstance(value, Term):
                yield from value.walk()

    def arrays(self) -> Iterator[tuple[str, Array]]:
        """Yield every array in the term, with its name in error messages."""
        if self.key is not None:
            return
        for term in self.walk():
            for name, value in term._fields():
                if is_array(value):
                    yield term.label if name == "array" else f"{term.label}({name})", value
                elif type(value) is tuple:
                    yield from ((f"{term.label}({name}[{at}])", x) for at, x in enumerate(value) if is_array(x))

    @property
    def may_differ_in_batch(self) -> bool:
        """True if values may differ between elements of the batch, as those of arrays with batch axes."""
        return self.reads_any_heads or any(True for _ in self.arrays())

    @property
    def reads_any_heads(self) -> bool:
        """True if this term, or one inside it, reads the numbers of batch elements and heads."""
        return any(term.reads_heads for term in self.walk())

    def _fields(self) -> Iterator[tuple[str, Any]]:
        names = (field.name for field in fields(self)) if is_dataclass(self) else tuple(vars(self))
        return ((name, getattr(self, name)) for name in names)


def _key(value: Any) -> Hashable:
    """Return a host number, string or None, or a tuple of these, with its types; None for anything else."""
    kinds = set(map(type, value)) if type(value) is tuple else {type(value)}
    if not kinds <= {int, float, bool, str, type(None)}:
        return None
    mixed = tuple(map(type, value)) if type(value) is tuple and len(kinds) > 1 else tuple(kinds)  # True == 1 == 1.0
    return type(value), mixed, value


def not_a_term(name: str, value: Any, expected: str) -> TypeError:
    """Return the error for an argument that is neither a mask or bias nor an array, such as a function that was not called."""
    if not isinstance(value, FunctionType):
        return TypeError(f"{name} is {type(value).__name__}; expected {expected}")
    if not value.__module__.startswith(f"{__package__}."):
        return TypeError(f"{name} is the function {value.__name__}; expected {expected}")
    needed = [parameter for parameter in signature(value).parameters.values() if parameter.default is Parameter.empty]
    written = (each.name if each.kind is not Parameter.KEYWORD_ONLY else f"{each.name}=..." for each in needed)
    return TypeError(f"{name} is the function {value.__name__}; call it: mha.{value.__name__}({', '.join(written)})")


def check_aligned(name: str, term: Term, query_offset: object, shape: tuple[int, ...]) -> None:
    """Raise ValueError where the alignment of queries and keys would be a guess (promise 5)."""
    queries, keys = shape[-2:]
    if not term.reads_query_position or query_offset is not None:
        return
    if None in (queries, keys):
        raise ValueError(
            f"{name} depends on the position of the query, and the number of queries or keys is not known: "
            "say how they align, with query_offset=0 (at the start)"
        )
    if queries != keys:
        raise ValueError(
            f"{name} depends on the position of the query, and there are {queries} queries and {keys} keys: "
            f"say how they align, with query_offset=0 (at the start) or query_offset={keys - queries} (at the end)"
        )


def check_broadcast(name: str, shape: Sequence[int], target: Sequence[int], meaning: str) -> None:
    """Raise ValueError unless ``shape`` broadcasts to ``target``."""
    aligned = zip(reversed(shape), reversed(target), strict=False)
    if len(shape) > len(target) or any(size not in (1, wanted) for size, wanted in aligned):
        raise ValueError(f"{name} has shape {tuple(shape)}; expected a shape that broadcasts to {meaning} = {tuple(target)}")


def check_integers(xp: Namespace, name: str, x: Array, shape: Sequence[int], meaning: str) -> None:
    """Raise TypeError unless ``x`` is an array of integers, ValueError unless it broadcasts to ``shape``."""
    if not is_array(x):
        raise TypeError(f"{name} is {type(x).__name__}; expected integers, as an array of the query's library")
    if not xp.isdtype(x.dtype, "integral"):
        raise TypeError(f"{name} has dtype {x.dtype}; expected integers")
    check_broadcast(name, x.shape, shape, meaning)
