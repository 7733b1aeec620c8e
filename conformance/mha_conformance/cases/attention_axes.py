"""The axes of attention: what a problem of the covering design may vary, and the values that each may have.

A value of a mask, bias or option is offered only if the kernel declares the features that it needs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import cache
from typing import Any

import numpy as np

from mha_core.shared import contract

from .kinds import Kind, Row, between, near, real, some

_SHORT = (0, 1, 2, between(3, 15), near(16, 32, 64), between(17, 300))
_LONG = (near(1024, 2048, 4096), between(301, 4000), between(4001, 33_000))
LENGTHS = (*_SHORT, near(128, 256, 512), *_LONG)
KEYS = (*_SHORT, near(128), near(256), near(512), *_LONG)
"""Numbers of keys. Each size at which a tile often ends is a kind of its own."""
WIDTHS = (1, between(2, 7), 8, between(9, 63), some("16, 32, 48", 16, 32, 48), 64, between(65, 127), 128, between(129, 256))
LAYOUTS = ("contiguous", "transposed", "stepped", "sliced", "flipped", "read-only", "unaligned")
"""Layouts of any array in memory."""
STRIDE_0 = {
    "layout": some("stride 0", -3, -2, -1),
    **dict.fromkeys(("layout of key", "layout of value"), some("stride 0", -3, -2)),
}
"""Layouts of query, key and value, and of what is given for their results, in which one axis repeats its first element.

Not that of the features of keys or values: with all terms of a sum equal, its rounding errors may have one sign.
"""
ROOMS = {"small": 2**10, "ordinary": 2**13, "large": 2**16}
"""Scores of all heads together, at most: the oracle keeps a dozen arrays of them. Arrays may have four times as many numbers,
and scores of heads wider than 64 count by their width."""

BATCHES: dict[str, tuple[tuple[int, ...], ...]] = {
    "none": ((), (), ()),
    "one": ((2,), (2,), (2,)),
    "keys shared": ((3,), (1,), (1,)),
}
"""The batch axes of query, key and value, by the names of some."""


def _same_batch(name: str, axes: int) -> Kind:
    def draw(rng: np.random.Generator) -> tuple[tuple[int, ...], ...]:
        return (tuple(int(n) for n in rng.integers(2, 4, size=axes)),) * 3

    return Kind(name, draw, ((2,) * axes,) * 3)


def shared_batch(rng: np.random.Generator) -> tuple[tuple[int, ...], ...]:
    """Draw up to three batch axes, of which each array lacks some, and has one element along others."""
    full = [int(n) for n in rng.integers(1, 4, size=rng.integers(1, 4))]

    def of_one() -> tuple[int, ...]:
        return tuple(n if rng.random() < 0.5 else 1 for n in full)[int(rng.integers(0, len(full) + 1)) :]

    return of_one(), of_one(), of_one()


PLAIN_BATCHES = (
    "none",
    _same_batch("one", 1),
    _same_batch("two", 2),
    some("one element", ((1,),) * 3),
    _same_batch("three", 3),
)
_SHARED_BATCH = Kind("shared", shared_batch, ((2,), (1,), ()))


def _length(rng: np.random.Generator) -> int:
    return int(np.exp(rng.uniform(0, np.log(300))))


_BANDS: dict[str | Kind, frozenset[str]] = {
    "none": frozenset(),
    "causal": frozenset({"causal"}),
    Kind("before", lambda rng: (-_length(rng), 0), (-2, 0)): frozenset({"window", "causal"}),
    Kind("around", lambda rng: (1 - _length(rng), _length(rng)), (-2, 1)): frozenset({"window", "causal"}),
    Kind("after", lambda rng: (0, _length(rng)), (0, 70)): frozenset({"window", "causal"}),
    Kind("from", lambda rng: (-_length(rng), None), (-3, None)): frozenset({"window"}),
    Kind("up to", lambda rng: (None, _length(rng)), (None, 33)): frozenset({"causal"}),
}
"""Limits of key position - query position, with the features that they need."""
FAR = 2**16
"""A position that float16 and bfloat16 cannot hold, and beyond all keys."""
OFFSETS = (
    *("none", 0, between(1, 70), Kind("-70 to -1", lambda rng: -int(np.exp(rng.uniform(0, np.log(71)))), -1)),
    Kind("beyond 16 bits", lambda rng: int(rng.integers(FAR, 2**20)), FAR + 3),
    Kind("beyond 24 bits", lambda rng: int(rng.choice([-1, 1]) * rng.integers(2**24, 2**30)), 2**24 + 3),
    *("array", "array of one"),
)
"""Positions of query 0; an array holds one for each element of the batch, or one for all."""
ARRAYS = ("scores", "keys", "queries", "heads", "batch", "batch of one", "whole")
"""Shapes of masks and biases that are arrays: which of the axes of the scores they have."""
TERMS = ("function", "function with a relation", "function with a map", "function with others")
"""Kinds of masks that are functions; the last one may contain any other mask."""

PLAIN: dict[str, Any] = {
    "keys": "the same",
    **dict.fromkeys(("band", "offset", "lengths", "packed", "array", "term", "bias", "sink", "weight_dropout"), "none"),
    **dict.fromkeys(("softcap", "scale")),
    "int8": False,
}
"""The values of options that are not given; as many keys as queries are the usual case."""
USUAL: dict[str, Any] = {"batch": "none", "groups": 1, "value_dim": "the same"}
"""The values of other axes that calls have most often."""
TRIPLES = (
    *(
        ("queries", "keys", "band"),
        ("queries", "band", "offset"),
        ("keys", "band", "offset"),
        ("keys", "head_dim", "value_dim"),
    ),
    *(("queries", "keys", "lengths"), ("queries", "keys", "array"), ("keys", "bias", "softcap"), ("keys", "sink", "lse")),
    *(
        ("kv_heads", "groups", "bias"),
        ("batch", "groups", "bias"),
        ("batch", "array", "lengths"),
        ("batch", "kv_heads", "groups"),
    ),
    *(("layout", "layout of key", "layout of value"), ("layout", "batch", "groups"), ("layout of key", "batch", "keys")),
    *(("scores", "keys", "lse"), ("scores", "band", "softcap"), ("term", "band", "array"), ("packed", "band", "bias")),
)
"""Axes of which an implementation in tiles, groups or states treats triples in a way of their own."""


def axes_of(handles: Iterable[str], half: bool) -> dict[str, list[Any]]:
    """Return the axes of the problems that a kernel which declares these features must compute, with their values."""
    has = frozenset(handles)

    def given(feature: str, *values: Any) -> list[Any]:
        return list(values) if feature in has else []

    bands = [band for band, needed in _BANDS.items() if needed <= has]
    expressions = ["expression"] if has >= contract.MASK_FEATURES else []
    if "mask" in has:
        expressions += given("mask_function", *TERMS[:-1])
    expressions += given("mask_function", TERMS[-1]) if has >= contract.MASK_FEATURES else []
    biases = [*given("bias", *ARRAYS, "-inf"), *given("alibi", "alibi")]
    biases += [*given("relative_bias", "relative", "relative of one side"), *given("bias_term", "term")]
    biases += given("score_function", "function")
    return {
        "room": list(ROOMS),
        "queries": list(LENGTHS),
        "keys": ["the same", *KEYS],
        "batch": [*PLAIN_BATCHES, *given("broadcast", _SHARED_BATCH)],
        "kv_heads": [1, between(2, 3), between(4, 7)],
        "groups": [1, *given("grouped_query", between(2, 4), between(5, 16))],
        "head_dim": list(WIDTHS),
        "value_dim": ["the same", *given("value_dim", *WIDTHS)],
        "band": bands,
        "offset": list(OFFSETS),
        "lengths": ["none", *given("key_lengths", "int", "array", "array with 0", "array of one")],
        "packed": ["none", *given("packed", "few", "with empty ones", "many")],
        "array": ["none", *given("array_mask", *ARRAYS, "tiles")],
        "term": ["none", *given("mask", "or", "not", "chunks", "segments"), *expressions],
        "bias": ["none", *biases],
        "wide": [False, *([True] if half and has & {"bias", "sink"} else [])],
        "softcap": [None, *given("softcap", real(0.1, 2), real(2, 100))],
        "sink": ["none", *given("sink", "small", "large")],
        "weight_dropout": ["none", *given("weight_dropout", real(0.05, 0.9))],
        "keep": ["array", *given("weight_dropout", "by a seed")],
        "integers": ["int64", "int32"],
        "scale": [None, 0.0, real(0.02, 2), real(0.02, 2, sign=-1)],
        "scores": ["plain", "wide", "huge", "tiny"],
        "values": [1.0, *((2.0**-6, 2.0**8) if half else (2.0**-100, 2.0**100))],
        **{name: [*LAYOUTS, "expanded", stride_0] for name, stride_0 in STRIDE_0.items()},
        "layout of options": [*LAYOUTS, "each its own"],
        "lse": [False, *given("lse", True)],
        "int8": [False, *given("int8", True)],
    }


def possible(row: Row) -> bool:
    """Return whether a problem can have all of these values, kinds by their least; axes that have no value do not count."""
    if row.get("packed") == "many" and row.get("queries", 127) < 127:
        return False
    if row.get("term") == "function with a map" and 0 in (row.get("queries"), resolved(row).get("keys")):
        return False
    return options_fit(row, row.get("keys", "the same") != "the same") and _size(resolved(row)) <= 1


def options_fit(row: Row, unequal: bool) -> bool:
    """Return whether the options fit each other, the batch, and numbers of queries and keys that may be unequal."""
    if unequal and (row.get("packed", "none") != "none" or (row.get("offset") == "none" and depends_on_positions(row))):
        return False
    if row.get("bias") == "alibi" and isinstance(offset := row.get("offset"), int) and abs(offset) >= FAR:
        return False  # in float32, the biases of all keys are nearly one number
    by_element = any(str(row.get(name)).startswith("array") for name in ("offset", "lengths"))
    return not (by_element and row.get("batch") in ("none", ((), (), ())))


def resolved(row: Row) -> Row:
    """Return a row with the number of its keys, if it has "the same" as of queries; without it, if that is not known yet."""
    if row.get("keys") != "the same":
        return row
    known = {name: value for name, value in row.items() if name != "keys"}
    return {**known, "keys": row["queries"]} if "queries" in row else known


def depends_on_positions(row: Row) -> bool:
    """Return whether a mask or bias is a function of positions, so that unequal lengths need an offset."""
    return (
        row.get("band", "none") != "none"
        or row.get("term", "none").startswith(("or", "not", "chunks", "expression", "function"))
        or row.get("bias", "none").startswith(("alibi", "relative", "function"))
    )


def batch_shape(row: Row) -> tuple[int, ...]:
    """Return the batch axes of the scores and the result."""
    return _broadcast(batches_of(row))


@cache
def _broadcast(shapes: tuple[tuple[int, ...], ...]) -> tuple[int, ...]:
    return np.broadcast_shapes(*shapes)


def batches_of(row: Row) -> tuple[tuple[int, ...], ...]:
    """Return the batch axes of query, key and value."""
    batch = row["batch"]
    return BATCHES[batch] if isinstance(batch, str) else batch


def _size(row: Row) -> float:
    """Return the size of a problem, relative to the greatest allowed; what is not known yet is as small as it can be."""
    queries, keys = max(row.get("queries", 1), 1), max(row.get("keys", 1), 1)
    batch = math.prod(batch_shape({"batch": row.get("batch", "none")}))
    heads, room = batch * row.get("kv_heads", 1) * row.get("groups", 1), ROOMS[row.get("room", "large")]
    widths = (row.get(name, 1) for name in ("head_dim", "value_dim"))
    widest = max(width for width in widths if width != "the same")
    return heads * max(queries * keys * max(1, widest / 64), (queries + keys) * widest / 4) / room
