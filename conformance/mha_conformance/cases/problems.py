"""Random attention problems, each with its mask and bias also as full arrays for the oracle."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from .masks import Make, WrittenMask, literal, random_mask


@dataclass(frozen=True)
class Limits:
    """Distributions that random problems are drawn from."""

    times: float = 3.0
    """Factor applied to the query, and so to the scores."""
    longest: int = 8
    """Greatest number of queries and of keys."""
    widest: int = 4
    """Greatest width of heads and of values."""
    copies: int = 2
    """Greatest number of batch elements, of key heads, and of query heads for each key head."""
    masked: float = 0.9
    """Probability that there is a mask."""
    options: float = 0.3
    """Probability of each other option."""
    depth: int = 3
    """Greatest depth of a mask expression."""
    shapes: tuple[tuple[int, ...], ...] = ()
    """If not empty, draw (batch, key heads, groups, queries, keys, width, value width) only from these.

    Some libraries compile every operation again for every new shape.
    """

    def shape(self, rng: np.random.Generator) -> tuple[int, ...]:
        """Draw (batch, key heads, groups, queries, keys, width, value width)."""
        if self.shapes:
            return self.shapes[rng.integers(len(self.shapes))]
        copies = (int(n) for n in rng.integers(1, self.copies + 1, size=3))
        queries = int(rng.integers(0, self.longest + 1))
        keys = queries if rng.random() < 0.5 else int(rng.integers(0, self.longest + 1))
        return (*copies, queries, keys, int(rng.integers(0, self.widest + 1)), int(rng.integers(1, self.widest + 1)))


@dataclass
class RandomProblem:
    """One attention problem in NumPy arrays, with its options for a call and for the oracle."""

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
        """Return the options of a call; ``make`` turns NumPy arrays into the backend's."""
        return {
            "mask": None if self.mask is None else self.mask(make),
            "bias": None if self.bias is None else make(self.bias),
            "sink": None if self.sink is None else make(self.sink),
            "softcap": self.softcap,
            "query_offset": self.offset,
        }

    def __str__(self) -> str:
        """Return the shapes and the options as code."""
        shapes = (f"{name} {getattr(self, name).shape}" for name in ("query", "key", "value"))
        arrays = {name: literal(x) for name in ("bias", "sink") if (x := getattr(self, name)) is not None}
        options = {"mask": None if self.mask is None else str(self.mask), **arrays, "softcap": self.softcap}
        options["query_offset"] = self.offset
        return f"{', '.join(shapes)}; {', '.join(f'{name}={x}' for name, x in options.items() if x is not None)}"

    @property
    def oracle(self) -> dict[str, Any]:
        """The same options as the oracle takes them."""
        return {"allowed": self.allowed, "bias": self.bias, "sink": self.sink, "softcap": self.softcap}

    def map(self, function: Callable[[np.ndarray], np.ndarray]) -> RandomProblem:
        """Return the problem with ``function`` applied to every floating array, for example to round it to another dtype."""
        names = ("query", "key", "value", "bias", "sink")
        changes: dict[str, Any] = {name: function(x) for name in names if (x := getattr(self, name)) is not None}
        return replace(self, **changes)

    def seen(self) -> tuple[np.ndarray, np.ndarray]:
        """Return which keys and which values any query may see, in the shapes of key and value without the last axis."""
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
        """Return key with NaN, and value with inf, wherever no query may look."""
        key, value = self.key.copy(), self.value.copy()
        key_seen, value_seen = self.seen()
        key[~key_seen] = np.nan
        value[~value_seen] = np.inf
        return key, value


def random_problem(rng: np.random.Generator, limits: Limits = Limits(), *, dtype: Any = np.float64) -> RandomProblem:
    """Draw a problem: grouped heads, broadcasting keys, another value width, any mask expression and any options."""
    batch, key_heads, groups, queries, keys, width, value_width = limits.shape(rng)
    heads = key_heads * groups
    offset = int(rng.integers(-3, 4))
    mask, allowed = None, None
    if rng.random() < limits.masked:
        mask, allowed = random_mask(rng, queries, keys, offset, batch, heads, depth=limits.depth)
    return RandomProblem(
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
