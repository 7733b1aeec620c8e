"""Gradients of attention by blocks, from its state (Dao et al. 2022, appendix B.2; Dao 2023, algorithm 2).

With the scores s of a query over its keys, weights w_j = e^(s_j - lse), and the gradients do of out and dl of lse:

    delta = do . out - dl        dw_j = do . v_j        ds_j = w_j (dw_j - delta)
    dv_j = w_j do                dsink = -e^(sink - lse) delta
    dq = scale ds_j c_j k_j      dk_j = scale ds_j c_j q        c_j = 1 - tanh^2(scale q k_j / c), the slope of the softcap

summed over what each of them belongs to; the gradient of a bias is ds. The weights follow from lse, so memory is that of a
block, and lse may be that of a merged state. A pair that does not attend, and a query that sees no key, add exactly 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Set
from dataclasses import replace
from typing import Any, NamedTuple

from .arrays import AnyIndex, Array, Namespace, pick
from .attention import dropped, grouped, hidden, kept, products, ungrouped, upcast
from .biases import BiasSum
from .block_sum import BlockSum
from .blocks import batch_slice_size, block_shape, visible_blocks
from .grid import Relation
from .packed import goes_by_sequence, sequences
from .problem import AttentionProblem, check_lengths
from .state import AttentionState
from .tiles import pieces
from .visibility import seeing


class AttentionGradients(NamedTuple):
    """Gradients of the arrays that attention depends on, each in its array's shape and dtype; None for those not wanted."""

    query: Array | None = None
    key: Array | None = None
    value: Array | None = None
    bias: Array | None = None
    """The gradient of an array bias, or of the table of a relative bias."""
    sink: Array | None = None


def attention_vjp(
    problem: AttentionProblem,
    state: AttentionState,
    d_out: Array | None,
    d_lse: Array | None,
    wanted: Set[str],
    *,
    dtype: Any = None,
) -> AttentionGradients:
    """Return the gradients of sum(out * d_out) + sum(lse * d_lse), of the fields of ``AttentionGradients`` in ``wanted``.

    ``state`` is that of the problem, ``d_out`` (..., H, L, E) and ``d_lse`` (..., H, L); None stands for zeros. ``dtype`` is
    that of the gradients of query, key and value, by default their own.
    """
    p, xp = problem, problem.xp
    check_lengths(p, "the gradient of attention")
    d_out = xp.zeros_like(state.out) if d_out is None else d_out
    if goes_by_sequence(p):
        return gradients_by_sequence(p, state, d_out, d_lse, wanted, attention_vjp)
    if (size := batch_slice_size(p)) is not None:
        return _by_batch_slices(p, size, state, d_out, d_lse, wanted)
    terms = row_terms(p, state, d_out, d_lse)
    sums = _GradientSums(p, wanted, p.query.dtype if dtype is None else dtype)
    num_rows, num_cols = block_shape(p, p.query.shape[-2])
    computed: list[Array | None] = []
    for rows in pieces(range(p.query.shape[-2]), num_rows):
        for cols, relation in visible_blocks(p, rows, num_cols):
            block = block_gradients(p.after(*computed), rows, cols, terms, wanted, masked=relation is Relation.SOME)
            computed = sums.add(rows, cols, block)
    return sums.gradients(sink_gradient(p, terms) if "sink" in wanted else None)


class RowTerms(NamedTuple):
    """Terms of the gradients for each query, in the compute dtype; 0 for queries that see no key."""

    lse: Array
    d_out: Array
    delta: Array


def row_terms(p: AttentionProblem, state: AttentionState, d_out: Array, d_lse: Array | None) -> RowTerms:
    """Return lse, d_out, and delta = d_out . out - d_lse."""
    xp = p.xp
    no_terms = state.lse == -math.inf
    seen = None if p.sink is None else seeing(p)  # the lse of a query that sees no key is then the sink
    blind = no_terms if seen is None else no_terms | ~seen
    d_out = xp.where(blind[..., None], 0, upcast(p, d_out))
    delta = xp.sum(d_out * upcast(p, state.out), axis=-1)
    delta = xp.where(no_terms, 0, delta if d_lse is None else delta - d_lse)
    return RowTerms(xp.where(no_terms, 0, state.lse), d_out, delta)


class _GradientSums:
    """The sums over blocks of the wanted gradients."""

    def __init__(self, p: AttentionProblem, wanted: Set[str], dtype: Any) -> None:
        self.p, self.dtype = p, dtype
        arrays = {"query": p.query, "key": p.key, "value": p.value}
        self.of = {name: BlockSum(p.xp, x.shape) for name, x in arrays.items() if name in wanted}
        self.bias: BiasSum | None = p.bias.sum(p.xp) if p.bias is not None and "bias" in wanted else None

    def add(self, rows: range, cols: range, block: AttentionGradients) -> list[Array | None]:
        """Add the gradients of one block of queries and keys; return the sums that they entered."""
        entered: list[Array | None] = []
        for name, total in self.of.items():
            d = getattr(block, name)
            index = rows if name == "query" else kept(self.p, cols)
            assert isinstance(index, range)
            entered.append(total.add(index, range(d.shape[-1]), d))
        if self.bias is not None and block.bias is not None:
            entered.append(self.bias.add(self.p.grid(rows, cols), block.bias))
        return entered

    def gradients(self, sink: Array | None) -> AttentionGradients:
        p = self.p
        wholes = {name: each.whole(self.dtype, p.device) for name, each in self.of.items()}
        return AttentionGradients(**wholes, bias=None if self.bias is None else self.bias.whole(p.device), sink=sink)


def block_gradients(
    p: AttentionProblem, rows: AnyIndex, cols: AnyIndex, terms: RowTerms, wanted: Set[str], *, masked: bool = True
) -> AttentionGradients:
    """Return what one block of queries and keys adds to the wanted gradients, in the compute dtype.

    That of a query, key or value is one of ``rows`` or ``cols``, not yet summed over batch axes that it shares; ``bias`` is
    that of the scores, (..., H, rows, cols). ``masked=False`` leaves the mask out; every pair must then be known to attend.
    """
    xp, gradients = p.xp, AttentionGradients()
    q, do = (grouped(p, upcast(p, pick(xp, x, rows, -2))) for x in (p.query, terms.d_out))
    k, v = (upcast(p, pick(xp, x, kept(p, cols), -2))[..., :, None, :, :] for x in (p.key, p.value))
    lse, delta = (grouped(p, pick(xp, x[..., None], rows, -2)) for x in (terms.lse, terms.delta))

    capped, pull = products(p, rows, cols), None
    s = capped
    if p.bias is not None:
        s, pull = p.bias.pullback(ungrouped(p, capped), p.grid(rows, cols), of_arrays="bias" in wanted)
        s = grouped(p, s)
    w = xp.exp((hidden(p, s, rows, cols) if masked else s) - lse)
    if "value" in wanted:
        gradients = gradients._replace(value=_over_groups(p, dropped(p, w, rows, cols), do))
    if wanted.isdisjoint({"query", "key", "bias"}):
        return gradients
    # by selection, since the value of a key that this query does not see may be NaN to others
    dw = dropped(p, xp.matmul(do, xp.matrix_transpose(v)), rows, cols)
    ds = xp.where(w == 0, 0, w * (dw - delta))
    if pull is not None:
        of_scores, of_bias = pull(ungrouped(p, ds))
        ds = grouped(p, of_scores)
        gradients = gradients._replace(bias=of_bias if "bias" in wanted else None)
    if p.softcap is not None:
        t = capped / p.softcap
        ds = ds * (1 - t * t)
    ds = ds * p.scale
    if "query" in wanted:
        gradients = gradients._replace(query=ungrouped(p, xp.matmul(ds, k)))
    if "key" in wanted:
        gradients = gradients._replace(key=_over_groups(p, ds, q))
    return gradients


def _over_groups(p: AttentionProblem, weights: Array, x: Array) -> Array:
    """(..., K, G, l, s), (..., K, G, l, d) -> (..., K, s, d): the sum over the queries of all heads that share a key."""
    xp = p.xp
    weights, x = (xp.reshape(y, (*y.shape[:-3], y.shape[-3] * y.shape[-2], y.shape[-1])) for y in (weights, x))
    return xp.matmul(xp.matrix_transpose(weights), x)


def sink_gradient(p: AttentionProblem, terms: RowTerms) -> Array:
    """-e^(sink - lse) delta, summed over queries and batch: (H,)."""
    assert p.sink is not None
    return summed_over_rows(p.xp, p.sink, terms.lse, terms.delta)


def summed_over_rows(xp: Namespace, sink: Array, lse: Array, delta: Array) -> Array:
    """-e^(sink - lse) delta, summed over all axes but the heads; lse and delta are (..., H, L)."""
    of_rows = xp.exp(xp.astype(sink, lse.dtype, copy=False)[:, None] - lse) * delta
    summed_axes = tuple(axis for axis in range(of_rows.ndim) if axis != of_rows.ndim - 2)
    return xp.astype(-xp.sum(of_rows, axis=summed_axes), sink.dtype, copy=False)


# gradients of runs and of slices


def gradients_by_sequence(
    p: AttentionProblem,
    state: AttentionState,
    d_out: Array,
    d_lse: Array | None,
    wanted: Set[str],
    vjp: Callable[..., AttentionGradients],
) -> AttentionGradients:
    """Return the gradients of packed sequences; ``vjp`` is called once for each run of equal lengths, as ``attention_vjp``."""

    gradients = AttentionGradients()

    def of_run(run: Any) -> AttentionGradients:
        nonlocal gradients
        run_state = AttentionState(run.stacked(state.out), run.stacked_rows(state.lse))
        d_rows = None if d_lse is None else run.stacked_rows(d_lse)
        gradients = vjp(run.problem.after(*gradients), run_state, run.stacked(d_out), d_rows, wanted)
        gradients = gradients._replace(
            **{name: run.laid_out(x) for name in ("query", "key", "value") if (x := getattr(gradients, name)) is not None}
        )
        return gradients

    return _joined(p, map(of_run, sequences(_with_wide_sink(p))), lambda name: -2)


def _by_batch_slices(
    p: AttentionProblem, size: int, state: AttentionState, d_out: Array, d_lse: Array | None, wanted: Set[str]
) -> AttentionGradients:
    """Return the gradients of slices of the first batch axis; those of an array that they share are summed."""
    ndim = len(p.batch_shape) + 3

    def is_shared(x: Array) -> bool:
        return x.ndim < ndim or x.shape[0] == 1

    gradients = AttentionGradients()

    def of_slice(start: int) -> AttentionGradients:
        nonlocal gradients
        batch = slice(start, start + size)
        arrays = (x if is_shared(x) else x[batch, ...] for x in (p.query, p.key, p.value))
        slice_state = AttentionState(state.out[batch, ...], state.lse[batch, ...])
        d_rows = None if d_lse is None else d_lse[batch, ...]
        problem = wide.with_arrays(*arrays).after(*gradients)
        gradients = attention_vjp(problem, slice_state, d_out[batch, ...], d_rows, wanted, dtype=p.compute_dtype)
        return gradients

    wide = _with_wide_sink(p)
    return _joined(p, map(of_slice, range(0, p.batch_shape[0], size)), lambda name: None if is_shared(getattr(p, name)) else 0)


def _with_wide_sink(p: AttentionProblem) -> AttentionProblem:
    """Return the problem with a sink in the dtype of the scores: the gradients of pieces are summed before they are rounded."""
    return p if p.sink is None else replace(p, sink=upcast(p, p.sink))


def _joined(
    p: AttentionProblem, pieces: Iterator[AttentionGradients], axis_of: Callable[[str], int | None]
) -> AttentionGradients:
    """Return the gradients of pieces as one: concatenated along ``axis_of`` an array, or summed if that is None."""
    all_gradients, arrays = list(pieces), ("query", "key", "value")

    def one(name: str) -> Array | None:
        gradients: list[Any] = [getattr(piece, name) for piece in all_gradients]
        axis = axis_of(name) if name in arrays else None
        if gradients[0] is None:
            return None
        dtype = {"bias": gradients[0], "sink": p.sink}.get(name, p.query).dtype
        if axis is not None:
            return p.xp.astype(p.xp.concat(gradients, axis=axis), dtype, copy=False)
        total = upcast(p, gradients[0])
        for each in gradients[1:]:
            total = total + upcast(p, each)
        return p.xp.astype(total, dtype, copy=False)

    return AttentionGradients(**{name: one(name) for name in AttentionGradients._fields})
