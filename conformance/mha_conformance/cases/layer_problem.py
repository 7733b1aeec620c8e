"""Calls of layers from the rows of a covering design."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from zlib import crc32

import numpy as np

import mha_core as mha

from ..oracle.attention import Floats
from ..oracle.dropout import kept_by_seed
from ..oracle.layers import Layers, bounds
from ..oracle.steps import Named
from ..oracle.tolerance import compute_dtype
from .attention_axes import LAYOUTS, batch_shape
from .kinds import Row
from .layer_axes import BIASES, PLAIN, keys_of
from .options import Options, heads_of, options_of
from .problem import Bounded, Problem

SMALL: dict[str, Any] = {"d_model": 16, "num_heads": 4, "d_ff": 24}
"""Sizes of small layers, as ``init`` takes them."""
_RATE = 0.25
_SUBLAYERS = ("attention", "feed_forward")
"""The sublayers of an encoder layer, which may have dropout."""
_WIDTHS = {"context": 12, "value_context": 7}


PLAIN_ROW: Row = {
    **PLAIN,
    "batch": "one", "queries": 6, "spread": 1.0, "d_model": 16, "d_ff": 24, "activation": "gelu", "norm_first": False,
    "kv_heads": 4, "groups": 1, "kv_heads given": False, "head_dim": 4, "value_dim": "the same",
    "b of heads": BIASES, "b of network": "both",
    **dict.fromkeys(("norm_1", "norm_2"), "LayerNorm"),
    **dict.fromkeys(("layout", "layout of w"), "contiguous"),
}  # fmt: skip
"""The values of axes that a problem does not name."""


@dataclass
class LayerProblem(Problem):
    """A call of a layer operation; its result is named after the operation, and weights as ``Layer.arrays`` names them."""

    op: str = ""
    layer: Any = None
    """The layer in NumPy."""
    options: Options | None = None
    dropped: tuple[str, ...] = ()
    """The sublayers with dropout by an array."""
    seed: int | None = None
    """The seed that dropout of the other sublayers follows; None: they have none."""

    def call(self, arrays: Mapping[str, Any]) -> dict[str, Any]:
        return {self.op: self.with_weights(arrays)(*self.arguments(arrays).values(), **self.options_of_call(arrays))}

    def arguments(self, arrays: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments of the call by name: x, and the memory of a decoder."""
        return {name: arrays[name] for name in ("x", "memory") if name in arrays}

    def options_of_call(self, arrays: Mapping[str, Any]) -> dict[str, Any]:
        """Return the options of the call, from arrays of a backend."""
        options = {} if self.options is None else self.options.make(arrays)
        options |= {name: arrays[name] for name in _WIDTHS if name in arrays}
        if self.dropped or self.seed is not None:
            keeps = {name: arrays[f"keep of {name}"] for name in self.dropped}
            options["dropout"] = mha.Dropout(_RATE, keeps, self.seed)
        return options

    def with_weights(self, arrays: Mapping[str, Any]) -> Any:
        """Return the layer that these arrays are the weights of."""
        names = iter(self.layer.arrays())
        return self.layer.map(lambda x: arrays[next(names)])

    def compute(self, layers: Layers, floats: Mapping[str, Floats]) -> Floats:
        """Compute with the oracle, which may move its steps."""
        options: dict[str, Any] = {}
        if self.options is not None:
            options = self.options.oracle(floats, compute_dtype(layers.dtype))
            if "table" in floats:
                options["bias"] = layers.looked_up(options["bias"], floats["table"], np.asarray(self.options.buckets))
            elif "bias" in floats:
                options["bias"] = layers.finite(options["bias"], floats["bias"])
            options["offset"] = self.others.get("query_offset", self.options.offset)
        options |= {name: floats[name] for name in (*_WIDTHS, "memory") if name in floats}
        if kept := self.kept(floats["x"].shape):
            options["kept"] = {name: x / (1 - _RATE) for name, x in kept.items()}
        method = "multi_head" if self.op == "multi_head_attention" else self.op
        result: Floats = getattr(layers, method)(floats["x"], self.with_weights({**self.others, **floats}), **options)
        return result

    def kept(self, shape: tuple[int, ...]) -> dict[str, np.ndarray]:
        """Return what dropout keeps of the results, (..., L, d), of the sublayers that have it."""
        kept = {name: self.others[f"keep of {name}"] for name in self.dropped}
        if self.seed is not None:
            places = (math.prod(shape[:-1]), shape[-1])
            by_seed = [name for name in _SUBLAYERS if name not in kept]
            kept |= {name: kept_by_seed(places, _RATE, self.seed, name).reshape(shape) for name in by_seed}
        return kept

    def exact(self, floats: Mapping[str, Floats]) -> dict[str, Floats]:
        return self.results(Layers(), floats)

    def results(self, layers: Layers, floats: Mapping[str, Floats]) -> Named:
        """Compute the results by name with the oracle."""
        return {self.op: self.compute(layers, floats)}

    def bounds(self, floats: Mapping[str, Floats], dtype: str, *, rounds_weights: bool) -> Iterator[dict[str, Bounded]]:
        rng = np.random.default_rng(0)
        return bounds(lambda layers: self.results(layers, floats), dtype, rounds_weights=rounds_weights, rng=rng)

    def expected(self, floats: Mapping[str, Floats], dtype: str, *, rounds_weights: bool) -> dict[str, Bounded]:
        return [*self.bounds(floats, dtype, rounds_weights=rounds_weights)][-1]

    def layout(self, name: str) -> tuple[str, tuple[int, ...]]:
        layout = self.row["layout of w" if name in self.layer.arrays() else "layout"]
        return LAYOUTS[crc32(name.encode()) % len(LAYOUTS)] if layout == "each its own" else layout, ()


def layer_problem(op: str, row: Row, structure: np.random.Generator, rng: np.random.Generator) -> LayerProblem:
    """Draw a call whose axes have the values of ``row``: see ``options_of`` for the two generators."""
    batch, d_model = batch_shape(row), row["d_model"]
    d_out = row.get("d_out") or d_model
    floats = {"x": rng.normal(size=(*batch, row["queries"], d_model)) * row["spread"]}
    layer: Any
    if op == "feed_forward":
        layer = _in_dtype_of_weights(row, _network(row, d_model, d_out, rng))
        return LayerProblem(row, floats | _floats(layer), _integers(layer), op=op, layer=layer)
    limits = {"lowest offset": 0, "furthest offset": 70} if row["rotary"] != "none" else {}
    options = options_of({**row, "keys": keys_of(row), **limits}, structure, rng)
    of_context = () if row.get("context batch") == "none" else batch
    contexts = {"none": (), "context": ("context",), "both": ("context", "value_context")}[row.get("context", "none")]
    floats |= {name: rng.normal(size=(*of_context, row["keys"], _WIDTHS[name])) for name in contexts}
    d_keys = _WIDTHS["context"] if contexts else d_model
    d_values = _WIDTHS["value_context"] if len(contexts) == 2 else d_keys
    layer = _heads(row, (d_model, d_keys, d_values, d_out), rng)
    dropped: tuple[str, ...] = ()
    seed = int(structure.integers(2**32)) if row.get("keep") == "by a seed" else None
    if op == "encoder_layer":
        norms = {name: _norm(row, name, d_model, rng) for name in ("norm_1", "norm_2", "post_norm_1", "post_norm_2")}
        network = _network(row, d_model, d_out, rng)
        layer = mha.EncoderLayer(attention=layer, feed_forward=network, norm_first=row["norm_first"], **norms)
        dropped = {"none": (), "both": _SUBLAYERS}.get(row["dropout"], (row["dropout"],))
    keeps = {f"keep of {name}": rng.random((*batch, row["queries"], d_model)) > _RATE for name in dropped}
    layer = _in_dtype_of_weights(row, layer)
    arrays, others = floats | options.floats | _floats(layer), options.others | keeps | _integers(layer)
    return LayerProblem(row, arrays, others, op=op, layer=layer, options=options, dropped=dropped, seed=seed)


def plain_layer_problem(op: str, rng: np.random.Generator, **axes: Any) -> LayerProblem:
    """Draw a call of a layer: d_model 16, four heads, d_ff 24, and no option but those that ``axes`` name."""
    return layer_problem(op, PLAIN_ROW | axes, rng, rng)


def stack_problem(op: str, layer: Any, rng: np.random.Generator, *, memory: int = 0, **axes: Any) -> LayerProblem:
    """Draw a call of a stack of layers, or of a decoder layer, of d_model 16 over ``memory``; noise is added to all weights."""
    row = PLAIN_ROW | {"batch": "none"} | axes
    noisy = layer.map(lambda w: w + 0.3 * rng.normal(size=w.shape))
    floats = {name: rng.normal(size=(n, 16)) for name, n in (("x", row["queries"]), ("memory", memory)) if n}
    options = None if memory else options_of({**row, "keys": keys_of(row)}, rng, rng)
    return LayerProblem(row, floats | noisy.arrays(), op=op, layer=noisy, options=options)


def _in_dtype_of_weights(row: Row, layer: Any) -> Any:
    return layer.quantized() if row.get("weights") == "int8" else layer


def _floats(layer: Any) -> dict[str, np.ndarray]:
    return {name: x for name, x in layer.arrays().items() if x.dtype.kind == "f"}


def _integers(layer: Any) -> dict[str, np.ndarray]:
    return {name: x for name, x in layer.arrays().items() if x.dtype.kind != "f"}


def _parts(chosen: str, *both: str) -> Iterable[str]:
    return {"both": both, "none": ()}.get(chosen, (chosen,))


def _norm(row: Row, name: str, width: int, rng: np.random.Generator) -> Any:
    parts = _parts(row.get(f"parts of {name}", "both"), "weight", "bias")
    weight: Any = 1 + 0.3 * rng.normal(size=width) if "weight" in parts else None
    bias: Any = 0.3 * rng.normal(size=width) if "bias" in parts else None
    eps = row.get(f"eps of {name}", 1e-5)
    if row[name] in ("none", "Identity"):
        return None if row[name] == "none" else mha.Identity()
    return mha.RMSNorm(weight, eps) if row[name] == "RMSNorm" else mha.LayerNorm(weight, bias, eps)


def _heads(row: Row, widths: tuple[int, ...], rng: np.random.Generator) -> mha.MultiHeadAttention:
    """Return multi-head attention from the widths of x, the keys' and the values' source, and the result."""
    d_model, d_keys, d_values, d_out = widths
    kv, heads, width = row["kv_heads"], heads_of(row), row["head_dim"]
    of_value = width if row["value_dim"] == "the same" else row["value_dim"]
    shapes = {
        "w_q": (d_model, heads * width),
        "w_k": (d_keys, kv * width),
        "w_v": (d_values, kv * of_value),
        "w_o": (heads * of_value, d_out),
    }
    fields: dict[str, Any] = _weights(shapes, row["b of heads"], rng)
    fields |= {name: _norm(row, name, width, rng) for name in ("norm_q", "norm_k")}
    if row["rotary"] != "none":
        pairs = width // 4 if row["rotary"] == "half of them" else width // 2
        angles = rng.normal(size=(row["queries"] + 80, pairs)) * 2
        fields["rotary"] = mha.Rotary(np.cos(angles), np.sin(angles), interleaved=row["rotary"] == "interleaved")
    if row["groups"] > 1 or row["kv_heads given"]:
        fields["num_kv_heads"] = kv
    return mha.MultiHeadAttention(num_heads=heads, **fields)


def _network(row: Row, d_model: int, d_out: int, rng: np.random.Generator) -> mha.FeedForward:
    d_ff = row["d_ff"]
    shapes = {"w_1": (d_model, d_ff), "w_2": (d_ff, d_out)} | ({"w_g": (d_model, d_ff)} if row["gate"] != "none" else {})
    biases = [*_parts(row["b of network"], "b_1", "b_2"), *(["b_g"] if row["gate"] == "w_g and b_g" else [])]
    fields: dict[str, Any] = dict.fromkeys(("b_1", "b_2")) | _weights(shapes, biases, rng)
    return mha.FeedForward(**fields, activation=row["activation"])


def _weights(shapes: Mapping[str, tuple[int, int]], biases: Iterable[str], rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Return matrices of these shapes, and biases: ``b_q`` is as wide as ``w_q``."""
    weights = {name: rng.normal(size=shape) / np.sqrt(shape[0]) for name, shape in shapes.items()}
    return weights | {name: 0.3 * rng.normal(size=shapes[f"w_{name[-1]}"][1]) for name in biases}
