"""The kernel on torch tensors on the CPU, whose memory the compiled module reads by address."""

from __future__ import annotations

from collections.abc import Callable, Set
from typing import Any

import torch

from mha_core import Int8Rows
from mha_core.plugin import AttentionGradients, AttentionProblem, AttentionState, Call

from . import gradients, problem
from .level import native
from .team import team

_KINDS = {torch.float32: "f", torch.float64: "d", torch.float16: "e", torch.bfloat16: "H", torch.bool: "?"}


def supports(call: Call) -> str | None:
    """Return why the kernel does not compute a call, or None."""
    if call.device.type != "cpu":
        return f"computes on the CPU, not on {call.device.type}"
    return problem.supports(call) if call.dtype in _KINDS else f"does not support {call.dtype}"


def attention(p: AttentionProblem) -> AttentionState:
    """Attention as ``mha_core`` defines it. Every call returns the same bits, for any number of threads."""
    return _prepared(p, *_beside(p))(p.query, p.key, p.value, p.sink)


def prepare(p: AttentionProblem) -> Callable[..., AttentionState] | None:
    """Return a function (query, key, value, sink) -> state, if the problem has no other arrays."""
    return None if p.features - problem.WITHOUT_ARRAYS else _prepared(p, *_beside(p))


def _beside(p: AttentionProblem) -> tuple[problem.Beside, list[Any]]:
    """Return the problem's other arrays, and the tensors whose memory they are."""
    tensors, view = _kept()
    library = problem.Library(
        view=view,
        lengths=lambda x, shape: problem.host_lengths(x.numpy(), shape),
        dense=lambda x, dtype: x.to(dtype).contiguous(),
        to_numpy=lambda x: x.numpy(),
    )
    return problem.beside(p, library), tensors


def _kept() -> tuple[list[Any], Callable[[Any], Any]]:
    """Return a list, and a function that returns where a tensor's numbers are, and puts their owner on the list."""
    tensors: list[Any] = []

    def view(x: Any) -> Any:
        tensors.append(x.resolve_neg())
        return _view(tensors[-1])

    return tensors, view


def attention_vjp(p: AttentionProblem, state: AttentionState, d_out: Any, d_lse: Any, wanted: Set[str]) -> AttentionGradients:
    """The gradients of attention as ``mha_core`` defines them. Every call returns the same bits, for any number of threads."""
    plan = problem.plan(p, _KINDS[p.query.dtype], team())
    (beside, _owners), (_others, view) = _beside(p), _kept()  # the lists keep memory until the end of the call
    sums = gradients.written(
        *(p, state, d_lse),
        plan=plan,
        threads=torch.get_num_threads() if native.is_worth_threads(plan) else 1,
        beside=beside,
        view=view,
        empty_like=_empty_like,
    )
    return gradients.attention_vjp(p, state, d_out, d_lse, wanted, sums)


def _empty_like(x: Any, dtype: Any, shape: tuple[int, ...] | None = None) -> Any:
    out = torch.empty_like(x, dtype=dtype) if shape is None else torch.empty(shape, dtype=dtype, device=x.device)
    return out if out.stride(-1) == 1 else torch.empty(x.shape, dtype=dtype, device=x.device)


def _prepared(p: AttentionProblem, arrays: problem.Beside, tensors: list[Any]) -> Callable[..., AttentionState]:
    dtype, shape, kind = p.query.dtype, (*p.rows_shape, p.value.shape[-1]), _KINDS[p.query.dtype]
    query_shape, key_shape, value_shape = (tuple(x.shape) for x in (p.query, p.key, p.value))
    is_int8 = isinstance(p.key, Int8Rows)
    plan, kind_of_keys = problem.plan(p, kind, team()), "b" if is_int8 else kind
    lse_shape = p.rows_shape if "lse" in p.asked else None
    same_shape, lse_dtype, device = query_shape == shape, p.compute_dtype, p.device  # torch's default may be another
    attend, empty, empty_like = native.attend, torch.empty, torch.empty_like
    threads = torch.get_num_threads if native.is_worth_threads(plan) else lambda: 1

    def compute(query: Any, key: Any, value: Any, sink: Any) -> AttentionState:
        scales: tuple[Any, ...] = ()
        if is_int8:
            scales = key.scale.resolve_neg(), value.scale.resolve_neg()
            key, value = key.values, value.values
        if query.is_neg() or key.is_neg() or value.is_neg():  # numbers whose sign is not in memory yet
            query, key, value = query.resolve_neg(), key.resolve_neg(), value.resolve_neg()
        out: Any = empty_like(query) if same_shape else empty(shape, dtype=dtype, device=device)
        strides = out.stride()
        if strides[-1] != 1:
            out = empty(shape, dtype=dtype, device=device)
            strides = out.stride()
        sink = None if sink is None else sink.resolve_neg()
        lse: Any = None if lse_shape is None else empty(lse_shape, dtype=lse_dtype, device=device)
        attend(
            plan,
            threads(),
            (query.data_ptr(), kind, query_shape, query.stride()),
            (key.data_ptr(), kind_of_keys, key_shape, key.stride()),
            (value.data_ptr(), kind_of_keys, value_shape, value.stride()),
            (out.data_ptr(), kind, shape, strides),
            None if lse is None else _view(lse[..., None]),
            None if sink is None else _view(sink[:, None, None]),
            *arrays,
            *map(_view, scales),
        )
        return AttentionState(out, lse)

    compute.tensors = tensors  # type: ignore[attr-defined]  # keeps their memory
    return compute


def _view(x: Any) -> tuple[int, str, tuple[int, ...], tuple[int, ...]]:
    return x.data_ptr(), _KINDS[x.dtype], x.shape, x.stride()
