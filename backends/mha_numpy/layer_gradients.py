"""Training steps of the feed-forward network and the encoder layer, in chunks of rows.

A thread takes a chunk through as many steps as possible, so there are few moments at which one thread waits for another. How
rows are cut depends on shapes alone: the bits do not depend on the number of threads.
"""

from __future__ import annotations

from collections.abc import Callable, Set
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from mha_core import scaled_dot_product_attention, vjp
from mha_core.plugin import Call

from . import norms
from .gelu import write_slope
from .linear import Task, as_rows, bias_task, compute, weight_tasks
from .norm_gradients import add_gradients
from .norms import normed
from .relu import pass_where_positive
from .scratch import scratch
from .threads import run

_ROWS = 512  # in a chunk; products of fewer are slower
_FEWEST = 64  # rows for which another thread is worth waking
_TILE = 1 << 16  # elements of hidden features
_NORM = frozenset({"x", "weight", "bias"})

Gradients: TypeAlias = dict[str, np.ndarray]
Pullback: TypeAlias = Callable[[np.ndarray], Gradients]


def supports(call: Call) -> str | None:
    """Return why a call is not supported, or None."""
    if reason := norms.supports(call):
        return reason
    is_relu = "relu" in (call.option("activation"), *(name.partition("activation=")[2] for name in call.features))
    if is_relu:
        return None
    if call.option("activation") not in (None, "gelu"):
        return f"computes gelu and relu, not {call.option('activation')}"
    return None if call.dtype_name == "float32" else f"computes gelu in float32, not {call.dtype}"


def feed_forward_vjp(
    x: np.ndarray,
    w_1: np.ndarray,
    b_1: np.ndarray | None,
    w_2: np.ndarray,
    b_2: np.ndarray | None,
    *,
    activation: str,
    wanted: Set[str],
) -> tuple[np.ndarray, Pullback]:
    """Return f(x w_1 + b_1) w_2 + b_2 and its pullback."""
    out = np.empty((*x.shape[:-1], w_2.shape[1]), dtype=x.dtype)
    network, tokens, to = _Network(activation, w_1, b_1, w_2, b_2, x), as_rows(x), as_rows(out)
    _by_rows(lambda at, rows: network.forward(tokens[rows], rows, to[rows]), len(tokens))

    def pullback(d_out: np.ndarray) -> Gradients:
        d, dx = as_rows(d_out), np.empty(x.shape, dtype=x.dtype)
        d_hidden, to = np.empty_like(network.hidden), as_rows(dx)
        to_x = to if "x" in wanted else None
        if wanted - {"w_2", "b_2"}:
            _by_rows(lambda at, rows: network.backward(d[rows], rows, d_hidden, to_x), len(d))
        products = {"w_1": (tokens, d_hidden), "w_2": (network.hidden, d), "b_1": d_hidden, "b_2": d}
        gradients, tasks = _sums(products, wanted)
        compute(tasks, len(d) * w_1.size)
        return {**gradients, "x": dx}

    return out, pullback


class _Network:
    """The feed-forward network, with the hidden features and slopes that its pullback needs."""

    def __init__(self, activation: str, w_1: Any, b_1: Any, w_2: Any, b_2: Any, x: np.ndarray) -> None:
        self.w_1, self.b_1, self.w_2, self.b_2 = w_1, b_1, w_2, b_2
        self.hidden = np.empty((x.size // x.shape[-1], w_1.shape[1]), dtype=x.dtype)
        self.slope = np.empty_like(self.hidden) if activation == "gelu" else None

    def forward(self, x: np.ndarray, rows: slice, out: np.ndarray) -> None:
        """Write the result of some rows to ``out``."""
        hidden = np.matmul(x, self.w_1, out=self.hidden[rows])
        for tile in _tiles(hidden):
            y = hidden[tile]
            if self.b_1 is not None:
                y += self.b_1
            if self.slope is None:
                np.maximum(y, np.zeros(y.shape[1:], dtype=y.dtype), out=y)
            else:
                write_slope(y, self.slope[rows][tile], gelu=y)
        np.matmul(hidden, self.w_2, out=out)
        if self.b_2 is not None:
            out += self.b_2

    def backward(self, d: np.ndarray, rows: slice, d_hidden: np.ndarray, dx: np.ndarray | None) -> None:
        """Write the gradients of hidden features, before the activation, and of x to some rows of ``d_hidden`` and ``dx``."""
        of_rows = np.matmul(d, self.w_2.T, out=d_hidden[rows])
        for tile in _tiles(of_rows):
            y = of_rows[tile]
            if self.slope is None:
                pass_where_positive(self.hidden[rows][tile], y, out=y)
            else:
                np.multiply(y, self.slope[rows][tile], out=y)
        if dx is not None:
            np.matmul(of_rows, self.w_1.T, out=dx[rows])


def encoder_layer_vjp(layer: Any, x: np.ndarray, *, wanted: Set[str], **options: Any) -> tuple[np.ndarray, Pullback]:
    """Return the result of an encoder layer and its pullback."""
    step = _Step(layer, x, wanted)
    return step.forward(options), step.pullback


class _Step:
    """A training step of an encoder layer: the arrays that the pullback needs, each with a row for every token.

    With n the input of the projections, y the sum after attention, m the input of the feed-forward network and z the sum after
    it: m = LayerNorm(y) and out = LayerNorm(z); or n = LayerNorm(x), m = LayerNorm(y) and out = z with ``norm_first``.
    """

    def __init__(self, layer: Any, x: np.ndarray, wanted: Set[str]) -> None:
        self.layer, self.shape, self.wanted, self.x = layer, x.shape, wanted, as_rows(x)
        self.first = layer.norm_first
        before = ("x", *("attention." + name for name in ("w_q", "b_q", "w_k", "b_k", "w_v", "b_v")))
        self.needs_attention = any(name in before or (self.first and name.startswith("norm_1")) for name in wanted)

    def forward(self, options: dict[str, Any]) -> np.ndarray:
        layer, x, a, f = self.layer, self.x, self.layer.attention, self.layer.feed_forward
        self.n = np.empty_like(x) if self.first else x
        weights = ((a.w_q, a.b_q), (a.w_k, a.b_k), (a.w_v, a.b_v))
        projected = [np.empty((len(x), w.shape[1]), dtype=x.dtype) for w, _ in weights]

        def project(at: int, rows: slice) -> None:
            if self.first:
                _normed(layer.norm_1, x[rows], self.n[rows])
            for (w, b), y in zip(weights, projected, strict=True):
                np.matmul(self.n[rows], w, out=y[rows])
                if b is not None:
                    y[rows] += b

        _by_rows(project, len(x))
        counts = (a.num_heads, *[a.num_heads if a.num_kv_heads is None else a.num_kv_heads] * 2)
        heads = [self._heads(y, count) for y, count in zip(projected, counts, strict=True)]
        attended: Any
        if self.needs_attention:
            attended, self.pull = vjp(scaled_dot_product_attention, *heads, wrt=_is_projected, **options)
        else:
            attended = scaled_dot_product_attention(*heads, **options)
        self.attended = _rows_of(attended)
        self.y, self.m, out = np.empty_like(x), np.empty_like(x), np.empty_like(x)
        self.z = out if self.first else np.empty_like(x)
        self.network = _Network(f.activation, f.w_1, f.b_1, f.w_2, f.b_2, x)
        inner = layer.norm_2 if self.first else layer.norm_1

        def after_attention(at: int, rows: slice) -> None:
            y = np.matmul(self.attended[rows], a.w_o, out=self.y[rows])
            if a.b_o is not None:
                y += a.b_o
            y += x[rows]
            _normed(inner, y, self.m[rows])
            z = self.z[rows]
            self.network.forward(self.m[rows], rows, z)
            z += y if self.first else self.m[rows]
            if not self.first:
                _normed(layer.norm_2, z, out[rows])

        _by_rows(after_attention, len(x))
        return out.reshape(self.shape)

    def pullback(self, d_out: np.ndarray) -> Gradients:
        """Return the gradients that are wanted."""
        layer, a, d = self.layer, self.layer.attention, as_rows(d_out)
        dz = d if self.first else np.empty_like(d)
        dy, d_hidden, d_attended = (np.empty_like(each) for each in (self.y, self.network.hidden, self.attended))
        sums = np.zeros((2, 2, len(_chunks(len(d))), d.shape[1]), dtype=d.dtype)  # of both norms; each chunk has its own

        def after_attention(at: int, rows: slice) -> None:
            if not self.first:
                _norm_backward(layer.norm_2, self.z[rows], d[rows], dz[rows], sums[1, :, at])
            self.network.backward(dz[rows], rows, d_hidden, dy)
            dy_rows = dy[rows]
            if self.first:
                _norm_backward(layer.norm_2, self.y[rows], dy_rows, dy_rows, sums[1, :, at])
                dy_rows += d[rows]
            else:
                dy_rows += dz[rows]
                _norm_backward(layer.norm_1, self.y[rows], dy_rows, dy_rows, sums[0, :, at])
            np.matmul(dy_rows, a.w_o.T, out=d_attended[rows])

        _by_rows(after_attention, len(d))
        f = "feed_forward."
        products: dict[str, Any] = {"attention.w_o": (self.attended, dy), "attention.b_o": dy}
        products |= {f + "w_1": (self.m, d_hidden), f + "b_1": d_hidden, f + "w_2": (self.network.hidden, dz), f + "b_2": dz}
        dx = np.empty_like(d)
        tasks: list[Task] = []
        if self.needs_attention:
            of_heads = self.pull(self._heads(d_attended, a.num_heads))
            projected = [_rows_of(of_head) for of_head in of_heads]
            for name, of_rows in zip("qkv", projected, strict=True):
                products |= {f"attention.w_{name}": (self.n, of_rows), f"attention.b_{name}": of_rows}
            tasks += [partial(self._before, projected, dy, dx, sums[0], *each) for each in enumerate(_chunks(len(d)))]
        gradients, more = _sums(products, self.wanted)
        compute(tasks + more, len(d) * layer.feed_forward.w_1.size)
        with np.errstate(all="ignore"):
            of_norms = np.add.reduce(sums, axis=2)
        for norm, of_norm in zip(("norm_1", "norm_2"), of_norms, strict=True):
            gradients |= {f"{norm}.{name}": total for name, total in zip(("weight", "bias"), of_norm, strict=True)}
        return {**gradients, "x": dx.reshape(self.shape)}

    def _before(self, projected: list[Any], dy: np.ndarray, dx: np.ndarray, sums: np.ndarray, at: int, rows: slice) -> None:
        """Write some rows of the gradient of x, from those of queries, keys and values."""
        a, dx_rows = self.layer.attention, dx[rows]
        np.matmul(projected[0][rows], a.w_q.T, out=dx_rows)
        for of_rows, w in zip(projected[1:], (a.w_k, a.w_v), strict=True):
            dx_rows += np.matmul(of_rows[rows], w.T, out=scratch("dx", dx_rows.shape, dx_rows.dtype))
        if self.first:
            _norm_backward(self.layer.norm_1, self.x[rows], dx_rows, dx_rows, sums[:, at])
        dx_rows += dy[rows]

    def _heads(self, x: np.ndarray, count: int) -> np.ndarray:
        """(tokens, count * d) -> (..., count, length, d), a view."""
        return x.reshape(*self.shape[:-1], count, -1).swapaxes(-2, -3)


def _rows_of(heads: Any) -> np.ndarray:
    """(..., count, length, d) -> (tokens, count * d)."""
    rows: np.ndarray = heads.swapaxes(-2, -3).reshape(-1, heads.shape[-3] * heads.shape[-1])
    return rows


def _is_projected(name: str) -> bool:
    return name in ("query", "key", "value")


def _normed(norm: Any, x: np.ndarray, out: np.ndarray) -> None:
    normed(x, norm.weight, norm.bias, norm.eps, out)


def _norm_backward(norm: Any, x: np.ndarray, d: np.ndarray, dx: np.ndarray, sums: np.ndarray) -> None:
    add_gradients(x, norm.weight, d, _NORM, norm.eps, True, dx, sums)


def _sums(products: dict[str, Any], wanted: Set[str]) -> tuple[Gradients, list[Task]]:
    """Return gradients of weights, x^T d for a pair (x, d), and of biases, the sum of d, with the tasks that write them."""
    gradients: Gradients = {}
    tasks: list[Task] = []
    for name, factors in products.items():
        if name not in wanted:
            continue
        if isinstance(factors, tuple):
            x, d = factors
            gradients[name] = np.empty((x.shape[1], d.shape[1]), dtype=d.dtype)
            tasks += weight_tasks(x, d, gradients[name])
        else:
            gradients[name] = np.empty(factors.shape[1], dtype=factors.dtype)
            tasks.append(bias_task(factors, gradients[name]))
    return gradients, tasks


def _chunks(count: int) -> list[slice]:
    """Cut rows into chunks of about the same size: two, or more if they are many."""
    size = -(-count // max(1, min(max(2, -(-count // _ROWS)), count // _FEWEST)))
    return [slice(at, min(count, at + size)) for at in range(0, count, size)]


def _by_rows(function: Callable[[int, slice], None], count: int) -> None:
    """Call ``function(at, rows)`` for each chunk of ``count`` rows."""

    def chunk(numbered: tuple[int, slice]) -> None:
        with np.errstate(all="ignore"):  # NaN and infinity in, NaN and infinity out
            function(*numbered)

    run(chunk, enumerate(_chunks(count)))


def _tiles(x: np.ndarray) -> list[slice]:
    """Cut rows into tiles that stay in cache."""
    size = max(1, _TILE // x.shape[1])
    return [slice(at, at + size) for at in range(0, len(x), size)]
