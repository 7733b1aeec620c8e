"""The gradients of attention by the compiled module, for any array library."""

from __future__ import annotations

from collections.abc import Callable, Set
from typing import Any

from mha_core.plugin import AttentionGradients, AttentionProblem, AttentionState, row_terms, sink_gradient

from . import problem
from .level import native

_ARRAYS = ("query", "key", "value")
_LINE = 64
"""Bytes of which rows of results are a multiple."""


def attention_vjp(
    p: AttentionProblem,
    state: AttentionState,
    d_out: Any,
    d_lse: Any,
    wanted: Set[str],
    *,
    plan: Any,
    threads: int,
    beside: problem.Beside,
    view: Callable[[Any], Any],
    empty_like: Callable[..., Any],
) -> AttentionGradients:
    """Return the wanted gradients, in the dtypes of the arrays.

    ``view`` returns an array in a form that the compiled module reads, ``empty_like(x, dtype)`` one laid out like x,
    ``empty_like(x, dtype, shape)`` one of another shape.
    """
    results: dict[str, Any] = {}
    if p.sink is not None and (p.mask is not None or "sink" in wanted):
        terms = row_terms(p, state, p.xp.zeros_like(state.out) if d_out is None else d_out, d_lse)
        d_out = terms.d_out  # 0 in a query that sees no key, whose lse is the sink
        results |= {"sink": sink_gradient(p, terms)} if "sink" in wanted else {}
    operands = {name: getattr(p, name) for name in _ARRAYS}
    sums = {name: _sum_of(p, x, empty_like) if name in wanted else None for name, x in operands.items()}
    read = (*operands.values(), state.out, state.lse[..., None], None if p.sink is None else p.sink[:, None, None])
    towards = (d_out, None if d_lse is None else d_lse[..., None])
    if not wanted.isdisjoint(_ARRAYS):
        first, last = ([None if x is None else view(x) for x in group] for group in (read, (*towards, *sums.values())))
        arrays = [*first, *beside, *last]
        native.attend_vjp(plan, threads, *arrays)
    for name, total in sums.items():
        if total is not None:
            x = operands[name]
            results[name] = p.xp.astype(total[..., : x.shape[-1]], x.dtype, copy=False)
    return AttentionGradients(**results)


def _sum_of(p: AttentionProblem, x: Any, empty_like: Callable[..., Any]) -> Any:
    """Return an array for the gradient of x, with rows as long as they are written; laid out like x if its rows are."""
    numbers = _LINE // (8 if p.compute_dtype == p.xp.float64 else 4)
    width = -(-x.shape[-1] // numbers) * numbers
    return empty_like(x, p.compute_dtype, (*x.shape[:-1], width)) if width != x.shape[-1] else empty_like(x, p.compute_dtype)
