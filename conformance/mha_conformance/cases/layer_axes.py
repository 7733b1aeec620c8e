"""The axes of the layers (encoder layer, multi-head attention, feed-forward network), with the values that each may have.

A value is offered only if the kernel declares the features that it needs. Masks, biases and options have the names and values
of ``attention_axes``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from mha_core.shared import contract

from . import attention_axes
from .attention_axes import LAYOUTS, PLAIN_BATCHES, batch_shape, options_fit
from .kinds import Row, between, near, real, some

LAYERS = ("encoder_layer", "multi_head_attention", "feed_forward")
"""Operations of whole layers that a kernel may compute and the suite judges."""
HEAD_NORMS = ("norm_q", "norm_k")
POST_NORMS = ("post_norm_1", "post_norm_2")
PLAIN = attention_axes.PLAIN | dict.fromkeys(("rotary", "dropout", "gate", "context", *HEAD_NORMS, *POST_NORMS), "none")
PLAIN |= {"weights": "floats"}
"""The values of options that are not given."""
TRIPLES = (
    *(("queries", "d_model", "d_ff"), ("activation", "gate", "b of network"), ("kv_heads", "groups", "head_dim")),
    *(("norm_1", "norm_2", "norm_first"), ("queries", "band", "rotary"), ("batch", "queries", "layout")),
)
"""Axes of which every triple of values is judged."""
_LENGTHS = (1, 2, between(3, 15), near(16, 32, 64), between(17, 130), near(128, 1024))
_WIDTHS = (1, between(2, 31), between(32, 80))
_HIDDEN = (1, between(2, 40), between(41, 260), near(256, 1024))
_ROOMS = {"small": 2**16, "large": 2**20}
"""Multiplications of one layer, at most: the oracle computes it several times."""
_EPS = (1e-5, real(1e-9, 1e-3), real(1e-3, 1.0))
_OPTIONS = ("band", "lengths", "packed", "array", "term", "bias", "softcap", "sink", "scale", "offset")
_LEFT_OUT = frozenset({"many", "chunks"})
"""Values of the options of attention that layers are not judged with."""
BIASES = ("b_q", "b_k", "b_v", "b_o")


def axes_of_layer(op: str, handles: Iterable[str]) -> dict[str, list[Any]]:
    """Return the axes of the calls that a kernel which declares these features must compute, with their values."""
    has = frozenset(handles)
    axes: dict[str, list[Any]] = {
        "room": list(_ROOMS),
        "batch": list(PLAIN_BATCHES),
        "queries": [*_LENGTHS],
        "spread": [1.0, 30.0, 1e-3],
        "layout": [*LAYOUTS],
        "layout of w": [*LAYOUTS, "each its own"],
        "weights": ["floats"] + ["int8"] * ("int8" in has),
    }
    if op == "feed_forward":
        axes["d_model"] = list(_WIDTHS)
        return axes | _network(["relu", "gelu", "gelu_tanh", "silu"], gate="gate" in has, gate_bias="gate" in has)
    axes |= _options(has)
    if op == "multi_head_attention":
        contexts = ["none"] + ["context"] * ("context" in has) + ["both"] * ({"context", "value_context"} <= has)
        axes |= {"keys": [0, *_LENGTHS], "context": contexts, "d_out": list(_WIDTHS), "d_model": list(_WIDTHS)}
        axes["context batch"] = ["the same", "none"] if "context" in has else ["the same"]
        rotary = {"rotary"} <= has
        axes |= {norm: ["none"] + ["RMSNorm", "LayerNorm"] * (norm in has) for norm in HEAD_NORMS}
        axes |= {f"eps of {norm}": list(_EPS) if norm in has else [1e-5] for norm in HEAD_NORMS}
        return axes | _heads(grouped="grouped_query" in has, biases=BIASES, rotary=rotary, interleaved=rotary)
    activations = _declared("feed_forward.activation", has)
    network = _network(activations, gate="feed_forward.w_g" in has, gate_bias="feed_forward.b_g" in has)
    heads = _heads(
        grouped="attention.num_kv_heads" in has,
        biases=[name for name in BIASES if f"attention.{name}" in has],
        rotary="attention.rotary=Rotary" in has,
        interleaved="attention.rotary.interleaved" in has,
    )
    del network["d_out"]
    for norm in ("norm_1", "norm_2"):
        axes[norm] = _declared(norm, has)
        axes[f"parts of {norm}"] = ["both", "weight", "bias", "none"]
        axes[f"eps of {norm}"] = list(_EPS)
    axes |= {norm: ["none", *_declared(f"attention.{norm}", has)] for norm in HEAD_NORMS}
    axes |= {norm: ["none", *_declared(norm, has)] for norm in POST_NORMS}
    for norm in (*HEAD_NORMS, *POST_NORMS):
        axes[f"eps of {norm}"] = list(_EPS) if len(axes[norm]) > 1 else [1e-5]
    axes["dropout"] = ["none", *(["attention", "feed_forward", "both"] if "dropout" in has else [])]
    axes["keep"] = ["array", *(["by a seed"] if "dropout" in has else [])]
    axes["norm_first"] = [False, *([True] if "norm_first" in has else [])]
    # of two features, normalized, only signs are left, which rounding may turn
    return axes | heads | network | {"d_model": [between(4, 31), between(32, 80)]}


def _declared(field: str, has: frozenset[str]) -> list[str]:
    """Return the classes, or settings, that a kernel declares for a field of the layer."""
    return [name.partition("=")[2] for name in sorted(has) if name.startswith(f"{field}=")]


def _network(activations: list[str], *, gate: bool, gate_bias: bool) -> dict[str, list[Any]]:
    gates = ["none"] + ["w_g"] * gate + ["w_g and b_g"] * (gate and gate_bias)
    parts = ["both", "b_1", "b_2", "none"]
    return {"activation": activations, "d_ff": list(_HIDDEN), "gate": gates, "b of network": parts, "d_out": list(_WIDTHS)}


def _heads(*, grouped: bool, biases: Iterable[str], rotary: bool, interleaved: bool) -> dict[str, list[Any]]:
    declared = tuple(biases)
    return {
        "kv_heads": [1, between(2, 5)],
        "groups": [1, *([between(2, 4)] if grouped else [])],
        "kv_heads given": [False, *([True] if grouped else [])],
        "head_dim": [1, some("4, 8", 4, 8), some("12, 16, 20", 12, 16, 20), between(5, 40)],
        "value_dim": ["the same", between(1, 40)],
        "b of heads": list(dict.fromkeys([(), declared, *((name,) for name in declared)])),
        "rotary": ["none"] + ["halves", "half of them"] * rotary + ["interleaved"] * (rotary and interleaved),
    }


def _options(has: frozenset[str]) -> dict[str, list[Any]]:
    """Return the axes of attention's options: a layer's kernel declares all masks together, and all biases."""
    together = {"mask": contract.MASK_FEATURES, "bias": contract.BIAS_FEATURES}
    features = (has & {"softcap", "sink"}).union(*(names for option, names in together.items() if option in has))
    every = attention_axes.axes_of(features, half=False)
    axes = {name: [value for value in every[name] if value not in _LEFT_OUT] for name in _OPTIONS}
    undeclared = {"scale": "scale", "offset": "query_offset"}.items()
    return axes | {name: [PLAIN[name]] for name, feature in undeclared if feature not in has}


def keys_of(row: Row) -> int:
    """Return the number of keys: that of the queries, unless there is a context."""
    length: int = row["queries"] if row.get("context", "none") == "none" else row["keys"]
    return length


def possible(row: Row) -> bool:
    """Return whether a call can have all of these values, kinds by their least; axes that have no value do not count."""
    context = row.get("context", "none") != "none"
    if context and row.get("rotary", "none") != "none":
        return False
    if not context and "context" in row and row.get("context batch", "the same") != "the same":
        return False
    if row.get("rotary", "none") != "none" and (_beyond_tables(row) or row.get("head_dim", 4) % 4):
        return False  # positions that the tables lack, or heads without pairs of features
    if any(row.get(norm, "none") != "none" for norm in HEAD_NORMS) and row.get("head_dim", 4) < 4:
        return False  # of one or two features, normalized, only signs are left
    if row.get("post_norm_1", "none") != "none" and _width_of_heads(row) == 1 and "b_o" not in row.get("b of heads", BIASES):
        return False  # rows are multiples of one row, and of these, normalized, only signs are left too
    if row.get("post_norm_2", "none") != "none" and row.get("d_ff") == 1 and row.get("b of network") in ("b_1", "none"):
        return False
    return options_fit(row, context) and _products(row) <= 1


def _width_of_heads(row: Row) -> int:
    """Return the number of features of all heads together; 0 if it is not known yet."""
    width = row.get("value_dim", 0)
    return math.prod((row.get("head_dim", 0) if width == "the same" else width, row.get("kv_heads", 0), row.get("groups", 0)))


def _products(row: Row) -> float:
    """Return the number of multiplications, relative to the most allowed; what is not known yet is as small as it can be."""
    tokens = row.get("queries", 1) * math.prod(batch_shape({"batch": row.get("batch", "none")}))
    heads, width = row.get("kv_heads", 0) * row.get("groups", 1), row.get("head_dim", 1)
    per_token = heads * width * (4 * row.get("d_model", 1) + 2 * row.get("queries", 1)) + row.get("d_ff", 0) * 3 * row.get(
        "d_model", 1
    )
    return tokens * per_token / _ROOMS[row.get("room", "large")]


def _beyond_tables(row: Row) -> bool:
    """Return whether rotary tables of a few positions lack that of the first query."""
    offset = row.get("offset", 0)
    return isinstance(offset, int) and not 0 <= offset <= 70
