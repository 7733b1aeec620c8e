"""Random attention problems of any mask expression, each with its mask and bias also as full arrays for the oracle."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from .attention_problem import AttentionProblem
from .kinds import Row
from .masks import random_mask
from .options import Options

FEW = ((2, 2, 1, 5, 5, 4, 4), (2, 1, 2, 3, 6, 4, 2))
"""Few shapes, as ``Limits.shapes`` has them."""


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
class RandomProblem(AttentionProblem):
    """An attention problem with any mask expression."""

    @property
    def allowed(self) -> np.ndarray | None:
        """The mask as an array; None if there is none."""
        return self.settings.visible if self.settings.masks else None

    @property
    def bias(self) -> np.ndarray | None:
        return self.floats.get("bias")

    def poisoned(self) -> tuple[np.ndarray, np.ndarray]:
        """Return key with NaN, and value with inf, wherever no query may look."""
        poisoned = self.with_poison(self.floats)
        return poisoned["key"], poisoned["value"]


def random_problem(rng: np.random.Generator, limits: Limits = Limits(), *, dtype: Any = np.float64) -> RandomProblem:
    """Draw a problem: grouped heads, broadcasting keys, another value width, any mask expression and any options."""
    batch, key_heads, groups, queries, keys, width, value_width = limits.shape(rng)
    heads, offset = key_heads * groups, int(rng.integers(-3, 4))
    row: Row = {"lse": True, "scale": None, "softcap": None, "scores": "plain", "layout": "contiguous"}
    settings = Options(row, offset=offset)
    if rng.random() < limits.masked:
        q, k = np.arange(queries)[:, None] + offset, np.arange(keys)
        settings.add_mask(random_mask(rng, rng, q, k, (batch,), heads, depth=limits.depth))
    floats = {
        "query": rng.normal(size=(batch, heads, queries, width)) * limits.times,
        "key": rng.normal(size=(batch if rng.random() < 0.5 else 1, key_heads, keys, width)),
        "value": rng.normal(size=(batch, key_heads, keys, value_width)),
    }
    if rng.random() < limits.options:
        settings.add_array_bias(rng.normal(size=(heads, queries, keys)))
    if rng.random() < limits.options:
        settings.floats["sink"] = rng.normal(size=heads)
    if rng.random() < limits.options:
        row["softcap"] = 2.0
    problem = RandomProblem(row, floats | settings.floats, settings.others, settings=settings)
    return problem.map(lambda x: x.astype(dtype))
