"""Element by element on all cores, in tiles that stay in cache."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .threads import run

TILE = 1 << 16  # elements; with shorter loops two threads lose time to the interpreter lock
_TASK = 1 << 18  # elements for which another thread is worth waking


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
