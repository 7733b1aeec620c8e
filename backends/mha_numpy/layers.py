"""The feed-forward network and the encoder layer, in chunks of tokens.

A thread takes a chunk through as many steps as possible. A chunk's hidden features stay in cache between the two products, and
all chunks of a thread use the same memory. Arrays allocated here are overwritten; arguments never are.

Another plugin may bring faster activations, norms and products: its kernels are the methods of a ``Chunks`` with these.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from mha_core import scaled_dot_product_attention
from mha_core.plugin import Call

from .activations import activate
from .linear import as_rows
from .norms import normed
from .norms import supports as supports_norms
from .pool import threads_here
from .scratch import scratch
from .threads import run

_SEQUENCES = 512  # approximate number of tokens in a chunk of whole sequences
_TOKENS = 1024  # tokens in a chunk for steps that treat each token separately; fewer make products slower
_FEW = 32  # tokens, for which weights are read and not much else: the linear map cuts their columns
_WEIGHT = 1 << 20  # numbers of a weight that is worth another thread
_HIDDEN = 1 << 21  # bytes of hidden features that a thread holds at a time, beside as many of a gate
_ROWS = 256  # tokens held at least; with 128 a network of 1024 and 3072 features takes 1.14 times as long


def supports(call: Call) -> str | None:
    """Return why layers are not computed in chunks of tokens, or None."""
    largest = max((math.prod(shape) for name, shape in call.shapes if name != "x"), default=0)
    if math.prod((call.shape("x") or ())[:-1]) < _FEW and largest >= _WEIGHT:
        return "few tokens: their products are cut by columns, one after another"
    return supports_norms(call)


def _linear(x: np.ndarray, w: Any, b: np.ndarray | None, out: np.ndarray) -> None:
    np.matmul(x, w, out=out)
    if b is not None:
        out += b


class Workers(NamedTuple):
    """What computes tasks in parallel."""

    run: Callable[[Callable[[Any], None], Iterable[Any]], None]
    """Calls a function with each item; calls of several threads at once."""
    num_threads: Callable[[], int]
    """Returns how many threads compute tasks; 1 inside of one."""


_WORKERS = Workers(run, threads_here)


class Chunks(NamedTuple):
    """The layers, with an activation, a norm and a linear map of rows, attention, and what computes chunks in parallel."""

    activate: Callable[[str, np.ndarray, np.ndarray | None], None] = activate
    """Replaces x (rows, features) by f(x + bias); f is named."""
    normed: Callable[[np.ndarray, np.ndarray | None, np.ndarray | None, float, np.ndarray], None] = normed
    """Writes the layer norm of x (rows, features), given weight, bias and eps, to an array, which may be x."""
    linear: Callable[[np.ndarray, Any, np.ndarray | None, np.ndarray], None] = _linear
    """Writes x w + b to an array; w is of whatever kind the weights of the layers are."""
    attend: Callable[..., Any] = scaled_dot_product_attention
    """Returns the attention of queries, keys and values (..., heads, length, d), with the options that a layer was given."""
    workers: Workers = _WORKERS
    """Compute the chunks."""

    def feed_forward(
        self,
        x: np.ndarray,
        w_1: Any,
        b_1: np.ndarray | None,
        w_2: Any,
        b_2: np.ndarray | None,
        *,
        activation: str,
        w_g: Any = None,
        b_g: np.ndarray | None = None,
    ) -> np.ndarray:
        """f(x w_1 + b_1) w_2 + b_2, or with a gate (f(x w_1 + b_1) * (x w_g + b_g)) w_2 + b_2."""
        out = np.empty((*x.shape[:-1], w_2.shape[1]), dtype=x.dtype)
        tokens, to = as_rows(x), as_rows(out)

        def chunk(rows: slice) -> None:
            self._feed_forward(tokens[rows], w_1, b_1, w_2, b_2, activation, w_g, b_g, to[rows])

        self._run_chunks(chunk, len(tokens))
        return out

    def _feed_forward(
        self, x: np.ndarray, w_1: Any, b_1: Any, w_2: Any, b_2: Any, activation: str, w_g: Any, b_g: Any, out: np.ndarray
    ) -> None:
        """Write the result to ``out``, in chunks of rows whose hidden features stay in cache."""
        size = max(_ROWS, _HIDDEN // (w_1.shape[1] * x.dtype.itemsize))
        for at in range(0, len(x), size):
            rows, to = x[at : at + size], out[at : at + size]
            hidden = scratch("hidden features", (len(rows), w_1.shape[1]), x.dtype)
            self.linear(rows, w_1, None, hidden)
            self.activate(activation, hidden, b_1)
            if w_g is not None:
                gate = scratch("gate", hidden.shape, x.dtype)
                self.linear(rows, w_g, b_g, gate)
                hidden *= gate
            self.linear(hidden, w_2, b_2, to)

    def encoder_layer(self, layer: Any, x: np.ndarray, **options: Any) -> np.ndarray:
        """Apply the layer to chunks of whole sequences.

        It is applied step by step to the whole batch if the sequences are long, if the chunks would not balance the threads,
        or if an option may have a batch axis.
        """
        out = np.empty(x.shape, dtype=x.dtype)
        if x.ndim < 3:
            self._encode(layer, x, options, out)
            return out
        threads, count = self.workers.num_threads(), len(x)
        balanced = count >= 2 * threads or count % threads == 0  # no thread waits long for another at the end
        if not balanced or x[0].size > 2 * _SEQUENCES * x.shape[-1] or _differ_in_batch(options):
            self._encode(layer, x, options, out)
        else:
            size = -(-count // _multiple(x.size // x.shape[-1] / _SEQUENCES, threads))
            chunks = [slice(at, at + size) for at in range(0, count, size)]
            self.workers.run(lambda chunk: self._encode(layer, x[chunk], options, out[chunk]), chunks)
        return out

    def _encode(self, layer: Any, x: np.ndarray, options: dict[str, Any], out: np.ndarray) -> None:
        """Write the layer's result to ``out`` in three steps: projections, attention, everything after attention."""
        tokens, to, a = as_rows(x), as_rows(out), layer.attention
        num_kv_heads = a.num_heads if a.num_kv_heads is None else a.num_kv_heads
        projections = ((a.w_q, a.b_q, a.num_heads), (a.w_k, a.b_k, num_kv_heads), (a.w_v, a.b_v, num_kv_heads))
        projected = [np.empty((len(tokens), w.shape[1]), dtype=x.dtype) for w, _, _ in projections]

        def project(rows: slice) -> None:
            chunk = self._normed(layer.norm_1, tokens[rows]) if layer.norm_first else tokens[rows]
            for (w, b, _), y in zip(projections, projected, strict=True):
                self.linear(chunk, w, b, y[rows])

        self._run_chunks(project, len(tokens))
        heads = [_heads(y.reshape(*x.shape[:-1], -1), count) for y, (_, _, count) in zip(projected, projections, strict=True)]
        attended = self.attend(*heads, **options)
        attended = as_rows(attended.swapaxes(-2, -3).reshape(*x.shape[:-1], -1))
        self._run_chunks(partial(self._after_attention, layer, tokens, attended, to), len(tokens))

    def _after_attention(self, layer: Any, x: np.ndarray, attended: np.ndarray, out: np.ndarray, rows: slice) -> None:
        """Compute output projection, residuals, norms and feed-forward network for some rows: each depends on itself only."""
        a, f = layer.attention, layer.feed_forward
        y = scratch("tokens", out[rows].shape, x.dtype)
        self.linear(attended[rows], a.w_o, a.b_o, y)
        y += x[rows]
        normed_y = self._normed(layer.norm_2, y) if layer.norm_first else self._normed(layer.norm_1, y, y)
        self._feed_forward(normed_y, f.w_1, f.b_1, f.w_2, f.b_2, f.activation, None, None, out[rows])
        out[rows] += y
        if not layer.norm_first:
            self._normed(layer.norm_2, out[rows], out[rows])

    def _normed(self, norm: Any, x: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
        """Return the layer norm of rows, written to ``out`` or to scratch memory."""
        to = scratch("normed", x.shape, x.dtype) if out is None else out
        self.normed(x, norm.weight, norm.bias, norm.eps, to)
        return to

    def _run_chunks(self, function: Callable[[slice], None], count: int) -> None:
        """Call ``function(rows)`` for chunks of ``count`` rows: as many chunks for each thread, all of one size.

        A task is computed by one thread, so its chunks, and the bits of its results, do not depend on how many there are.
        """
        size = -(-count // _multiple(count / _TOKENS, self.workers.num_threads()))

        def chunk(at: int) -> None:
            with np.errstate(all="ignore"):  # NaN and infinity in, NaN and infinity out
                function(slice(at, min(count, at + size)))

        self.workers.run(chunk, range(0, count, size))


_numpy = Chunks()
feed_forward, encoder_layer = _numpy.feed_forward, _numpy.encoder_layer


def _differ_in_batch(options: dict[str, Any]) -> bool:
    """Return whether mask, bias or query_offset are arrays, or may differ between sequences. A sink has no batch axis."""
    values = [option for name, option in options.items() if name not in ("scale", "softcap", "sink")]
    return any(not isinstance(value, int) and getattr(value, "may_differ_in_batch", True) for value in values)


def _heads(x: np.ndarray, count: int) -> np.ndarray:
    """(..., length, count * d) -> (..., count, length, d), a view."""
    return x.reshape(*x.shape[:-1], count, -1).swapaxes(-2, -3)


def _multiple(count: float, threads: int) -> int:
    """Return the multiple of ``threads`` that is nearest to ``count``, at least ``threads``."""
    return threads * max(1, round(count / threads))
