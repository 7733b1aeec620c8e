"""Calls of layers from the rows of a covering design."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

import mha_core as mha

from ..oracle.attention import Floats
from ..oracle.layers import Layers, bounded
from ..oracle.tolerance import compute_dtype
from .attention_axes import batch_shape
from .covering import Row
from .layer_axes import keys_of
from .options import Options, heads_of, options_of
from .problem import Bounded, Problem

_RATE = 0.25


@dataclass
class LayerProblem(Problem):
    """A call of a layer operation; its result is named after the operation."""

    op: str = ""
    options: Options | None = None

    def call(self, arrays: Mapping[str, Any]) -> dict[str, Any]:
        options = {} if self.options is None else self.options.make(arrays)
        layer, x = self.layer(arrays), arrays["x"]
        if self.op == "feed_forward":
            return {self.op: layer(x)}
        if self.op == "multi_head_attention":
            return {self.op: layer(x, context=arrays.get("context"), value_context=arrays.get("value_context"), **options)}
        keeps = {name: arrays[f"keep of {name}"] for name in self._dropped()}
        return {self.op: layer(x, dropout=mha.Dropout(_RATE, keeps) if keeps else None, **options)}

    def layer(self, arrays: Mapping[str, Any]) -> Any:
        """Return the layer that these arrays are the weights of."""
        if self.op == "feed_forward":
            return self._network("", arrays)
        if self.op == "multi_head_attention":
            return self._heads("", arrays)
        return mha.EncoderLayer(
            self._heads("attention.", arrays),
            self._norm("norm_1", arrays),
            self._network("feed_forward.", arrays),
            self._norm("norm_2", arrays),
            self.row["norm_first"],
            *(self._norm(name, arrays) if self.row[name] != "none" else None for name in ("post_norm_1", "post_norm_2")),
        )

    def _heads(self, prefix: str, arrays: Mapping[str, Any]) -> mha.MultiHeadAttention:
        row, weights = self.row, _below(prefix, arrays)
        given: dict[str, Any] = {}
        if row["rotary"] != "none":
            tables = weights["rotary.cos"], weights["rotary.sin"]
            given["rotary"] = mha.Rotary(*tables, interleaved=row["rotary"] == "interleaved")
        if row["groups"] > 1 or row["kv_heads given"]:
            given["num_kv_heads"] = row["kv_heads"]
        given |= {name: self._norm(name, weights) for name in ("norm_q", "norm_k") if row[name] != "none"}
        names = ("w_q", "w_k", "w_v", "w_o", "b_q", "b_k", "b_v", "b_o")
        given |= {name: weights[name] for name in names if name in weights}
        return mha.MultiHeadAttention(num_heads=heads_of(row), **given)

    def _network(self, prefix: str, arrays: Mapping[str, Any]) -> mha.FeedForward:
        weights = _below(prefix, arrays)
        given: dict[str, Any] = {name: weights.get(name) for name in ("w_1", "b_1", "w_2", "b_2", "w_g", "b_g")}
        return mha.FeedForward(**given, activation=self.row["activation"])

    def _norm(self, name: str, arrays: Mapping[str, Any]) -> Any:
        weight, bias, eps = arrays.get(f"{name}.weight"), arrays.get(f"{name}.bias"), self.row.get(f"eps of {name}", 1e-5)
        if self.row[name] == "Identity":
            return mha.Identity()
        return mha.RMSNorm(weight, eps) if self.row[name] == "RMSNorm" else mha.LayerNorm(weight, bias, eps)

    def _dropped(self) -> list[str]:
        given = self.row.get("dropout", "none")
        return ["attention", "feed_forward"] if given == "both" else [given] if given != "none" else []

    def compute(self, layers: Layers, floats: Mapping[str, Floats]) -> Floats:
        """Compute with the oracle, which may move its steps."""
        layer, x, given = self.layer(floats), floats["x"], {}
        if self.options is not None:
            given = self.options.oracle(floats, compute_dtype(layers.dtype))
            given["offset"] = self.others.get("query_offset", self.options.offset)
        if self.op == "feed_forward":
            return layers.feed_forward(x, layer)
        if self.op == "multi_head_attention":
            contexts: dict[str, Any] = {name: floats.get(name) for name in ("context", "value_context")}
            return layers.multi_head(x, layer, **contexts, **given)
        kept = {name: self.others[f"keep of {name}"] / (1 - _RATE) for name in self._dropped()}
        return layers.encoder_layer(x, layer, kept=kept, **given)

    def exact(self, floats: Mapping[str, Floats]) -> dict[str, Floats]:
        return {self.op: self.compute(Layers(), floats)}

    def expected(self, floats: Mapping[str, Floats], dtype: str, *, rounds_weights: bool) -> dict[str, Bounded]:
        rng = np.random.default_rng(0)
        return bounded(lambda layers: {self.op: self.compute(layers, floats)}, dtype, rounds_weights=rounds_weights, rng=rng)

    def layout(self, name: str) -> tuple[str, int]:
        activations = ("x", "context", "value_context")
        return self.row["layout" if name in activations or name in self.others else "layout of w"], 0


def _below(prefix: str, arrays: Mapping[str, Any]) -> dict[str, Any]:
    return {name.removeprefix(prefix): x for name, x in arrays.items() if name.startswith(prefix)}


def layer_problem(op: str, row: Row, structure: np.random.Generator, rng: np.random.Generator) -> LayerProblem:
    """Draw a call whose axes have the values of ``row``: see ``options_of`` for the two generators."""
    batch, d_model = batch_shape(row), row["d_model"]
    d_out = row.get("d_out") or d_model
    floats = {"x": rng.normal(size=(*batch, row["queries"], d_model)) * row["spread"]}
    others: dict[str, np.ndarray] = {}
    options = None
    if op != "feed_forward":
        given = {**row, "keys": keys_of(row), "lowest offset": 0 if row["rotary"] != "none" else -3}
        options = options_of(given, structure, rng)
        floats |= options.floats
        others |= options.others
        prefix = "" if op == "multi_head_attention" else "attention."
        contexts = {"none": (), "context": ("context",), "both": ("context", "value_context")}[row.get("context", "none")]
        widths = {"context": 12, "value_context": 7}
        of_context = () if row.get("context batch") == "none" else batch
        floats |= {name: rng.normal(size=(*of_context, row["keys"], widths[name])) for name in contexts}
        d_keys = 12 if contexts else d_model
        d_values = 7 if len(contexts) == 2 else d_keys
        weights = _weights_of_heads(row, d_model, d_keys, d_values, d_out, rng)
        floats |= {f"{prefix}{name}": x for name, x in weights.items()}
    if op != "multi_head_attention":
        prefix = "" if op == "feed_forward" else "feed_forward."
        weights = _weights_of_network(row, d_model, d_out, rng)
        floats |= {f"{prefix}{name}": x for name, x in weights.items()}
    problem = LayerProblem(row, floats, others, op=op, options=options)
    if op == "encoder_layer":
        for norm in ("norm_1", "norm_2"):
            parts = {"both": ("weight", "bias"), "none": ()}.get(row[f"parts of {norm}"], (row[f"parts of {norm}"],))
            floats |= _weights_of_norm(norm, row, d_model, rng, parts)
        for norm in ("post_norm_1", "post_norm_2"):
            floats |= _weights_of_norm(norm, row, d_model, rng)
        others |= {f"keep of {name}": rng.random((*batch, row["queries"], d_model)) > _RATE for name in problem._dropped()}
    return problem


def _weights_of_norm(
    name: str, row: Row, width: int, rng: np.random.Generator, parts: Iterable[str] = ("weight", "bias")
) -> dict[str, np.ndarray]:
    has = {"LayerNorm": ("weight", "bias"), "RMSNorm": ("weight",)}.get(row[name], ())
    return {f"{name}.{part}": 1.0 * (part == "weight") + 0.3 * rng.normal(size=width) for part in parts if part in has}


def _weights_of_heads(
    row: Row, d_model: int, d_keys: int, d_values: int, d_out: int, rng: np.random.Generator
) -> dict[str, np.ndarray]:
    kv, heads, width = row["kv_heads"], heads_of(row), row["head_dim"]
    of_value = width if row["value_dim"] == "the same" else row["value_dim"]
    shapes = {
        "w_q": (d_model, heads * width),
        "w_k": (d_keys, kv * width),
        "w_v": (d_values, kv * of_value),
        "w_o": (heads * of_value, d_out),
    }
    found = {name: rng.normal(size=shape) / np.sqrt(shape[0]) for name, shape in shapes.items()}
    found |= {name: 0.3 * rng.normal(size=shapes[f"w_{name[-1]}"][1]) for name in row["b of heads"]}
    for norm in ("norm_q", "norm_k"):
        found |= _weights_of_norm(norm, row, width, rng)
    if row["rotary"] != "none":
        pairs = width // 4 if row["rotary"] == "half of them" else width // 2
        angles = rng.normal(size=(row["queries"] + 80, pairs)) * 2
        found |= {"rotary.cos": np.cos(angles), "rotary.sin": np.sin(angles)}
    return found


def _weights_of_network(row: Row, d_model: int, d_out: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
    d_ff = row["d_ff"]
    shapes = {"w_1": (d_model, d_ff), "w_2": (d_ff, d_out)} | ({"w_g": (d_model, d_ff)} if row["gate"] != "none" else {})
    found = {name: rng.normal(size=shape) / np.sqrt(shape[0]) for name, shape in shapes.items()}
    parts = {"both": ("b_1", "b_2"), "none": ()}.get(row["b of network"], (row["b of network"],))
    biases = [*parts, *(["b_g"] if row["gate"] == "w_g and b_g" else [])]
    return found | {name: 0.3 * rng.normal(size=shapes[f"w_{name[-1]}"][1]) for name in biases}
