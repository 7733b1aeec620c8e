"""The gradients of attention by the compiled module, for any array library."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any, TypeAlias

from mha_core.plugin import AttentionGradients, AttentionProblem, AttentionState, row_terms, sink_gradient

from . import problem
from .level import native

ARRAYS = ("query", "key", "value")
Sums: TypeAlias = Callable[[Sequence[str], Any], Mapping[str, Any]]
"""Returns gradients, in the dtype of lse and with padded rows, of some of ``ARRAYS`` for that of the result."""
_LINE = 64
"""Bytes of which rows of results are a multiple."""


def attention_vjp(
    p: AttentionProblem, state: AttentionState, d_out: Any, d_lse: Any, wanted: Set[str], sums: Sums
) -> AttentionGradients:
    """Return the wanted gradients, in the dtypes of the arrays."""
    results: dict[str, Any] = {}
    if p.sink is not None and (p.mask is not None or "sink" in wanted):
        terms = row_terms(p, state, p.xp.zeros_like(state.out) if d_out is None else d_out, d_lse)
        d_out = terms.d_out  # 0 in a query that sees no key, whose lse is the sink
        results |= {"sink": sink_gradient(p, terms)} if "sink" in wanted else {}
    names = [name for name in ARRAYS if name in wanted]
    for name, total in (sums(names, d_out) if names else {}).items():
        x = getattr(p, name)
        results[name] = p.xp.astype(total[..., : x.shape[-1]], x.dtype, copy=False)
    return AttentionGradients(**results)


def written(
    p: AttentionProblem,
    state: AttentionState,
    d_lse: Any,
    *,
    plan: Any,
    threads: int,
    beside: problem.Beside,
    view: Callable[[Any], Any],
    empty_like: Callable[..., Any],
) -> Sums:
    """Return the function ``sums`` for arrays whose memory the compiled module writes.

    ``view`` returns an array in a form that it reads, ``empty_like(x, dtype)`` one laid out like x,
    ``empty_like(x, dtype, shape)`` one of another shape.
    """

    def sums(names: Sequence[str], d_out: Any) -> Mapping[str, Any]:
        totals = {name: _sum_of(p, getattr(p, name), empty_like) if name in names else None for name in ARRAYS}
        sink = None if p.sink is None else p.sink[:, None, None]
        read = (p.query, p.key, p.value, state.out, state.lse[..., None], sink)
        towards = (d_out, None if d_lse is None else d_lse[..., None])
        first, last = ([None if x is None else view(x) for x in group] for group in (read, (*towards, *totals.values())))
        native.attend_vjp(plan, threads, *first, *beside, *last)
        return {name: total for name, total in totals.items() if total is not None}

    return sums


def padded_width(p: AttentionProblem, x: Any) -> int:
    """Return the length of a row of the gradient of x, of which the numbers of x are the first."""
    numbers = _LINE // (8 if p.compute_dtype == p.xp.float64 else 4)
    return -(-x.shape[-1] // numbers) * numbers


def _sum_of(p: AttentionProblem, x: Any, empty_like: Callable[..., Any]) -> Any:
    """Return an array for the gradient of x, with rows as long as they are written; laid out like x if its rows are."""
    width = padded_width(p, x)
    return empty_like(x, p.compute_dtype, (*x.shape[:-1], width)) if width != x.shape[-1] else empty_like(x, p.compute_dtype)
