"""Attention of a prepared problem, and its gradients, by the kernels chosen for them: for kernels that are made of others."""

from __future__ import annotations

from collections.abc import Iterator, Set
from typing import Any

from ..algebra import attention as algebra
from ..algebra import attention_vjp as algebra_vjp
from ..algebra.arrays import Array
from ..algebra.attention_vjp import AttentionGradients
from ..algebra.problem import AttentionProblem
from ..algebra.state import AttentionState
from .context import NO_DEMANDS
from .contract import Call
from .kernels import decide, describe
from .selection import backend_of


def attention_call(p: AttentionProblem) -> Call:
    """Return the call of attention by which a kernel for a problem is chosen."""
    given = {"query": p.query, "key": p.key, "value": p.value, "sink": p.sink}
    return describe("attention", given, features=p.features, options=_settings(p))


def attention_vjp_call(
    p: AttentionProblem, d_out: Array | None, d_lse: Array | None, wanted: Set[str], asked: Set[str]
) -> Call:
    """Return the call of ``attention_vjp`` by which a kernel is chosen; ``asked``: features that the arrays require."""
    given = {"query": p.query, "key": p.key, "value": p.value, "sink": p.sink, "d_out": d_out, "d_lse": d_lse}
    added = {f"d_{name}" for name in ("bias", "sink") if name in wanted} | ({"d_lse"} if d_lse is not None else set())
    options = {**_settings(p), "wanted": frozenset(wanted)}
    return describe("attention_vjp", given, features=p.features - p.asked | asked | added, options=options)


def _settings(p: AttentionProblem) -> dict[str, Any]:
    settings = {"band": p.structure.band, "packed": p.structure.packed, "scale": p.scale, "softcap": p.softcap}
    return settings | {"query_offset": p.offset if isinstance(p.offset, int) else None}  # None: an array


def attend(p: AttentionProblem) -> AttentionState:
    """Return out and lse by the first kernel that supports the problem, for a kernel that records the gradient itself.

    The caller's demands are not followed: they are about the kernel that calls this.
    """
    backend = backend_of({"query": p.query})
    asked, shield = backend.shielded(backend.features((p.query, p.key, p.value, p.sink, *_inside(p))))
    p = p.with_arrays(p.query, p.key, p.value, asked=asked - {"gradient"} | {"lse"})
    run = decide(backend.name, attention_call(p), NO_DEMANDS).run
    state: AttentionState = shield(algebra.attention_state if run is None else run)(p)
    return state


def attend_vjp(
    p: AttentionProblem, state: AttentionState, d_out: Array | None, d_lse: Array | None, wanted: Set[str]
) -> AttentionGradients:
    """Return the gradients by the first kernel of ``attention_vjp`` that supports the problem, for such a kernel too."""
    backend = backend_of({"query": p.query})
    arrays = (p.query, p.key, p.value, p.sink, *state, d_out, d_lse, *_inside(p))
    asked, shield = backend.shielded(backend.features(arrays))
    p = p.with_arrays(p.query, p.key, p.value, asked=frozenset())
    run = decide(backend.name, attention_vjp_call(p, d_out, d_lse, wanted, asked)).run
    d_out = p.xp.zeros_like(state.out) if d_out is None else d_out
    found: AttentionGradients = shield(algebra_vjp.attention_vjp if run is None else run)(p, state, d_out, d_lse, wanted)
    return found


def _inside(p: AttentionProblem) -> Iterator[Array]:
    return (x for term in (p.mask, p.bias) if term is not None for _, x in term.arrays())
