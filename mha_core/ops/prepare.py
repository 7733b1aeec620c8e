"""Preparation of an attention call: its arguments are checked and become an ``AttentionProblem``.

Unseen keys are dropped or zeroed, and the mask is reduced to its structure. The algebra and every kernel receive the same
problem, so the promises hold for all of them.
"""

from __future__ import annotations

import math
from numbers import Integral
from typing import Any, TypedDict, Unpack

from ..algebra.arrays import Array, Index, at_least, broadcast_shapes, compute_dtype
from ..algebra.biases import Bias, as_bias
from ..algebra.grid import check_integers
from ..algebra.masks import Mask, as_mask
from ..algebra.problem import AttentionProblem
from ..algebra.structure import structure_of
from ..algebra.visibility import without_unseen_keys
from ..dispatch.backend import LoadedBackend
from . import check


class Options(TypedDict, total=False):
    """The options of every attention operation; all of them combine."""

    mask: Mask | Array | None
    bias: Bias | Array | None
    scale: float | None
    softcap: float | None
    sink: Array | None
    query_offset: int | Array | None


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
    **unknown: Any,
) -> tuple[LoadedBackend, AttentionProblem]:
    """Return the backend and a valid problem, in which every array has a head axis."""
    if unknown:
        hint = "; for causal attention write mask=causal()" if "is_causal" in unknown else ""
        raise TypeError(f"there is no option {', '.join(unknown)}; expected {', '.join(Options.__annotations__)}{hint}")
    backend = check.arrays(query=query, key=key, value=value)
    xp = backend.xp
    for name, x in (("query", query), ("key", key), ("value", value)):
        check.ndim(name, x, 2, "(..., heads, length, head_dim)")
    query, key, value = (x[None, :, :] if x.ndim == 2 else x for x in (query, key, value))
    shape = _scores_shape(query, key, value)

    mask = None if mask is None else as_mask(mask)
    bias = None if bias is None else as_bias(bias)
    offset = _offset(backend, query, query_offset, shape)
    for name, term in (("mask", mask), ("bias", bias)):
        if term is not None:
            check.companions(query, dict(term.arrays()))
            if isinstance(term, Bias):
                for part_name, x in term.arrays():
                    _check_score_dtype(backend, part_name, x, query)
            for part in term.walk():
                part.check(xp, shape)
                _check_aligned(name, part, query_offset, shape)
    if sink is not None:
        check.companions(query, {"sink": sink})
        _check_score_dtype(backend, "sink", sink, query)
        check.shape("sink", sink, (shape[-3],), "(H,)")

    structure = structure_of(xp, mask, num_queries=shape[-2], num_keys=shape[-1], offset=offset)
    whole = len(structure.keys) == shape[-1]
    kept = slice(structure.keys.start, structure.keys.stop)
    problem = AttentionProblem(
        xp=xp,
        query=query,
        key=key if whole else key[..., kept, :],
        value=value if whole else value[..., kept, :],
        structure=structure,
        scale=_default_scale(query.shape[-1]) if scale is None else check.number("scale", scale),
        mask=mask,
        bias=bias,
        softcap=None if softcap is None else check.number("softcap", softcap, above_zero=True),
        sink=sink,
        offset=offset,
    )
    return backend, problem if mask is None else without_unseen_keys(problem)


def prepare_weights(
    query: Array, key: Array, lse: Array | None, rows: slice | Index, cols: slice | Index, **options: Unpack[Options]
) -> tuple[LoadedBackend, AttentionProblem, Array | None, Index, Index]:
    """Return a valid problem without values, and lse, rows and cols in the form that the algebra needs."""
    if "value" in options:
        raise TypeError("attention_weights takes no value: weights depend on queries and keys only")
    backend = check.arrays(query=query, key=key)
    check.ndim("key", key, 2, "(..., heads, length, head_dim)")
    _, problem = prepare(query, key, key[..., :0], **options)  # with values of width 0
    chosen = check.index("rows", rows, query.shape[-2]), check.index("cols", cols, key.shape[-2])
    if lse is not None:
        check.companions(query, {"lse": lse})
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


def _default_scale(head_dim: int) -> float:
    """Return 1 / sqrt(head_dim), or 1 for heads of width 0 (promise 8)."""
    return 1.0 / math.sqrt(head_dim) if head_dim else 1.0


def _scores_shape(query: Array, key: Array, value: Array) -> tuple[int, ...]:
    """Return (..., H, L, S), or raise a ValueError that names the argument that does not fit."""
    heads, key_heads = query.shape[-3], key.shape[-3]
    if key.shape[-1] != query.shape[-1]:
        raise ValueError(f"key has head_dim {key.shape[-1]}, but query has {query.shape[-1]}: {_shapes(query, key, value)}")
    if value.shape[-2] != key.shape[-2]:
        raise ValueError(f"value has length {value.shape[-2]}, but key has {key.shape[-2]}: {_shapes(query, key, value)}")
    if value.shape[-3] != key_heads:
        raise ValueError(f"value has {value.shape[-3]} heads, but key has {key_heads}: {_shapes(query, key, value)}")
    if heads != key_heads and (key_heads == 0 or heads % key_heads):
        raise ValueError(
            f"query has {heads} heads, which is not a multiple of key's {key_heads} heads: {_shapes(query, key, value)}"
        )
    try:
        batch = broadcast_shapes(query.shape[:-3], key.shape[:-3], value.shape[:-3])
    except ValueError:
        raise ValueError(f"the batch axes of query, key and value do not broadcast: {_shapes(query, key, value)}") from None
    return (*batch, heads, query.shape[-2], key.shape[-2])


def _shapes(query: Array, key: Array, value: Array) -> str:
    return f"query {tuple(query.shape)}, key {tuple(key.shape)}, value {tuple(value.shape)}, as (..., heads, length, head_dim)"


def _offset(backend: LoadedBackend, query: Array, offset: int | Array | None, shape: tuple[int, ...]) -> int | Array:
    if offset is None:
        return 0
    if isinstance(offset, bool):
        raise TypeError("query_offset is bool; expected an int, or integers of the batch shape")
    if isinstance(offset, Integral):
        return int(offset)
    assert not isinstance(offset, int)
    check_integers(backend.xp, "query_offset", offset, shape[:-3], "the batch shape")
    check.companions(query, {"query_offset": offset})
    return offset


def _check_aligned(name: str, part: Any, offset: object, shape: tuple[int, ...]) -> None:
    """Raise ValueError if the alignment of queries and keys would have to be guessed (promise 5)."""
    queries, keys = shape[-2:]
    if part.reads_query_position and offset is None and queries != keys:
        raise ValueError(
            f"{name} depends on the position of the query, and there are {queries} queries and {keys} keys: "
            f"say how they align, with query_offset=0 (at the start) or query_offset={keys - queries} (at the end)"
        )


def _check_score_dtype(backend: LoadedBackend, name: str, x: Array, query: Array) -> None:
    """Raise TypeError unless an array that is added to the scores has their dtype or the query's."""
    if x.dtype != query.dtype and x.dtype != compute_dtype(backend.xp, query.dtype):
        wanted = check.cast(backend, name, "query.dtype")
        raise TypeError(f"{name} has dtype {x.dtype}, but query has {query.dtype}: write {wanted}")
