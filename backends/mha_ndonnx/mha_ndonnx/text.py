"""Text encoders as functions of padded batches, to be traced."""

import math
from collections.abc import Callable
from typing import Any

import ndonnx as ndx
from ndonnx import Array

from .arrays import size_of


def sentence_vectors(encoder: Any, normalize: bool | None) -> Callable[[Array, Array], dict[str, Array]]:
    """Return the function (ids, attention mask), both (batch, length), -> the vectors of ``encoder.encode`` by name."""
    model, modes, dense = encoder.model.to("ndonnx"), encoder.pooling.modes, [x.to("ndonnx") for x in encoder.dense]

    def vectors(ids: Array, attention_mask: Array) -> dict[str, Array]:
        keep = attention_mask != 0
        x = model.embed(ids, _positions(ids, model.padding))
        hidden = model.encoder(x, mask=keep[:, None, None, :], bias=model.bias)
        pooled = ndx.concat([_pooled(mode, hidden, keep) for mode in modes], axis=-1)
        for layer in dense:
            pooled = layer(pooled)
        if normalize is None and encoder.pooling.normalize:
            pooled = _unit(pooled)
        if encoder.dim < encoder.width:
            pooled = pooled[:, : encoder.dim]
        return {"sentence_embedding": _unit(pooled) if normalize else pooled}

    return vectors


def _positions(ids: Array, padding: int | None) -> Array:
    """Return the row of each token in the table of positions, (length,) or (batch, length), as ``TextModel.position_ids``."""
    if padding is None:
        return ndx.arange(size_of(ids, 1))
    is_token = ids != padding
    count = ndx.cumulative_sum(ndx.astype(is_token, ndx.int64), axis=1)
    return ndx.where(is_token, padding + count, padding)


def _pooled(mode: str, hidden: Array, keep: Array) -> Array:
    """(batch, length, d) -> (batch, d), over the tokens to keep."""
    if mode == "cls":
        return hidden[:, 0, :]
    if mode == "max":
        return ndx.max(ndx.where(keep[..., None], hidden, -math.inf), axis=1)
    count = ndx.sum(ndx.astype(keep, hidden.dtype), axis=1, keepdims=True)
    numbers = ndx.astype(ndx.arange(size_of(hidden, 1)), hidden.dtype) + 1  # of the tokens, from 1
    if mode == "lasttoken":
        return ndx.sum(ndx.where((numbers == count)[..., None], hidden, 0), axis=1)
    if mode == "weightedmean":
        weights = ndx.where(keep, numbers, 0)
        total = ndx.sum(weights, axis=1, keepdims=True)
        return ndx.sum(hidden * weights[..., None], axis=1) / ndx.where(total == 0, 1, total)
    total = ndx.sum(ndx.where(keep[..., None], hidden, 0), axis=1)
    count = ndx.where(count == 0, 1, count)  # a text without tokens has vector 0
    return total / {"mean": count, "mean_sqrt_len_tokens": ndx.sqrt(count)}[mode]


def _unit(x: Array) -> Array:
    norm = ndx.sqrt(ndx.sum(x * x, axis=-1, keepdims=True))
    return x / ndx.where(norm < 1e-12, 1e-12, norm)
