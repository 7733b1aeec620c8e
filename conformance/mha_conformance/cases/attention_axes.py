"""The axes of attention: what a problem of the covering design may vary, and the values that each may have.

A value of a mask, bias or option is offered only if the kernel declares the features that it needs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from .covering import Row

LENGTHS = (0, 1, 2, *(edge + by for edge in (16, 32, 64, 128, 256, 512, 1024, 4096) for by in (-1, 0, 1)))
WIDTHS = (1, 5, 8, 16, 33, 64, 80, 128, 160, 256)
LAYOUTS = ("contiguous", "transposed", "stepped", "sliced", "flipped", "read-only", "unaligned")
"""Layouts of any array in memory."""
MOST_SCORES = 2**17
"""Scores of all heads together, at most: the oracle keeps a dozen arrays of them."""
MOST_NUMBERS = 2**19
"""Numbers in query, key and value together, at most."""

BATCHES: dict[str, tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]] = {
    "none": ((), (), ()),
    "one": ((2,), (2,), (2,)),
    "two": ((2, 3), (2, 3), (2, 3)),
    "one element": ((1,), (1,), (1,)),
    "keys shared": ((3,), (1,), (1,)),
    "keys without": ((2,), (), ()),
    "query shared": ((1,), (2,), (2,)),
    "query without": ((), (3,), (3,)),
    "values only": ((), (), (2,)),
    "crossed": ((2, 1), (1, 3), (3,)),
}
"""The batch axes of query, key and value."""
_PLAIN_BATCHES = ("none", "one", "two", "one element")

BANDS: dict[str, tuple[int | None, int | None] | None] = {
    "none": None,
    "causal": (None, 0),
    "window(2, 1)": (-2, 1),
    "window(40, 0)": (-40, 0),
    "window(0, 70)": (0, 70),
    "window(3, None)": (-3, None),
    "window(None, 33)": (None, 33),
}
"""Limits of key position - query position."""
OFFSETS: dict[str, int | None] = {"none": None, "0": 0, "3": 3, "70": 70, "-5": -5, "array": None, "array of one": None}
"""Positions of query 0; an array holds one for each element of the batch, or one for all."""
ARRAYS = ("scores", "keys", "queries", "heads", "batch", "batch of one", "whole")
"""Shapes of masks and biases that are arrays: which of the axes of the scores they have."""

PLAIN: dict[str, Any] = {
    "keys": "the same",
    **dict.fromkeys(("band", "offset", "lengths", "packed", "array", "term", "bias", "sink", "weight_dropout"), "none"),
    **dict.fromkeys(("softcap", "scale")),
}
"""The values of options that are not given; as many keys as queries are the usual case."""
TRIPLES = (
    ("queries", "band", "offset"),
    ("keys", "band", "offset"),
    ("kv_heads", "groups", "bias"),
    ("batch", "array", "lengths"),
    ("batch", "bias", "groups"),
)
"""Axes of which an implementation in tiles treats triples in a way of their own."""


def axes_of(handles: Iterable[str], *, half: bool) -> dict[str, list[Any]]:
    """Return the axes of the problems that a kernel which declares these features must compute, with their values."""
    has = frozenset(handles)

    def given(feature: str, *values: Any) -> list[Any]:
        return list(values) if feature in has else []

    bands = [name for name, band in BANDS.items() if _band_features(band) <= has]
    biases = [*given("bias", *ARRAYS, "-inf"), *given("alibi", "alibi")]
    biases += [*given("relative_bias", "relative", "relative of one side"), *given("bias_term", "term")]
    return {
        "queries": list(LENGTHS),
        "keys": ["the same", *LENGTHS],
        "batch": list(BATCHES) if "broadcast" in has else list(_PLAIN_BATCHES),
        "kv_heads": [1, 2, 3, 6],
        "groups": [1, *given("grouped_query", 2, 3, 8)],
        "head_dim": list(WIDTHS),
        "value_dim": ["the same", *given("value_dim", *WIDTHS)],
        "band": bands,
        "offset": list(OFFSETS),
        "lengths": ["none", *given("key_lengths", "int", "array", "array with 0", "array of one")],
        "packed": ["none", *given("packed", "few", "with empty ones", "many")],
        "array": ["none", *given("array_mask", *ARRAYS, "tiles")],
        "term": ["none", *given("mask", "or", "not", "chunks", "segments")],
        "bias": ["none", *biases],
        "wide": [False, *([True] if half and has & {"bias", "sink"} else [])],
        "softcap": [None, *given("softcap", 0.5, 30.0)],
        "sink": ["none", *given("sink", "small", "large")],
        "weight_dropout": ["none", *given("weight_dropout", "keep")],
        "integers": ["int64", "int32"],
        "scale": [None, 0.5, -0.7, 0.0, 1.0],
        "scores": ["plain", "wide", "huge", "tiny"],
        "values": [1.0, *((2.0**-6, 2.0**8) if half else (2.0**-100, 2.0**100))],
        "layout": [*LAYOUTS, "expanded"],
        "lse": [False, *given("lse", True)],
    }


def _band_features(band: tuple[int | None, int | None] | None) -> set[str]:
    low, high = band or (None, None)
    return {name for name, limit in (("window", low), ("causal", high)) if limit is not None}


def possible(row: Row, *, share: float = 1.0) -> bool:
    """Return whether a problem can have all of these values; axes that have no value yet do not count.

    share: of the size that is allowed.
    """
    row = resolved(row)
    if row.get("packed") == "many" and row.get("queries", 255) < 255:
        return False
    return options_fit(row, {"queries", "keys"} <= row.keys() and row["queries"] != row["keys"]) and _size(row) <= share


def options_fit(row: Row, unequal: bool) -> bool:
    """Return whether the options fit each other, the batch, and numbers of queries and keys that may be unequal."""
    if unequal and (row.get("packed", "none") != "none" or (row.get("offset") == "none" and depends_on_positions(row))):
        return False
    by_element = row.get("offset", "none").startswith("array") or row.get("lengths", "none").startswith("array")
    return not (by_element and row.get("batch") == "none")


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
        or row.get("term") in ("or", "not", "chunks")
        or row.get("bias", "none").startswith(("alibi", "relative"))
    )


def batch_shape(row: Row) -> tuple[int, ...]:
    """Return the batch axes of the scores and the result."""
    return np.broadcast_shapes(*BATCHES[row["batch"]])


def _size(row: Row) -> float:
    """Return the size of a problem, relative to the greatest allowed; what is not known yet is as small as it can be."""
    queries, keys = max(row.get("queries", 1), 1), max(row.get("keys", 1), 1)
    batch = math.prod(batch_shape({"batch": row.get("batch", "none")}))
    heads = batch * row.get("kv_heads", 1) * row.get("groups", 1)
    widths = (row.get(name, 1) for name in ("head_dim", "value_dim"))
    widest = max(width for width in widths if width != "the same")
    return max(heads * queries * keys / MOST_SCORES, heads * (queries + keys) * widest / MOST_NUMBERS)
