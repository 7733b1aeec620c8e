"""Preparation of an attention call: its arguments are checked and become an ``AttentionProblem``.

Unseen keys are dropped or zeroed, and the mask is reduced to its structure. The algebra and every kernel receive the same
problem, so the promises hold for all of them.
"""

from __future__ import annotations

import math
from typing import Any, Unpack

from ..algebra.arrays import Array, Index, at_least, broadcast_shapes, compute_dtype
from ..algebra.biases import Bias, as_bias
from ..algebra.dropout import WeightDropout
from ..algebra.grid import check_aligned, check_integers
from ..algebra.masks import Mask, as_mask
from ..algebra.problem import AttentionProblem, check_lengths, scores_shape
from ..algebra.structure import structure_of
from ..algebra.visibility import without_unseen_keys
from ..dispatch.advice import cast
from ..dispatch.backend import LoadedBackend
from ..dispatch.selection import agreed, companions
from . import check
from .options import Options, unknown


def prepare(
    query: Array,
    key: Array,
    value: Array,
    *,
    mask: Mask | Array | None = None,
    bias: Bias | Array | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sink: Array | None = None,
    query_offset: int | Array | None = None,
    weight_dropout: WeightDropout | None = None,
    **unknown_names: Any,
) -> tuple[LoadedBackend, AttentionProblem]:
    """Return the backend and a valid problem, in which every array has a head axis."""
    if unknown_names:
        raise unknown(unknown_names)
    mask = None if mask is None else as_mask(mask)
    bias = None if bias is None else as_bias(bias)
    if weight_dropout is not None and not isinstance(weight_dropout, WeightDropout):
        raise TypeError(
            f"weight_dropout is {type(weight_dropout).__name__}; expected mha.weight_dropout(rate, seed=...), or with keep=..."
        )
    offset = 0 if query_offset is None else check.offset(query_offset)
    added = [] if sink is None else [("sink", sink)]
    added += [] if bias is None else bias.arrays()
    others = [] if isinstance(offset, int) else [("query_offset", offset)]
    others += [] if mask is None else mask.arrays()
    others += [] if weight_dropout is None else weight_dropout.arrays()
    backend = agreed(query=query, key=key, value=value)
    companions(query, [*others, *added])

    shape = scores_shape(query, key, value, sink)
    query, key, value = (x[None, :, :] if x.ndim == 2 else x for x in (query, key, value))
    xp, head_dim = backend.xp, query.shape[-1]
    if not isinstance(offset, int):
        check_integers(xp, "query_offset", offset, shape[:-3], "the batch shape")
    for name, x in added:
        _check_added(backend, name, x, query)
    for name, term in (("mask", mask), ("bias", bias), ("weight_dropout", weight_dropout)):
        for part in () if term is None else term.walk():
            part.check(xp, shape)
            check_aligned(name, part, query_offset, shape)
    structure = structure_of(xp, mask, num_queries=shape[-2], num_keys=shape[-1], offset=offset)
    whole = structure.keeps_all(shape[-1])
    kept = slice(structure.keys.start, structure.keys.stop)
    problem = AttentionProblem(
        xp=xp,
        query=query,
        key=key if whole else key[..., kept, :],
        value=value if whole else value[..., kept, :],
        structure=structure,
        scale=(1 / math.sqrt(head_dim) if head_dim else 1.0) if scale is None else check.number("scale", scale),
        mask=mask,
        bias=bias,
        softcap=None if softcap is None else check.number("softcap", softcap, above_zero=True),
        sink=sink,
        offset=offset,
        dropout=weight_dropout,
    )
    return backend, problem if mask is None else without_unseen_keys(problem)


def _check_added(backend: LoadedBackend, name: str, x: Array, query: Array) -> None:
    """Raise TypeError unless an array that is added to the scores has the query's dtype, or that of the scores."""
    if x.dtype not in (query.dtype, compute_dtype(backend.xp, query.dtype)):
        wanted = cast(backend, name, x, query.dtype)
        raise TypeError(f"{name} has dtype {x.dtype}, but query has {query.dtype}: write {wanted}")


def prepare_weights(
    query: Array, key: Array, lse: Array | None, rows: slice | Index, cols: slice | Index, **options: Unpack[Options]
) -> tuple[LoadedBackend, AttentionProblem, Array | None, Index, Index]:
    """Return a valid problem without values, and lse, rows and cols in the form that the algebra needs."""
    if "value" in options:
        raise TypeError("attention_weights takes no value: weights depend on queries and keys only")
    backend = agreed(query=query, key=key)
    check.ndim("key", key, 2, "(..., heads, length, head_dim)")
    _, problem = prepare(query, key, key[..., :0], **options)  # with values of width 0
    check_lengths(problem, "attention_weights")
    chosen = check.index("rows", rows, query.shape[-2]), check.index("cols", cols, key.shape[-2])
    if lse is not None:
        companions(query, [("lse", lse)])
        rows_shape = problem.rows_shape[1:] if query.ndim == key.ndim == 2 else problem.rows_shape
        tail = rows_shape[-2:]
        if tuple(lse.shape[-len(tail) :]) != tail or not _broadcast(lse.shape, rows_shape):
            check.shape("lse", lse, rows_shape, "(..., H, L)")  # lse may have more batch axes, since the values may have more
        if not backend.is_floating(lse.dtype):
            raise TypeError(f"lse has dtype {lse.dtype}; expected the lse of attention_state")
        lse = at_least(backend.xp, lse, len(problem.rows_shape))
    return backend, problem, lse, *chosen


def _broadcast(*shapes: tuple[int, ...]) -> bool:
    try:
        broadcast_shapes(*shapes)
    except ValueError:
        return False
    return True
