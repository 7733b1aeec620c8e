"""Attention, layers and a text encoder in plain NumPy, the baseline of the benchmarks.

The code follows the papers directly, without optimization. The cost of a backend is its time divided by the time of this code.
In float64 the text encoder is also the exact answer that vectors are checked against. This module does not use mha_core.

Sources: Vaswani et al. 2017 (attention, encoder layer); Devlin et al. 2019 (embeddings, GELU); the model card of
sentence-transformers/all-MiniLM-L6-v2 (mean over the tokens, then length 1).
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

PLAIN = "plain NumPy"
"""The name of this baseline in tables."""

Array = np.ndarray[Any, Any]


def _weights(query: Array, key: Array, allowed: Array | None) -> Array:
    """Return softmax(Q K^T / sqrt(d)), with scores of -inf where a key is not allowed."""
    scores = query @ key.swapaxes(-1, -2) / math.sqrt(query.shape[-1])
    if allowed is not None:
        scores = np.where(allowed, scores, -np.inf)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    normalised: Array = weights / weights.sum(axis=-1, keepdims=True)
    return normalised


def attention(query: Array, key: Array, value: Array, allowed: Array | None = None) -> Array:
    """Return softmax(Q K^T / sqrt(d)) V; fewer key heads are repeated."""
    groups = query.shape[-3] // key.shape[-3]
    if groups > 1:
        key, value = np.repeat(key, groups, axis=-3), np.repeat(value, groups, axis=-3)
    return _weights(query, key, allowed) @ value


def attention_gradients(
    query: Array, key: Array, value: Array, d_out: Array, allowed: Array | None = None
) -> tuple[Array, Array, Array]:
    """Return the gradients of Q, K and V (Dao et al. 2022, appendix B.2), for as many heads of keys as of queries."""
    weights, d_weights = _weights(query, key, allowed), d_out @ value.swapaxes(-1, -2)
    d_scores = weights * (d_weights - (weights * d_weights).sum(axis=-1, keepdims=True)) / math.sqrt(query.shape[-1])
    return d_scores @ key, d_scores.swapaxes(-1, -2) @ query, weights.swapaxes(-1, -2) @ d_out


def multi_head(x: Array, w_q: Array, w_k: Array, w_v: Array, w_o: Array, num_heads: int) -> Array:
    """Return Concat(head_1, ..., head_h) W_O for x (..., L, d_model)."""
    out = attention(*(_heads(x @ w, num_heads) for w in (w_q, w_k, w_v))).swapaxes(-2, -3)
    return out.reshape(*x.shape[:-1], -1) @ w_o


def _heads(y: Array, count: int) -> Array:
    """(..., L, count * d) -> (..., count, L, d)."""
    return y.reshape(*y.shape[:-1], count, -1).swapaxes(-2, -3)


def layer_norm(x: Array, weight: Array, bias: Array, eps: float = 1e-5) -> Array:
    return (x - x.mean(axis=-1, keepdims=True)) / np.sqrt(x.var(axis=-1, keepdims=True) + eps) * weight + bias


def gelu(x: Array) -> Array:
    """Return x Phi(x), with the error function of Abramowitz and Stegun 7.1.26, whose error is at most 1.5e-7."""
    z = np.abs(x) / math.sqrt(2)
    t = 1 / (1 + 0.3275911 * z)
    tail = t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429)))) * np.exp(-z * z)
    return x * (1 + np.copysign(1 - tail, x)) / 2


def exact_gelu(x: Array) -> Array:
    """Return x Phi(x) in float64 to 4e-9, with the error function interpolated between 65537 points."""
    return x * (1 + np.interp(x / math.sqrt(2), *_error_function())) / 2


@cache
def _error_function() -> tuple[Array, Array]:
    points = np.linspace(-6, 6, 2**16 + 1)
    return points, np.asarray([math.erf(point) for point in points.tolist()])


def encoder_layer(x: Array, layer: Any) -> Array:
    """Return LayerNorm(y + FeedForward(y)) with y = LayerNorm(x + MultiHead(x)), for an mha_core layer on NumPy."""
    a, f = layer.attention, layer.feed_forward
    projected = (x @ a.w_q + a.b_q, x @ a.w_k + a.b_k, x @ a.w_v + a.b_v)
    out = attention(*(_heads(y, a.num_heads) for y in projected)).swapaxes(-2, -3)
    x = layer_norm(x + out.reshape(x.shape) @ a.w_o + a.b_o, layer.norm_1.weight, layer.norm_1.bias)
    return layer_norm(x + gelu(x @ f.w_1 + f.b_1) @ f.w_2 + f.b_2, layer.norm_2.weight, layer.norm_2.bias)


def operations(weights: int, layers: int, width: int, lengths: Iterable[int]) -> int:
    """Return the operations of the matrix products of an encoder: with its weights, and QK^T and AV of each layer."""
    lengths = list(lengths)
    return 2 * (weights * sum(lengths) + 2 * layers * width * sum(length**2 for length in lengths))


class Bert:
    """A BERT encoder from its files, one text at a time. ``weights`` replaces the arrays of model.safetensors."""

    def __init__(
        self,
        folder: Path,
        dtype: str = "float32",
        gelu: Callable[[Array], Array] = gelu,
        weights: Mapping[str, Array] | None = None,
    ) -> None:
        from safetensors.numpy import load_file
        from tokenizers import Tokenizer

        self._gelu = gelu
        self._config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        self._limit = json.loads((folder / "sentence_bert_config.json").read_text(encoding="utf-8"))["max_seq_length"]
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.tokenizer.no_padding()
        self.tokenizer.no_truncation()
        stored = load_file(folder / "model.safetensors") if weights is None else weights
        self._weights = {name: w.astype(dtype) for name, w in stored.items() if w.dtype.kind == "f"}

    def operations(self, lengths: Iterable[int]) -> int:
        """Return the operations of the matrix products for texts of these lengths in tokens."""
        weights = sum(w.size for name, w in self._weights.items() if name.startswith("encoder.layer.") and w.ndim == 2)
        return operations(weights, int(self._config["num_hidden_layers"]), int(self._config["hidden_size"]), lengths)

    def ids(self, text: str) -> list[int]:
        """Return the token ids. A text beyond the limit is truncated and still ends with [SEP]."""
        ids: list[int] = self.tokenizer.encode(text).ids
        return ids if len(ids) <= self._limit else [*ids[: self._limit - 1], ids[-1]]

    def hidden(self, text: str) -> Array:
        """Return the last layer's hidden states (tokens, hidden_size)."""
        ids, w = self.ids(text), self._weights
        x = w["embeddings.word_embeddings.weight"][ids] + w["embeddings.position_embeddings.weight"][: len(ids)]
        x = self._norm(x + w["embeddings.token_type_embeddings.weight"][0], "embeddings.LayerNorm")
        for at in range(self._config["num_hidden_layers"]):
            layer = f"encoder.layer.{at}"
            x = self._norm(x + self._attention(x, f"{layer}.attention"), f"{layer}.attention.output.LayerNorm")
            inner = self._gelu(self._linear(x, f"{layer}.intermediate.dense"))
            x = self._norm(x + self._linear(inner, f"{layer}.output.dense"), f"{layer}.output.LayerNorm")
        return x

    def _attention(self, x: Array, name: str) -> Array:
        projected = (self._linear(x, f"{name}.self.{kind}") for kind in ("query", "key", "value"))
        out = attention(*(_heads(y, self._config["num_attention_heads"]) for y in projected))
        return self._linear(out.swapaxes(0, 1).reshape(x.shape), f"{name}.output.dense")

    def _linear(self, x: Array, name: str) -> Array:
        y: Array = x @ self._weights[f"{name}.weight"].T + self._weights[f"{name}.bias"]
        return y

    def _norm(self, x: Array, name: str) -> Array:
        return layer_norm(x, self._weights[f"{name}.weight"], self._weights[f"{name}.bias"], self._config["layer_norm_eps"])


class TextEncoder(Bert):
    """A BERT sentence encoder, one text after another. ``encoder(texts)`` returns (len(texts), hidden_size).

    Raises ValueError for a model whose vectors are not means of length 1.
    """

    def __init__(self, folder: Path, dtype: str = "float32", gelu: Callable[[Array], Array] = gelu) -> None:
        _check_pooling(folder)
        super().__init__(folder, dtype, gelu)

    def __call__(self, texts: Iterable[str]) -> Array:
        vectors = np.stack([self.hidden(text).mean(axis=0) for text in texts])
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def _check_pooling(folder: Path) -> None:
    """Raise ValueError for a model whose vectors are not means scaled to length 1."""
    modules = json.loads((folder / "modules.json").read_text(encoding="utf-8"))
    kinds = [module["type"].rpartition(".")[2] for module in modules]
    if kinds != ["Transformer", "Pooling", "Normalize"]:
        raise ValueError(f"{folder} has the modules {', '.join(kinds)}; expected Transformer, Pooling, Normalize")
    pooling = json.loads((folder / modules[1]["path"] / "config.json").read_text(encoding="utf-8"))
    modes = [name for name, chosen in pooling.items() if name.startswith("pooling_mode_") and chosen]
    if modes != ["pooling_mode_mean_tokens"]:
        raise ValueError(f"{folder} has {', '.join(modes) or 'no pooling mode'}; expected pooling_mode_mean_tokens")
