"""Attention whose masks and scores are functions: a right kernel, and wrong ones that evaluate a function elsewhere."""

from dataclasses import replace
from functools import partial

import numpy as np

from mha_core.plugin import BLOCK, MappedMask

from .dense import Dense, allowed, bias, grid_of, mask, softcap
from .dense import right as right

right_on_problems = right


def _with(change):
    """Return a kernel whose functions receive the indices that ``change(grid)`` returns in place of their own."""

    def grid(p):
        made = grid_of(p)
        vars(made).update(change(made))  # where the properties of a grid are kept
        return made

    def hidden(p, s):
        return s if p.mask is None else np.where(allowed(p, grid_of=grid), s, -np.inf)

    return Dense(order=(softcap, partial(bias, grid_of=grid), hidden))


ignores_the_head = _with(lambda grid: {"head_index": 0 * grid.head_index})
ignores_the_offset = _with(lambda grid: {"query_position": grid.query_index})
ignores_the_batch = _with(lambda grid: {"batch_index": 0 * grid.batch_index})


def _beyond(tiles_of):
    """Return a kernel in which all pairs attend that ``tiles_of(p, grid)`` is true for, whatever the rest of the mask says."""

    def hidden(p, s):
        if p.mask is None or p.structure.rest is None:
            return mask(p, s)
        rest = allowed(p) | (allowed(replace(p, structure=replace(p.structure, rest=None))) & tiles_of(p, grid_of(p)))
        return np.where(rest, s, -np.inf)

    return Dense(order=(softcap, bias, hidden))


def _in_the_last_tile(p, grid):
    rows, cols = (np.arange(n) >= n // BLOCK * BLOCK if n > BLOCK else np.zeros(n, bool) for n in grid.shape[-2:])
    return rows[:, None] & cols


ignores_the_last_tile = _beyond(_in_the_last_tile)


def _partial_tiles(p, grid):
    """Return the pairs of the tiles of a map of which some pairs attend."""
    codes = p.mask.codes_at(p.offset) if isinstance(p.mask, MappedMask) else None
    if codes is None:
        return np.zeros((1, 1), bool)
    return np.asarray([list(row) for row in codes])[np.ix_(grid.query_index[:, 0] // BLOCK, grid.key_index[0] // BLOCK)] == 1


some_for_all = _beyond(_partial_tiles)


def _quietly(p, s):
    """Apply a score function to scores some of which are -inf."""
    with np.errstate(invalid="ignore"):
        return bias(p, s)


after_the_mask = Dense(order=(softcap, mask, _quietly))
before_softcap = Dense(order=(bias, softcap, mask))
