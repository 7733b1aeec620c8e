"""The kernel on NumPy arrays, whose memory the compiled module reads by the buffer protocol."""

from __future__ import annotations

from collections.abc import Callable, Set
from typing import Any

import numpy as np

from mha_core import Int8Rows
from mha_core.plugin import AttentionGradients, AttentionProblem, AttentionState, Call
from mha_numpy.shared import check, threads_here

from . import gradients, problem
from .level import native

check(1, "mha-native")
_KINDS = {"float32": "f", "float64": "d", "float16": "e", "bfloat16": "H"}


def supports(call: Call) -> str | None:
    """Return why the kernel does not compute a call, or None."""
    return problem.supports(call) if call.dtype_name in _KINDS else f"does not support {call.dtype}"


def attention(p: AttentionProblem) -> AttentionState:
    """Attention as ``mha_core`` defines it. Every call returns the same bits, for any number of threads."""
    arrays = problem.beside(p, _LIBRARY)
    return _prepared(p, arrays)(p.query, p.key, p.value, p.sink)


def prepare(p: AttentionProblem) -> Callable[..., AttentionState] | None:
    """Return a function (query, key, value, sink) -> state, if the problem has no other arrays."""
    return None if p.features - problem.WITHOUT_ARRAYS else _prepared(p, problem.beside(p, _LIBRARY))


def _prepared(p: AttentionProblem, arrays: problem.Beside) -> Callable[..., AttentionState]:
    dtype, shape = p.query.dtype, (*p.rows_shape, p.value.shape[-1])
    plan = problem.plan(p, _KINDS[dtype.name])
    lse_shape = p.rows_shape if "lse" in p.asked else None
    lse_dtype, is_bfloat16, attend = p.compute_dtype, dtype.name == "bfloat16", native.attend
    empty, empty_like = np.empty, np.empty_like
    is_int8 = isinstance(p.key, Int8Rows)
    same_shape, threads = p.query.shape == shape, threads_here if native.is_worth_threads(plan) else lambda: 1

    def compute(query: Any, key: Any, value: Any, sink: Any) -> AttentionState:
        scales: tuple[Any, ...] = ()
        if is_int8:
            key, value, scales = key.values, value.values, (key.scale, value.scale)
        # the layout of out follows the query, so that heads adjacent in memory stay adjacent
        out: Any = empty_like(query, subok=False) if same_shape else empty(shape, dtype)
        if out.strides[-1] != out.itemsize:
            out = empty(shape, dtype)
        lse: Any = None if lse_shape is None else empty(lse_shape, lse_dtype)
        sinks = None if sink is None else _view(sink[:, None, None])
        column = None if lse is None else lse[..., None]
        operands = (query, key, value, out)
        if is_bfloat16:
            operands = (_view(query), _view(key), _view(value), _view(out))
        attend(plan, threads(), *operands, column, sinks, *arrays, *scales)
        return AttentionState(out, lse)

    return compute


def attention_vjp(p: AttentionProblem, state: AttentionState, d_out: Any, d_lse: Any, wanted: Set[str]) -> AttentionGradients:
    """The gradients of attention as ``mha_core`` defines them. Every call returns the same bits, for any number of threads."""
    plan = problem.plan(p, _KINDS[p.query.dtype.name])
    sums = gradients.written(
        *(p, state, d_lse),
        plan=plan,
        threads=threads_here() if native.is_worth_threads(plan) else 1,
        beside=problem.beside(p, _LIBRARY),
        view=_view,
        empty_like=_empty_like,
    )
    with np.errstate(all="ignore"):  # NaN and infinity in, NaN and infinity out
        return gradients.attention_vjp(p, state, d_out, d_lse, wanted, sums)


def _empty_like(x: Any, dtype: Any, shape: tuple[int, ...] | None = None) -> Any:
    out = np.empty(shape, dtype) if shape else np.empty_like(x, dtype, subok=False)
    return out if out.strides[-1] == out.itemsize else np.empty(x.shape, dtype)


def _view(x: Any) -> Any:
    """Return an array that has the buffer protocol: NumPy has none for bfloat16."""
    return x.view(np.uint16) if x.dtype.name == "bfloat16" else x


_LIBRARY = problem.Library(
    view=_view,
    lengths=problem.host_lengths,
    dense=lambda x, dtype: np.ascontiguousarray(x, dtype=dtype),
)
