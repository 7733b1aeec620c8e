"""Rows of attention problems with functions as masks and scores: sizes beside the ends of tiles, and other options as well."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from .attention_axes import options_fit, resolved
from .features import row_with
from .kinds import Row

_SIZES: dict[str, tuple[Any, ...]] = {
    "queries": (1, 5, 63, 64, 65, 130),
    "keys": ("the same", "the same", 3, 64, 65, 140, 200),
    "batch": ("none", "one", ((2, 3),) * 3),
    "kv_heads": (1, 2, 3),
    "head_dim": (4, 8),
    "offset": ("none", 0, 5, 70, -3, 2**24 + 3, "array"),
    "scores": ("plain", "wide"),
}
_OPTIONS: dict[str, tuple[tuple[str, Any], ...]] = {
    "batch": (("broadcast", "keys shared"), ("broadcast", ((), (), (3,))), ("broadcast", ((3, 1), (2,), (1, 2)))),
    "groups": (("grouped_query", 2), ("grouped_query", 3)),
    "softcap": (("softcap", 3.0),),
    "sink": (("sink", "small"),),
    "band": (("causal", "causal"), ("window", (-20, None))),
    "lengths": (("key_lengths", "array with 0"), ("key_lengths", "int")),
    "array": (("array_mask", "whole"), ("array_mask", "keys")),
}
"""Values of further axes, each with the feature that it needs."""


def function_row(features: Iterable[str], rng: np.random.Generator, **given: Any) -> Row:
    """Draw a row within these features, whose options are given one time in four; ``given`` has values that are not drawn."""
    has = frozenset(features)
    while True:
        row = row_with(())
        row |= {name: values[int(rng.integers(len(values)))] for name, values in _SIZES.items()}
        for name, values in _OPTIONS.items():
            possible = [value for feature, value in values if feature in has]
            if possible and rng.random() < 0.25:
                row[name] = possible[int(rng.integers(len(possible)))]
        row |= given
        unequal = resolved(row)["keys"] != row["queries"]
        if options_fit(row, unequal) and not (unequal and row["offset"] == "none"):
            return row
