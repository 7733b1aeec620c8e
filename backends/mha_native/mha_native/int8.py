"""The weight of a linear map in int8 as the compiled module reads it: packed once, and kept with the weight."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mha_core import Int8Weight
from mha_core.plugin import Call

from .level import native


def supports(call: Call) -> str | None:
    """Return why the kernel does not compute a call, or None."""
    return None if call.dtype_name == "float32" else f"computes in float32, not {call.dtype}"


def write(x: Any, w: Int8Weight, b: Any, out: Any, *, dense: Callable[[Any], Any], threads: int = 1, team: int = 0) -> None:
    """Write x w + b to ``out``; rows of these two NumPy arrays have no gaps. ``dense`` is that of ``packed``."""
    native.linear_int8(packed(w, dense), threads, team, x, None if b is None else dense(b), out)


def packed(w: Int8Weight, dense: Callable[[Any], Any]) -> Any:
    """Return a weight in the order in which the compiled module reads it. ``dense`` returns a contiguous NumPy array."""
    weight = w.cache.get("native")
    if weight is None:
        weight = w.cache["native"] = native.pack_int8(dense(w.values), dense(w.scale))
    return weight
