"""Attention: the public operations on queries, keys and values."""

from __future__ import annotations

from typing import Unpack

from ..algebra import state as states
from ..algebra.arrays import Array, Index
from ..algebra.int8 import Rows
from ..algebra.state import AttentionState
from ..dispatch.selection import check_floating
from . import check
from .attend import attention_operation
from .attend_vjp import recorded_attention, state_operation
from .functional import linear
from .operation import Step
from .options import Options, shows_options
from .weights import weights_operation

_attention = attention_operation(recorded_attention, lse=False)


@shows_options
def scaled_dot_product_attention(query: Array, key: Rows, value: Rows, **options: Unpack[Options]) -> Array:
    """softmax(q k^T / sqrt(D)) v. Source: Vaswani et al. 2017, equation 1.

    Parameters
    ----------
    query : array (..., H, L, D)
    key : array (..., K, S, D)
        H is a multiple of K; query head i reads key head i // (H / K).
    value : array (..., K, S, E)
        With two axes there is no head axis. Batch axes broadcast. Key and value may be ``Int8Rows``, both.
    mask : Mask or boolean array, broadcast to (..., H, L, S)
        True: may attend.
    bias : Bias or floating array, broadcast likewise
        Added to the scores.
    scale : float, default 1 / sqrt(D)
    softcap : float > 0
        Scores become softcap * tanh(score / softcap).
    sink : array (H,)
        One more score for each head, without a value.
    query_offset : int, or integers of the batch shape
        The position of query 0.

    Returns
    -------
    array (..., H, L, E)
        Has the query's library, device and dtype; 0 for a query that sees no key. A key that no query may see does not affect
        the result, whatever it contains. NaN and infinity reach only the queries that see them. On a GPU, in a compiled or
        mapped function, and by a kernel that ``use_kernel`` demands, those in a key or value may reach others.

    Raises
    ------
    TypeError
        For integers, mixed dtypes, libraries or devices; for ``Int8Rows`` if gradients are recorded.
    ValueError
        For shapes that do not fit; and if a mask or bias depends on positions, L != S, and ``query_offset`` is not given.

    Examples
    --------
    >>> import numpy as np, mha_core as mha
    >>> x = np.eye(2)
    >>> mha.scaled_dot_product_attention(x, x, x, mask=mha.causal()).round(3)
    array([[1.  , 0.  ],
           [0.33, 0.67]])
    """
    return _attention(query, key, value, options.pop("sink", None), **options).out


@shows_options
def attention_state(query: Array, key: Rows, value: Rows, **options: Unpack[Options]) -> AttentionState:
    """Return attention with the logarithm of its normaliser; states over disjoint keys can be merged.

    Parameters and errors: as in ``scaled_dot_product_attention``. Source: Rabe and Staats 2021, section 2.

    Returns
    -------
    AttentionState
        ``out`` (..., H, L, E), and ``lse`` (..., H, L), a natural logarithm, float32, or float64 for float64 input; -inf for a
        query that sees no key.

    Examples
    --------
    >>> import numpy as np, mha_core as mha
    >>> x = np.zeros((1, 4))
    >>> float(mha.attention_state(x, x, x).lse[0])
    0.0
    """
    return state_operation(query, key, value, options.pop("sink", None), **options)


def merge_states(*states_: AttentionState) -> AttentionState:
    """Merge states over disjoint sets of keys. The operation is associative and commutative, with identity (0, -inf).

    Source: Milakov and Gimelshein 2018, section 3.1.

    Parameters
    ----------
    *states : AttentionState, or pairs (out (..., L, E), lse (..., L)), all of one shape

    Returns
    -------
    AttentionState
        In the dtypes of the first state.

    Raises
    ------
    TypeError
        If no state is given.
    ValueError
        If shapes differ.

    Examples
    --------
    >>> import numpy as np, mha_core as mha
    >>> q, k, v = np.ones((1, 4)), np.eye(4), np.eye(4)
    >>> halves = [mha.attention_state(q, k[s], v[s]) for s in (slice(0, 2), slice(2, 4))]
    >>> mha.merge_states(*halves).out
    array([[0.25, 0.25, 0.25, 0.25]])
    """
    if not states_:
        raise TypeError("merge_states: expected at least one state")
    return _merge_states(states_[0][0], states_)


@Step
def _merge_states(_: Array, states_: tuple[AttentionState, ...]) -> AttentionState:
    attention_states = [AttentionState(*state) for state in states_]
    backend = check_floating(**{f"states[{i}].out": state.out for i, state in enumerate(attention_states)})  # type: ignore[arg-type]
    check_floating(**{f"states[{i}].lse": state.lse for i, state in enumerate(attention_states)})  # type: ignore[arg-type]
    for i, state in enumerate(attention_states):
        check.shape(f"states[{i}].out", state.out, tuple(attention_states[0].out.shape), "the shape of states[0].out")
        check.shape(f"states[{i}].lse", state.lse, tuple(state.out.shape[:-1]), "the shape of out without its last axis")
    return states.merge_states(backend.xp, attention_states)


@shows_options
def attention_weights(
    query: Array,
    key: Array,
    lse: Array | None = None,
    *,
    rows: slice | Index = slice(None),
    cols: slice | Index = slice(None),
    **options: Unpack[Options],
) -> Array:
    """Return the weights softmax(q k^T / sqrt(D)), all of them or some rows and columns.

    Parameters
    ----------
    query, key, options : as ``scaled_dot_product_attention``
        Mask, bias and offset describe the whole problem.
    lse : array (..., H, L), from ``attention_state``, a sink included
        By default it is computed.
    rows, cols : slices or sequences of indices of queries and keys
        They only select.

    Returns
    -------
    array (..., H, rows, cols)
        In the query's dtype: exactly 0 where masked, and in the row of a query that sees no key.

    Examples
    --------
    >>> import numpy as np, mha_core as mha
    >>> x = np.zeros((3, 4))
    >>> mha.attention_weights(x, x, mask=mha.causal(), rows=[1])
    array([[0.5, 0.5, 0. ]])
    """
    return weights_operation(query, key, lse, rows, cols, **options)


@shows_options
def self_attention(x: Array, w_q: Array, w_k: Array, w_v: Array, **options: Unpack[Options]) -> tuple[Array, Array]:
    """Return one head of self-attention, and its weights: q = x w_q, k = x w_k, v = x w_v.

    Source: Vaswani et al. 2017, equation 1.

    Parameters
    ----------
    x : array (..., L, d_model)
    w_q, w_k : arrays (d_model, d_k)
    w_v : array (d_model, d_v)
    options : as ``scaled_dot_product_attention``, with H = 1

    Returns
    -------
    out : array (..., L, d_v)
    weights : array (..., L, L)

    Examples
    --------
    >>> import numpy as np, mha_core as mha
    >>> x, w = np.eye(2), np.eye(2)
    >>> out, weights = mha.self_attention(x, w, w, w)
    >>> bool((out == weights).all())
    True
    """
    return _self_attention(x, w_q, w_k, w_v, **options)


@Step
def _self_attention(x: Array, w_q: Array, w_k: Array, w_v: Array, **options: Unpack[Options]) -> tuple[Array, Array]:
    check_floating(x=x, w_q=w_q, w_k=w_k, w_v=w_v)
    check.ndim("x", x, 2, "(..., length, d_model)")
    for name, w in (("w_q", w_q), ("w_k", w_k), ("w_v", w_v)):
        if w.ndim != 2 or w.shape[0] != x.shape[-1]:
            raise ValueError(f"{name} has shape {tuple(w.shape)}; expected (d_model, d) with d_model = {x.shape[-1]}, as x has")
    q, k, v = (linear(x, w)[..., None, :, :] for w in (w_q, w_k, w_v))
    out, lse = attention_state(q, k, v, **options)
    seen = attention_weights(q, k, lse, **options)
    return out[..., 0, :, :], seen[..., 0, :, :]
