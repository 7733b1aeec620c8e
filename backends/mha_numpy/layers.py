"""The linear map, the feed-forward network and the encoder layer, by chunks of tokens: a thread takes one through all of it.

A chunk's hidden features stay in cache between the two products, and the same memory serves all chunks. What is made here is
written to; arguments never are.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from mha_core import scaled_dot_product_attention

from . import blas
from .activations import activate
from .norms import normed, supports
from .scratch import scratch
from .threads import num_threads, run

__all__ = ["encoder_layer", "feed_forward", "linear", "supports"]

_SEQUENCES = 512  # tokens of whole sequences in a chunk, about
_TOKENS = 1024  # of which a thread computes what does not look at other tokens: fewer make products slower
_PRODUCT = 1 << 23  # multiplications for which another thread is worth waking
_HIDDEN = 1 << 21  # bytes of hidden features that are there at a time


def linear(x: np.ndarray, w: np.ndarray, b: np.ndarray | None) -> np.ndarray:
    """x w + b, the sum in place; few tokens by columns, as a BLAS held at one thread would not share them out."""
    y = np.empty((*x.shape[:-1], w.shape[1]), dtype=x.dtype)
    tokens, to, columns = _rows(x), y.reshape(-1, w.shape[1]), w.shape[1]
    by_column = len(tokens) < _SEQUENCES
    size = max(16, _PRODUCT // x.size) if by_column else _SEQUENCES

    def part(at: int) -> None:
        own = (slice(None), slice(at, at + size)) if by_column else (slice(at, at + size), slice(None))
        np.matmul(tokens[own[0]], w[:, own[1]], out=to[own])
        if b is not None:
            to[own] += b[own[1]]

    with np.errstate(all="ignore"):  # NaN and infinity in, NaN and infinity out
        if x.size * columns <= blas.SMALL:
            size = columns if by_column else len(tokens)
            part(0)
        else:
            run(part, range(0, columns if by_column else len(tokens), size))
    return y


def feed_forward(
    x: np.ndarray,
    w_1: np.ndarray,
    b_1: np.ndarray | None,
    w_2: np.ndarray,
    b_2: np.ndarray | None,
    *,
    activation: str,
    w_g: np.ndarray | None = None,
    b_g: np.ndarray | None = None,
) -> np.ndarray:
    """f(x w_1 + b_1) w_2 + b_2, or with a gate (f(x w_1 + b_1) * (x w_g + b_g)) w_2 + b_2."""
    out = np.empty((*x.shape[:-1], w_2.shape[1]), dtype=x.dtype)
    tokens, to = _rows(x), _rows(out)

    def chunk(rows: slice) -> None:
        _feed_forward(tokens[rows], w_1, b_1, w_2, b_2, activation, w_g, b_g, to[rows])

    _by_tokens(chunk, len(tokens))
    return out


def _feed_forward(
    x: np.ndarray, w_1: Any, b_1: Any, w_2: Any, b_2: Any, activation: str, w_g: Any, b_g: Any, out: np.ndarray
) -> None:
    """In as many rows at a time as leave the hidden features in cache."""
    size = max(16, _HIDDEN // (w_1.shape[1] * x.dtype.itemsize * (1 if w_g is None else 2)))
    for at in range(0, len(x), size):
        part, to = x[at : at + size], out[at : at + size]
        hidden = np.matmul(part, w_1, out=scratch("hidden features", (len(part), w_1.shape[1]), x.dtype))
        activate(activation, hidden, b_1)
        if w_g is not None:
            gate = np.matmul(part, w_g, out=scratch("gate", hidden.shape, x.dtype))
            if b_g is not None:
                gate += b_g
            hidden *= gate
        np.matmul(hidden, w_2, out=to)
        if b_2 is not None:
            to += b_2


def encoder_layer(layer: Any, x: np.ndarray, **options: Any) -> np.ndarray:
    """By chunks of whole sequences; where they are long, or options may have a batch axis of their own, step by step."""
    out = np.empty(x.shape, dtype=x.dtype)
    threads, count = num_threads(), len(x)
    alike = count >= 2 * threads or count % threads == 0  # so that no thread waits long for another at the end
    if x.ndim < 3 or not alike or x[0].size > 2 * _SEQUENCES * x.shape[-1] or _has_arrays(options):
        _encode(layer, x, options, out)
    else:
        together = -(-count // _multiple(x.size // x.shape[-1] / _SEQUENCES, threads))
        chunks = [slice(at, at + together) for at in range(0, count, together)]
        run(lambda some: _encode(layer, x[some], options, out[some]), chunks)
    return out


def _has_arrays(options: dict[str, Any]) -> bool:
    """Whether mask, bias or offset hold arrays: these may have batch axes of their own. A sink has none."""
    terms = [option for name, option in options.items() if name not in ("scale", "softcap", "sink")]
    return not all(
        isinstance(term, int) or (hasattr(term, "arrays") and not any(True for _ in term.arrays())) for term in terms
    )


def _encode(layer: Any, x: np.ndarray, options: dict[str, Any], out: np.ndarray) -> None:
    tokens, to, a = _rows(x), _rows(out), layer.attention
    num_kv_heads = a.num_heads if a.num_kv_heads is None else a.num_kv_heads
    projections = ((a.w_q, a.b_q, a.num_heads), (a.w_k, a.b_k, num_kv_heads), (a.w_v, a.b_v, num_kv_heads))
    made = [np.empty((len(tokens), w.shape[1]), dtype=x.dtype) for w, _, _ in projections]

    def project(rows: slice) -> None:
        part = _normed(layer.norm_1, tokens[rows]) if layer.norm_first else tokens[rows]
        for (w, b, _), y in zip(projections, made, strict=True):
            np.matmul(part, w, out=y[rows])
            if b is not None:
                y[rows] += b

    _by_tokens(project, len(tokens))
    heads = (_heads(y.reshape(*x.shape[:-1], -1), count) for y, (_, _, count) in zip(made, projections, strict=True))
    attended: Any = scaled_dot_product_attention(*heads, **options)
    attended = _rows(attended.swapaxes(-2, -3).reshape(*x.shape[:-1], -1))
    _by_tokens(partial(_after_attention, layer, tokens, attended, to), len(tokens))


def _after_attention(layer: Any, x: np.ndarray, attended: np.ndarray, out: np.ndarray, rows: slice) -> None:
    """Of some rows, which no longer look at one another."""
    a, f = layer.attention, layer.feed_forward
    y = np.matmul(attended[rows], a.w_o, out=scratch("tokens", out[rows].shape, x.dtype))
    if a.b_o is not None:
        y += a.b_o
    y += x[rows]
    narrow = _normed(layer.norm_2, y) if layer.norm_first else _normed(layer.norm_1, y, y)
    _feed_forward(narrow, f.w_1, f.b_1, f.w_2, f.b_2, f.activation, None, None, out[rows])
    out[rows] += y
    if not layer.norm_first:
        _normed(layer.norm_2, out[rows], out[rows])


def _normed(norm: Any, x: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
    to = scratch("normed", x.shape, x.dtype) if out is None else out
    normed(x, norm.weight, norm.bias, norm.eps, to)
    return to


def _heads(x: np.ndarray, count: int) -> np.ndarray:
    """(..., length, count * d) -> (..., count, length, d), a view."""
    return x.reshape(*x.shape[:-1], count, -1).swapaxes(-2, -3)


def _rows(x: np.ndarray) -> np.ndarray:
    """(..., d) -> (tokens, d); a copy where the axes cannot be seen as one, and where a BLAS could not read it."""
    return np.ascontiguousarray(x).reshape(-1, x.shape[-1])


def _by_tokens(function: Callable[[slice], None], count: int) -> None:
    """As many chunks for each thread, of one size."""
    size = -(-count // _multiple(count / _TOKENS, num_threads()))

    def chunk(at: int) -> None:
        with np.errstate(all="ignore"):  # NaN and infinity in, NaN and infinity out
            function(slice(at, min(count, at + size)))

    run(chunk, range(0, count, size))


def _multiple(count: float, threads: int) -> int:
    """The multiple of ``threads`` that is nearest, but at least one."""
    return threads * max(1, round(count / threads))
