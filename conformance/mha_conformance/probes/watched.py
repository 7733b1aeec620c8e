"""Arrays watched while a call runs, line by line.

A kernel that writes into an argument and restores it is wrong for every other thread that reads it, although nothing is left to
see after the call.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Any

import numpy as np


@contextmanager
def watched(views: Mapping[str, np.ndarray]) -> Iterator[None]:
    """Raise AssertionError if NumPy arrays, views of arguments, change between two lines of Python that this thread runs.

    The message names the array, and the line after which it differed first. What compiled code writes is seen when it returns.
    """
    before = {name: x.tobytes() for name, x in views.items()}
    changed: dict[str, str] = {}
    last = ""

    def trace(frame: FrameType, event: str, argument: Any) -> Callable[..., Any]:
        nonlocal last
        for name, x in views.items():
            if name not in changed and x.tobytes() != before[name]:
                changed[name] = last
        last = f"{frame.f_code.co_filename}:{frame.f_lineno}"
        return trace

    earlier = sys.gettrace()
    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(earlier)
    for name, where in changed.items():
        raise AssertionError(f"{name} was written to during the call, at {where}")
