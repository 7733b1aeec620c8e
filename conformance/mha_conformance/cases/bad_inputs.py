"""Bad inputs of attention, with the error that each must raise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

import mha_core as mha

from .masks import Make

SHAPES = {"query": (2, 4, 5, 6), "key": (2, 2, 7, 6), "value": (2, 2, 7, 3)}
"""Shapes of the good call in which bad inputs take the place of arguments."""
UNBROADCASTABLE = [(6,), (2, 7), (3, 5, 7), (1, 2, 4, 5, 7)]
"""Shapes of masks and biases that do not broadcast to the scores of the good call, (2, 4, 5, 7)."""


class BadInput(NamedTuple):
    """Arguments to change in a good call, and the error that they raise."""

    change: dict[str, Callable[[Make], Any]]
    """Functions that make the bad arguments, from a function that makes arrays of the backend."""
    error: type[Exception]
    message: str
    """Text that the error's message must contain."""


def _ones(*shape: int, dtype: Any = np.float64) -> Callable[[Make], Any]:
    return lambda make: make(np.ones(shape, dtype=dtype))


def _value(x: Any) -> Callable[[Make], Any]:
    return lambda make: x


BAD_INPUTS = [
    BadInput({"query": _ones(4)}, ValueError, "query has shape (4,); expected at least 2 axes"),
    BadInput({"key": _ones(2, 2, 7, 5)}, ValueError, "key has head_dim 5, but query has 6"),
    BadInput({"value": _ones(2, 2, 6, 3)}, ValueError, "value has length 6, but key has 7"),
    BadInput({"value": _ones(2, 1, 7, 3)}, ValueError, "value has 1 heads, but key has 2"),
    BadInput(
        {"key": _ones(2, 3, 7, 6), "value": _ones(2, 3, 7, 3)},
        ValueError,
        "query has 4 heads, which is not a multiple of key's 3 heads",
    ),
    BadInput(
        {"key": _ones(3, 2, 7, 6)},
        ValueError,
        "do not broadcast: query (2, 4, 5, 6), key (3, 2, 7, 6)",
    ),
    BadInput({"query": _value([[1.0]])}, TypeError, "query is list; expected an array of an installed backend"),
    BadInput({"scale": _value("1")}, TypeError, "scale is str; expected a float"),
    BadInput({"scale": _value(float("nan"))}, ValueError, "scale is nan; expected a finite number"),
    BadInput({"softcap": _value(0.0)}, ValueError, "softcap is 0.0; expected a float above zero"),
    BadInput({"softcap": _value(True)}, TypeError, "softcap is bool; expected a float"),
    BadInput({"sink": _ones(3)}, ValueError, "sink has shape (3,); expected (H,) = (4,)"),
    BadInput({"mask": _value("causal")}, TypeError, "mask is str; expected a mask such as causal(), or a boolean array"),
    BadInput({"bias": _value(1.0)}, TypeError, "bias is float; expected a bias such as alibi(num_heads), or a floating array"),
    BadInput({"bias": _ones(5, 7, dtype=np.int64)}, TypeError, "bias"),
    BadInput({"query_offset": _value(1.5)}, TypeError, "query_offset is float; expected integers"),
    BadInput({"query_offset": _value(True)}, TypeError, "query_offset is bool"),
    BadInput(
        {"query_offset": _ones(3, dtype=np.int64)}, ValueError, "query_offset has shape (3,); expected a shape that broadcasts"
    ),
    BadInput(
        {"mask": lambda make: mha.key_lengths(_ones(3, dtype=np.int64)(make))}, ValueError, "key_lengths(n) has shape (3,)"
    ),
    BadInput({"mask": lambda make: mha.key_lengths(_ones(2)(make))}, TypeError, "key_lengths(n) has dtype"),
    BadInput(
        {"mask": _value(mha.packed([3, 4]))}, ValueError, "packed(lengths): the lengths add up to 7, but there are 5 queries"
    ),
    BadInput(
        {"bias": _value(mha.alibi(3)), "query_offset": _value(0)}, ValueError, "alibi(num_heads=3): the query has 4 heads"
    ),
]
"""Every bad input. Both the suite and the library's own tests judge them (promise 15)."""
