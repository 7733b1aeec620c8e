"""Attention and its gradients as one compiled loop over blocks, so that their memory is that of a block.

Under jit, XLA may compute the blocks of the algebra side by side, and grad keeps the weights of every block. Here lax.scan runs
over the list of blocks in which any query sees a key, and the gradients compute the weights again from lse.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass, replace
from functools import partial, reduce
from itertools import product
from typing import Any

import jax
import numpy as np
from jax import Array, lax
from jax import numpy as jnp
from jax.custom_derivatives import SymbolicZero

from mha_core.plugin import (
    ArrayBias,
    AttentionGradients,
    AttentionProblem,
    AttentionState,
    Call,
    DynamicRange,
    Grid,
    Mask,
    Outline,
    Relation,
    block_gradients,
    block_state,
    merge,
    row_terms,
    sink_gradient,
    skewed,
    sum_to,
)

_DENSE = 1 << 20  # scores that the algebra computes as one block, in about the same time
_BLOCK = 1 << 19  # scores in a block: 2 MB in float32
_ARRAYS = ("query", "key", "value")
BlockShape = tuple[int, int]
"""The number of queries, and of keys, that are computed together."""


def supports(call: Call) -> str | None:
    """Return why the kernel leaves a call to the algebra, or None."""
    query, key = (call.shape(name) or () for name in ("query", "key"))
    heads = max(math.prod(query[:-2]), math.prod(key[:-3]) * query[-3])
    if heads * query[-2] * key[-2] <= _DENSE:
        return f"leaves at most {_DENSE} scores to the algebra, which computes them together"
    if call.op == "attention_vjp" and {"bias_term", "d_bias"} <= call.features:
        return "has no rule for the array of such a bias"
    return None


def attention(p: AttentionProblem, *, block: BlockShape | None = None) -> AttentionState:
    """Return the state of a problem, whose gradients are those of ``attention_vjp``."""
    outline = Outline.of(_plain(p), Array)
    return _attention(outline, block, list(outline.arrays(p)))


def attention_vjp(
    p: AttentionProblem,
    state: AttentionState,
    d_out: Array | None,
    d_lse: Array | None,
    wanted: Set[str],
    *,
    block: BlockShape | None = None,
) -> AttentionGradients:
    """Return the gradients of sum(out * d_out) + sum(lse * d_lse), as ``mha_core.algebra.attention_vjp`` does."""
    outline = Outline.of(_plain(p), Array)
    gradients = _gradients(outline, frozenset(wanted), block, list(outline.arrays(p)), state, d_out, d_lse)
    of_bias = gradients.bias
    is_several = p.bias is not None and not p.bias.is_added
    return gradients._replace(bias=of_bias and (tuple(of_bias) if is_several else of_bias[0]))


def _plain(p: AttentionProblem) -> AttentionProblem:
    """Return the problem without what this module does not read."""
    structure = replace(p.structure, band=(None, None), key_lengths=None, packed=None, array=None, rest=None)
    return p.with_arrays(p.query, p.key, p.value, structure=structure, asked=frozenset())


# forward


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _attention(outline: Outline, block: BlockShape | None, arrays: list[Array]) -> AttentionState:
    p = outline.filled(arrays)
    blocks = _VisibleBlocks.of(p, block)

    def step(state: AttentionState, at: Array) -> AttentionState:
        q, rows, cols = blocks.block(p, at)
        old = AttentionState(_slice(state.out, rows, -2), _slice(state.lse, rows, -1))
        new = merge(jnp, old, block_state(q, rows, cols, masked=q.mask is not None))
        return AttentionState(_update(state.out, new.out, rows, -2), _update(state.lse, new.lse, rows, -1))

    # a sink is one more key, whose value is 0
    lse = -math.inf if p.sink is None else p.sink.astype(p.compute_dtype)[:, None]
    state = AttentionState(
        jnp.zeros((*p.rows_shape, p.value.shape[-1]), p.compute_dtype),
        jnp.broadcast_to(jnp.asarray(lse, p.compute_dtype), p.rows_shape),
    )
    out, lse = blocks.scan(step, state, arrays)
    return AttentionState(out.astype(p.query.dtype), lse)


def _forward(outline: Outline, block: BlockShape | None, arrays: list[Any]) -> tuple[AttentionState, tuple[Any, ...]]:
    """Return the state, and what the gradients need: the arrays, the state, and the names of what they are wanted of."""
    wanted = dict.fromkeys(outline.names(x.perturbed for x in arrays))
    arrays = [x.value for x in arrays]
    state = _attention(outline, block, arrays)
    return state, (arrays, state, wanted)


def _backward(
    outline: Outline, block: BlockShape | None, saved: tuple[Any, ...], d: AttentionState
) -> tuple[list[Array | None]]:
    arrays, state, wanted = saved
    d_out, d_lse = (None if isinstance(x, SymbolicZero) else x for x in d)
    gradients = _gradients(outline, frozenset(wanted), block, arrays, state, d_out, d_lse)
    return (outline.placed(outline.filled(arrays), gradients, gradients.bias),)


_attention.defvjp(_forward, _backward, symbolic_zeros=True)
_attention = jax.jit(_attention, static_argnums=(0, 1))


# gradients


@partial(jax.jit, static_argnums=(0, 1, 2))
def _gradients(
    outline: Outline,
    wanted: frozenset[str],
    block: BlockShape | None,
    arrays: list[Array],
    state: AttentionState,
    d_out: Array | None,
    d_lse: Array | None,
) -> AttentionGradients:
    """Return the wanted gradients; that of a bias as those of its arrays, with None for integers."""
    p = outline.filled(arrays)
    d_out = jnp.zeros_like(state.out) if d_out is None else d_out
    blocks, terms = _VisibleBlocks.of(p, block), row_terms(p, state, d_out, d_lse)

    @partial(jax.checkpoint, prevent_cse=False)  # gradients of gradients compute the weights again too
    def step(sums: dict[str, Any], at: Array) -> dict[str, Any]:
        q, rows, cols = blocks.block(p, at)
        of_block = block_gradients(q, rows, cols, terms, wanted, masked=q.mask is not None)
        keys = cols.shifted(-p.structure.keys.start)
        places = {"query": rows, "key": keys, "value": keys}
        added = {name: _added(sums[name], getattr(of_block, name), {-2: places[name]}) for name in places if name in sums}
        if "bias" in sums:
            added["bias"] = _with_bias(q, sums["bias"], rows, cols, of_block.bias)
        return added

    like = {name: getattr(p, name) for name in _ARRAYS if name in wanted}
    if "bias" in wanted:
        like["bias"] = list(outline.bias.arrays(p.bias))
    sums = jax.tree.map(lambda x: jnp.zeros(x.shape, p.compute_dtype) if _is_floating(x) else None, like)
    sums = blocks.scan(step, sums, [*arrays, *state, d_out, d_lse])
    gradients = jax.tree.map(lambda x, d: d if d is None else d.astype(x.dtype), like, sums)
    return AttentionGradients(**gradients, sink=sink_gradient(p, terms) if "sink" in wanted else None)


def _with_bias(
    p: AttentionProblem, sums: list[Array | None], rows: DynamicRange, cols: DynamicRange, d: Array
) -> list[Array | None]:
    """Return the gradients of the arrays of a bias, with those of a block of scores added."""
    if isinstance(d, tuple):  # of the arrays of a score function
        return [total if total is None else total + x.astype(total.dtype) for total, x in zip(sums, d, strict=True)]
    if isinstance(p.bias, ArrayBias):  # may be as large as the scores, so only a part of it is touched
        shape = sums[0].shape
        total = sums[0][(None,) * max(0, 2 - len(shape))]
        index = {axis: span for axis, span in ((-2, rows), (-1, cols)) if total.shape[axis] > 1}
        return [_added(total, d, index).reshape(shape)]
    if p.bias.by_distance:
        first = cols.start - rows.start - (rows.size - 1)
        grid = p.grid(range(1), DynamicRange(first, rows.size + cols.size - 1, _slice_in))
        d = skewed(jnp, d[..., ::-1, :]).sum(-2, keepdims=True)  # over diagonals, the lowest first
    else:
        grid = p.grid(rows, cols)
    outline = Outline.of(p.bias, Array)
    values, pull = jax.vjp(lambda arrays: outline.filled(arrays).block(grid), list(outline.arrays(p.bias)))
    (of_arrays,) = pull(sum_to(jnp, d, values.shape).astype(values.dtype))
    return [total if total is None else total + x.astype(total.dtype) for total, x in zip(sums, of_arrays, strict=True)]


def _is_floating(x: Array) -> bool:
    return jnp.issubdtype(x.dtype, jnp.floating)


# blocks


@dataclass(frozen=True, eq=False)
class _From(Mask):
    """Queries and keys from these on, where a block overlaps the one before it."""

    row: Array
    col: Array

    def block(self, grid: Grid) -> Array:
        return (grid.query_index >= self.row) & (grid.key_index >= self.col)


@dataclass(frozen=True)
class _VisibleBlocks:
    """The blocks in which any query sees a key. All have one shape, so the last of an axis may overlap the one before it."""

    shape: BlockShape
    starts: np.ndarray
    """For each block: the first query and key, and the first of each that no other block has."""

    @classmethod
    def of(cls, p: AttentionProblem, shape: BlockShape | None) -> "_VisibleBlocks":
        queries, keys = range(p.query.shape[-2]), p.structure.keys
        sizes = shape or _block_shape(p)
        num_rows, num_cols = (max(1, min(size, len(every))) for size, every in zip(sizes, (queries, keys), strict=True))
        starts = [
            (min(row, queries.stop - num_rows), min(col, keys.stop - num_cols), row, col)
            for row, col in product(queries[::num_rows], keys[::num_cols])
            if p.mask is None
            or p.mask.relation(p.grid(queries[row : row + num_rows], range(col, min(col + num_cols, keys.stop))))
            is not Relation.NONE
        ]
        return cls((num_rows, num_cols), np.asarray(starts, dtype=int).reshape(-1, 4))

    def scan(self, step: Callable[[Any, Array], Any], start: Any, arrays: Iterable[Array | None]) -> Any:
        """Return what ``step(carry, block)``, which reads these arrays, makes of ``start``, block by block."""
        # inside jax.shard_map, what a scan carries must vary over the same axes of a mesh from its start
        either = reduce(jnp.logical_or, (jnp.ravel(x)[0] == 0 for x in arrays if x is not None and x.size), jnp.asarray(False))
        start = jax.tree.map(lambda x: jnp.where(either, x, x), start)
        return lax.scan(lambda carry, at: (step(carry, at), None), start, self.starts)[0] if len(self.starts) else start

    def block(self, p: AttentionProblem, at: Array) -> tuple[AttentionProblem, DynamicRange, DynamicRange]:
        """Return the problem with the mask of one block, and its queries and keys."""
        row, col, first_row, first_col = at
        mask = p.mask
        if (self.starts[:, :2] != self.starts[:, 2:]).any():
            mask = _From(first_row, first_col) if mask is None else mask & _From(first_row, first_col)
        rows, cols = (DynamicRange(start, size, _slice_in) for start, size in zip((row, col), self.shape, strict=True))
        return p.with_arrays(p.query, p.key, p.value, mask=mask), rows, cols


def _block_shape(p: AttentionProblem) -> BlockShape:
    """Return how many queries and keys a block has: as many of each, which took 0.8 of the time of blocks twice as large."""
    size = max(128, math.isqrt(_BLOCK // max(1, math.prod(p.rows_shape[:-1]))) // 64 * 64)
    queries, keys = p.query.shape[-2], len(p.structure.keys)
    return _even(queries, size), _even(keys, size)


def _even(length: int, size: int) -> int:
    """Return the least size of as many blocks as there would be of ``size``, so that they hardly overlap."""
    return math.ceil(length / max(1, math.ceil(length / size)))


_slice_in = lax.dynamic_slice_in_dim


def _slice(x: Array, index: DynamicRange, axis: int) -> Array:
    return _slice_in(x, index.start, index.size, axis)


def _update(x: Array, part: Array, index: DynamicRange, axis: int) -> Array:
    return lax.dynamic_update_slice_in_dim(x, part, index.start, axis)


def _added(total: Array, d: Array, index: Mapping[int, DynamicRange]) -> Array:
    """Return ``total`` with ``d`` added at some indices of its axes, summed over axes along which it broadcasts."""
    sizes, starts = list(total.shape), [0] * total.ndim
    for axis, span in index.items():
        sizes[axis], starts[axis] = span.size, span.start
    part = lax.dynamic_slice(total, starts, sizes)
    return lax.dynamic_update_slice(total, part + sum_to(jnp, d, sizes), starts)
