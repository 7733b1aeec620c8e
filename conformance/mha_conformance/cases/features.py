"""Problems that use one or several of the features that an attention kernel may declare, and no others."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from mha_core.shared import STATE_FEATURES, contract

from .attention_axes import PLAIN
from .attention_problem import AttentionProblem, attention_problem
from .kinds import Row

FEATURES: dict[str, Row] = {
    "causal": {"band": "causal"},
    "window": {"band": (-2, 1)},
    "key_lengths": {"lengths": "array with 0"},
    "packed": {"packed": "few"},
    "array_mask": {"array": "without the first query"},
    "mask": {"term": "or"},
    "bias": {"bias": "heads"},
    "alibi": {"bias": "alibi"},
    "relative_bias": {"bias": "relative"},
    "bias_term": {"bias": "term"},
    "mask_function": {"term": "function"},
    "score_function": {"bias": "function"},
    "softcap": {"softcap": 0.5},
    "sink": {"sink": "small"},
    "grouped_query": {"kv_heads": 2, "groups": 2},
    "value_dim": {"value_dim": 72},
    "broadcast": {"batch": "keys shared"},
    "lse": {"lse": True},
    "int8": {"int8": True},
}
"""For each feature, the axes of a problem that uses it and no other; a mask function is a ``mask`` too."""
ALL_FEATURES = contract.FEATURES["attention"] | STATE_FEATURES
"""All features that core can name. No problem uses ``STATE_FEATURES``: the arrays decide whether a gradient is recorded."""
_SHAPES: Row = {"queries": 6, "batch": "one", "kv_heads": 4, "groups": 1, "head_dim": 8, "value_dim": "the same", "lse": False}
_ARRAYS: Row = {"wide": False, "integers": "int64", "scores": "plain", "values": 1.0, "layout": "contiguous"}


def row_with(features: Iterable[str], **changes: Any) -> Row:
    """Return a row that uses these features: as many queries as keys, values as wide as heads, and ``changes`` of this."""
    row = PLAIN | _SHAPES | _ARRAYS | changes
    for name in FEATURES:
        row |= FEATURES[name] if name in set(features) else {}
    return row


def problem_with(
    features: Iterable[str], rng: np.random.Generator, length: int = 6, width: int = 8, **changes: Any
) -> AttentionProblem:
    """Draw a problem that uses these features."""
    return attention_problem(row_with(features, queries=length, head_dim=width, **changes), rng, rng)


def go_together(features: Iterable[str]) -> bool:
    """Return whether one call can use all of these features: no two of them give different values to one axis."""
    axes = [axis for name in set(features) & FEATURES.keys() for axis in FEATURES[name]]
    return len(set(axes)) == len(axes)
