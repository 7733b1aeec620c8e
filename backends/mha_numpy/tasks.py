"""Element by element on all cores, in tiles that stay in cache."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .threads import run

TILE = 1 << 16  # elements; with shorter loops two threads lose time to the interpreter lock
_TASK = 1 << 18  # elements for which another thread is worth waking


def elementwise(function: Callable[..., None], *arrays: np.ndarray) -> np.ndarray:
    """Return what ``function(*tiles, out=tile)`` writes for tiles of arrays of one shape."""
    flat = [x.reshape(-1) for x in arrays]
    y = np.empty_like(flat[0])
    in_tiles(lambda span: function(*(x[span] for x in flat), out=y[span]), y.size)
    return y.reshape(arrays[0].shape)


def in_tiles(function: Callable[[slice], None], size: int) -> None:
    """Call ``function(tile)`` for tiles of ``size`` elements. NaN and infinity in them raise no warning."""

    def task(at: int) -> None:
        stop = min(at + _TASK, size)
        with np.errstate(all="ignore"):
            for start in range(at, stop, TILE):
                function(slice(start, min(start + TILE, stop)))

    if size <= _TASK:
        task(0)
    else:
        run(task, range(0, size, _TASK))
