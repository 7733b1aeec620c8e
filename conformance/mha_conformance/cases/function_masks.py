"""Random mask functions, alone and with other masks, with a relation, or with a map of their tiles."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

import mha_core as mha

from ..oracle.expressions import Expression, evaluated, op
from .functions import Draw, as_function, indices_of
from .masks import AnyMask, Make, random_mask


@dataclass(frozen=True, eq=False)
class Pairs:
    """The pairs that a mask is drawn for."""

    q: np.ndarray
    """The positions of the queries, (..., L, 1)."""
    k: np.ndarray
    """The positions of the keys, (S,)."""
    batch: tuple[int, ...]
    heads: int
    offset: int = 0
    """The query offset of a map of tiles; elsewhere, the map is of no use."""

    @property
    def sizes(self) -> dict[str, int]:
        return {"batch": math.prod(self.batch), "head": self.heads, "key": len(self.k)}


def function_mask(
    kind: str, pairs: Pairs, structure: np.random.Generator, rng: np.random.Generator
) -> tuple[AnyMask, Expression]:
    """Draw the mask of a value of the axis ``term``, whose name begins with "function"; also return the function."""
    draw = Draw(structure, rng, pairs.sizes, "array")
    expression = draw.mask()
    reach = None
    if kind == "function with a relation":
        reach = int(structure.integers(0, 70))
        expression = op("&", op("<=", op("-", "query", "key"), reach), expression)
    names = [*draw.arrays]
    function = as_function(expression, names)
    indices = indices_of(pairs.q, pairs.k, pairs.batch, pairs.heads)

    def make(array: Make) -> Any:
        relation = None if reach is None else lambda queries, keys: _relation(queries, keys, reach)
        return mha.mask_function(function, [array(x) for x in draw.arrays.values()], relation=relation)

    mask = AnyMask(make, evaluated(expression, {**indices, **draw.arrays}))
    if kind == "function with others":
        other = random_mask(structure, rng, pairs.q, pairs.k, pairs.batch, pairs.heads, depth=1)
        mask = (mask | other, ~(mask & other), ~mask, mask & other)[int(structure.integers(4))]
    return (mapped(mask, pairs) if kind == "function with a map" else mask), expression


def _relation(queries: tuple[int, int], keys: tuple[int, int], reach: int) -> bool | None:
    """Return False if every key is farther behind every query than ``reach``."""
    return False if queries[0] - keys[1] > reach else None


def mapped(mask: AnyMask, pairs: Pairs) -> AnyMask:
    """Return the same mask with a map of its tiles."""
    sizes: dict[str, Any] = {"batch_shape": pairs.batch, "num_heads": pairs.heads, "query_offset": pairs.offset}

    def make(array: Make) -> Any:
        return mha.block_mask(mask(array), pairs.q.shape[-2], len(pairs.k), **sizes)

    return AnyMask(make, mask.allowed)
