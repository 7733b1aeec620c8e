"""Multi-head attention from weights, as the papers write it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple, Self, TypeAlias, Unpack

from ..algebra.arrays import Array, Namespace, move_axis
from ..algebra.int8 import Weight, arrays_of
from ..dispatch.context import dry
from ..dispatch.selection import check_floating
from . import check
from .attention import attention_weights, scaled_dot_product_attention
from .caches import Cache, attended, check_positions, rotated, unchanged_on_error
from .composite import composite
from .elementary import Examined
from .functional import linear
from .operation import Step
from .options import NAMES as OPTION_NAMES
from .options import Options, given_options, shows_options
from .projections import HeadNorm, Projection, check_projections, heads
from .ranks import Ranks, heard_by_ranks

Rotation: TypeAlias = Callable[[Array, int | Array], Array]
"""Function of heads and the position of the first query; returns the rotated heads."""


@shows_options
@heard_by_ranks
def multi_head_attention(
    x: Array,
    w_q: Weight,
    w_k: Weight,
    w_v: Weight,
    w_o: Weight,
    num_heads: int,
    *,
    context: Array | None = None,
    value_context: Array | None = None,
    num_kv_heads: int | None = None,
    b_q: Array | None = None,
    b_k: Array | None = None,
    b_v: Array | None = None,
    b_o: Array | None = None,
    norm_q: HeadNorm | None = None,
    norm_k: HeadNorm | None = None,
    rotary: Rotation | None = None,
    cache: Cache | None = None,
    group: Ranks | None = None,
    **options: Unpack[Options],
) -> Array:
    """Concat(head_1, ..., head_h) w_o, with head_i = Attention(x w_q_i, c w_k_i, c w_v_i) and c = ``context``, or x itself.

    Source: Vaswani et al. 2017, section 3.2.2; Ainslie et al. 2023, section 2.2, for ``num_kv_heads``; Henry et al. 2020,
    section 3, for norms of queries and keys.

    Parameters
    ----------
    x : array (..., L, d_model)
    w_q : array (d_model, h * d_k)
    w_k : array (d_context, kv * d_k)
    w_v : array (d_context, kv * d_v)
    w_o : array (h * d_v, d_out)
        Head i has the i-th of h equal parts of the columns of w_q and the rows of w_o; w_k and w_v have kv such parts.
    num_heads : h
    context : array (..., S, d_context)
        For cross-attention.
    value_context : array (..., S, d)
        The input of the values, by default that of the keys.
    num_kv_heads : kv, a divisor of h, default h
    b_q, b_k, b_v, b_o : biases of the four products
    norm_q, norm_k : functions of heads (..., h, L, d_k) and (..., kv, S, d_k), such as a layer ``RMSNorm``
        Return the queries and the keys of each head normalized, before they are rotated.
    rotary : function of heads (..., h, L, d_k) and an offset
        Returns the heads rotated by position, as the layer ``Rotary`` does.
    cache : KeyValueCache, or what ``PackedCache.next`` returns
        New keys and values are appended to it, and the query offset follows from its length. One with a window drops old
        positions, so the mask must be a window too. With a PackedCache, x holds several sequences end to end.
    group : mha_core.distributed.Sharding
        Sequences are spread over ranks: x and the context are this rank's parts; with a cache, x is the whole.
    options : as ``scaled_dot_product_attention``

    Returns
    -------
    array (..., L, d_out)

    Raises
    ------
    ValueError
        For weights that do not divide into heads, and for options that contradict each other.

    Examples
    --------
    >>> import numpy as np, mha_core as mha
    >>> mha.multi_head_attention(np.ones((2, 3)), np.ones((3, 6)), np.ones((3, 6)), np.ones((3, 6)), np.eye(6), num_heads=2)
    array([[3., 3., 3., 3., 3., 3.],
           [3., 3., 3., 3., 3., 3.]])
    """
    biases = {"b_q": b_q, "b_k": b_k, "b_v": b_v, "b_o": b_o}
    optional: dict[str, Any] = {"context": context, "value_context": value_context, "norm_q": norm_q, "norm_k": norm_k}
    optional |= {"rotary": rotary, "group": group}
    keywords = {**biases, **{name: value for name, value in optional.items() if value is not None}, **given_options(options)}
    arguments = (x, w_q, w_k, w_v, w_o, num_heads)
    kv = num_heads if num_kv_heads is None else num_kv_heads
    if cache is None:
        return _operation(*arguments, num_kv_heads=kv, **keywords)
    if options.get("query_offset") is not None:
        raise ValueError("query_offset is given with cache, which determines it: leave query_offset out")
    return _with_cache(*arguments, num_kv_heads=kv, cache=cache, **keywords)


class _Arguments(NamedTuple):
    """The arguments of a call, without the cache."""

    x: Array
    w_q: Weight
    w_k: Weight
    w_v: Weight
    w_o: Weight
    num_heads: int
    num_kv_heads: int
    options: Options
    """The options of attention."""
    b_q: Array | None = None
    b_k: Array | None = None
    b_v: Array | None = None
    b_o: Array | None = None
    context: Array | None = None
    value_context: Array | None = None
    norm_q: HeadNorm | None = None
    norm_k: HeadNorm | None = None
    rotary: Rotation | None = None
    group: Ranks | None = None

    @classmethod
    def of(cls, *arguments: Any, **keywords: Any) -> Self:
        """Return the record of a call, in which the options of attention are among the others."""
        options = {name: keywords.pop(name) for name in list(keywords) if name in OPTION_NAMES}
        return cls(*arguments, **keywords, options=options)  # type: ignore[misc, arg-type]

    def projections(self) -> tuple[Projection, Projection, Projection]:
        """Return the projections of queries, keys and values, for their checks."""
        keys_input = _keys_input(self.x, self.context)
        values_input = keys_input if self.value_context is None else ("value_context", self.value_context)
        return (
            Projection("w_q", "x", self.x, self.w_q, self.b_q, self.num_heads, self.norm_q),
            Projection("w_k", *keys_input, self.w_k, self.b_k, self.num_kv_heads, self.norm_k),
            Projection("w_v", *values_input, self.w_v, self.b_v, self.num_kv_heads),
        )

    def source(self) -> Mapping[str, Array | None]:
        """Return what keys and values are computed with, besides x and the context."""
        named = {"w_k": self.w_k, "b_k": self.b_k, "w_v": self.w_v, "b_v": self.b_v, "value_context": self.value_context}
        return arrays_of(named)


def _keys_input(x: Array, context: Array | None) -> tuple[str, Array]:
    return ("x", x) if context is None else ("context", context)


@Step
def _with_cache(*arguments: Any, cache: Cache, **keywords: Any) -> Array:
    if not hasattr(cache, "parts"):
        kind = type(cache).__name__
        raise TypeError(f"cache is a {kind}; expected a KeyValueCache, or what next(lengths) of a PackedCache returns")
    if keywords.get("group") is None and getattr(cache, "whole", None) is not None and cache.window is None:
        raise ValueError("the cache is spread over ranks: give the group that it was filled with")
    # kernels must not change their arguments, such as a cache; those of the smaller operations may still be used
    examined = _examine(*arguments, **keywords)
    if examined.backend.plain is not None:
        raise ValueError("cache is given while gradients are recorded; train on whole sequences: leave cache out")
    own_positions = keywords.get("context") is None and keywords.get("group") is None
    if not own_positions and not hasattr(cache, "of_context"):
        raise ValueError(
            "a PackedCache is for self-attention on one rank: leave context and group out, or give a KeyValueCache"
        )
    algebra = partial(_own_positions, examined.backend.xp) if own_positions else examined.algebra
    with unchanged_on_error(cache):
        return algebra(*arguments, cache=cache, **keywords)


_WEIGHTS = ("w_q", "w_k", "w_v", "w_o")
_BIASES = ("b_q", "b_k", "b_v", "b_o")
_OPTIONAL = ("context", "value_context", *_BIASES)


def _examine(*arguments: Any, **keywords: Any) -> Examined:
    a = _Arguments.of(*arguments, **keywords)
    weights = {name: getattr(a, name) for name in _WEIGHTS}
    backend = check_floating(x=a.x, **weights, optional={name: getattr(a, name) for name in _OPTIONAL})
    if a.context is None and a.value_context is not None:
        raise ValueError("value_context is given without context; expected both")
    _check_rotary(a.context, a.rotary)
    if a.group is not None and not hasattr(a.group, "attention_to_cache"):
        raise TypeError(f"group is {type(a.group).__name__}; expected mha_core.distributed.Sharding(group, layout)")
    check_projections(*a.projections())
    for name, w in zip(_BIASES, weights.values(), strict=True):
        check.shape(name, getattr(a, name), tuple(w.shape[1:]), "a number for each column of its weight")
    joined = a.num_heads * (a.w_v.shape[1] // a.num_kv_heads)
    if a.w_o.ndim != 2 or a.w_o.shape[0] != joined:
        expected = f"({joined}, d_out): a row for each feature of {a.num_heads} heads"
        raise ValueError(f"w_o has shape {tuple(a.w_o.shape)}; expected {expected}")
    return Examined(
        backend,
        partial(_multi_head, backend.xp),
        shape=(*a.x.shape[:-1], a.w_o.shape[1]),
        features=[
            *(keywords.keys() - {*_BIASES, "num_kv_heads"}),
            *(["grouped_query"] if a.num_kv_heads != a.num_heads else []),
        ],
        settings=[("num_heads", a.num_heads), ("num_kv_heads", a.num_kv_heads)],
    )


def _multi_head(xp: Namespace, *arguments: Any, cache: Cache | None = None, **keywords: Any) -> Array:
    a = _Arguments.of(*arguments, **keywords)
    x, context, group, options = a.x, a.context, a.group, a.options
    q, source = heads(xp, x, a.w_q, a.b_q, a.num_heads, a.norm_q), a.source()
    cached = cache.of_context(context, source) if cache is not None and context is not None else None
    k: Any  # arrays, or int8 rows of a cache
    v: Any
    if cached is None:
        keys_input = x if context is None else context
        values_input = keys_input if a.value_context is None else a.value_context
        k = heads(xp, keys_input, a.w_k, a.b_k, a.num_kv_heads, a.norm_k)
        v = heads(xp, values_input, a.w_v, a.b_v, a.num_kv_heads)
    else:
        k, v = cached
    if cache is not None and context is None:
        options["query_offset"] = cache.length  # that of a cache over ranks; _own_positions has the others
    elif context is None and x.shape[-2] is None:
        options.setdefault("query_offset", 0)  # there are as many queries as keys, even if the library does not know how many
    if a.rotary is not None:
        rotate = a.rotary if group is None or cache is not None else partial(group.rotated, a.rotary)
        q, k = (rotate(y, _start(options)) for y in (q, k))
    attend: Callable[..., Array] = scaled_dot_product_attention
    whole = None
    if group is not None:
        attend = group.attention if cache is None else group.attention_to_cache
    if group is not None and cache is not None:
        k, v, whole = *_kept_by_rank(group, cache, context, k, v), cache.length + x.shape[-2]
    if cache is not None and cached is None:
        k, v = cache.joined(k, v, source)
    out = attend(q, k, v, **options)
    if cache is not None and not dry.get():
        cache.key, cache.value, cache.context, cache.source, cache.whole = k, v, context, source, whole
    return _output(xp, a, out)


def _output(xp: Namespace, a: _Arguments, out: Array) -> Array:
    """Return the last linear map of heads (..., h, L, d_v)."""
    out = move_axis(xp, out, -3, -2)
    return linear(xp.reshape(out, (*out.shape[:-2], a.w_o.shape[0])), a.w_o, a.b_o)


def _own_positions(xp: Namespace, *arguments: Any, cache: Cache, **keywords: Any) -> Array:
    """Self-attention to the positions of a cache, behind which it writes those of x; each sequence sees its own."""
    a = _Arguments.of(*arguments, **keywords)
    q, source = heads(xp, a.x, a.w_q, a.b_q, a.num_heads, a.norm_q), a.source()
    k = heads(xp, a.x, a.w_k, a.b_k, a.num_kv_heads, a.norm_k)
    v = heads(xp, a.x, a.w_v, a.b_v, a.num_kv_heads)
    parts = cache.parts(tuple(a.x.shape[:-1]))
    check_positions(parts, a.options)
    if a.rotary is not None:
        q, k = (rotated(xp, a.rotary, y, parts) for y in (q, k))
    if len(parts) == 1:
        return _output(xp, a, attended(q, k, v, parts[0].cache, source, a.options))
    out = []
    for own, rows in parts:
        new_q, new_k, new_v = (y[..., rows, :] for y in (q, k, v))
        out.append(attended(new_q, new_k, new_v, own, source, a.options))
    return _output(xp, a, xp.concat(out, axis=-2))


def _kept_by_rank(group: Ranks, cache: Cache, context: Array | None, k: Array, v: Array) -> tuple[Array, Array]:
    """Return the new keys and values that this rank keeps."""
    if context is not None:
        raise ValueError("group and cache are given with context, which is not spread over ranks: leave group out")
    if cache.window is not None:
        raise ValueError("group is given, but the cache drops positions: use a cache without window")
    if cache.dtype is not None:
        raise ValueError("group is given, but the cache rounds positions to int8: use a cache without dtype")
    if cache.capacity is not None:
        raise ValueError("group is given, but the cache has a capacity: use a cache without capacity")
    if cache.key is not None and cache.whole is None:
        raise ValueError("group is given, but the cache holds all positions: start with an empty cache")
    return group.cached(k, cache.length), group.cached(v, cache.length)


def _named(*arguments: Any, **keywords: Any) -> dict[str, Weight | None]:
    arrays = dict(zip(("x", *_WEIGHTS), arguments[:5], strict=True))
    return {**arrays, **{name: keywords.get(name) for name in _OPTIONAL}}


_operation = composite("multi_head_attention", _named, _examine, facts=lambda *arguments: (type(arguments[5]), arguments[5]))


@shows_options
def multi_head_weights(
    x: Array,
    w_q: Weight,
    w_k: Weight,
    num_heads: int,
    *,
    context: Array | None = None,
    num_kv_heads: int | None = None,
    b_q: Array | None = None,
    b_k: Array | None = None,
    norm_q: HeadNorm | None = None,
    norm_k: HeadNorm | None = None,
    rotary: Rotation | None = None,
    **options: Unpack[Options],
) -> Array:
    """Return the attention weights of each head, (..., h, L, S). Arguments and errors as in ``multi_head_attention``."""
    kv = num_heads if num_kv_heads is None else num_kv_heads
    queries = Projection("w_q", "x", x, w_q, b_q, num_heads, norm_q)
    keys = Projection("w_k", *_keys_input(x, context), w_k, b_k, kv, norm_k)
    return _multi_head_weights(x, queries, keys, context, rotary, **options)


@Step
def _multi_head_weights(
    x: Array,
    queries: Projection,
    keys: Projection,
    context: Array | None,
    rotary: Rotation | None,
    **options: Unpack[Options],
) -> Array:
    backend = check_floating(x=x, w_q=queries.w, w_k=keys.w, optional={"context": context, "b_q": queries.b, "b_k": keys.b})
    _check_rotary(context, rotary)
    check_projections(queries, keys)
    q, k = (projection.heads(backend.xp) for projection in (queries, keys))
    if rotary is not None:
        q, k = (rotary(y, _start(options)) for y in (q, k))
    return attention_weights(q, k, **options)


def _check_rotary(context: Array | None, rotary: Rotation | None) -> None:
    if context is not None and rotary is not None:
        raise ValueError("rotary and context are both given; rotary positions apply to self-attention only: leave one out")


def _start(options: Options) -> int | Array:
    """Return the position of the first query, which is also that of the first new key."""
    offset = options.get("query_offset")
    return 0 if offset is None else offset
