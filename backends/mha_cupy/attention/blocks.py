"""The kernel ``blocks``: attention as two cuBLAS products with a fused softmax between them, one block of scores at a time.

For each block of queries: scores = scale q k^T by cuBLAS, in float32 (float64 for float64); weights and log-sum-exp by one
kernel (cuda/softmax.cu); out = weights v by cuBLAS. If there are more keys than a row of a block may hold, they are processed
in chunks, whose states are merged. The host never waits for the device.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import reduce
from typing import Any

import numpy

from mha_core.plugin import AttentionProblem, AttentionState, Call, by_sequence, goes_by_sequence, merge

from .. import launch, products
from ..launch import Launch, c_name
from ..products import with_strides
from . import partition
from .batch_axes import over_batches
from .mask_and_bias import MaskAndBias, along, supports_shapes, with_batch
from .partition import ScoreBlock, threads_of_row

# Float16 weights of many keys would be subnormal; the second product divides by this factor again.
_WEIGHT_FACTOR = {"float16": 2.0**14}


def supports(call: Call) -> str | None:
    return supports_shapes(call) or products.missing()


def attention(p: AttentionProblem) -> AttentionState:
    """Return out in the problem's dtype, and lse if it is asked for or there is a sink."""
    xp = p.xp
    state = by_sequence(p, _attention) if goes_by_sequence(p) else _attention(p)
    if p.sink is not None:  # a sink is one more score without a value: merge with the state (0, sink)
        sink = xp.broadcast_to(xp.astype(p.sink, p.compute_dtype, copy=False)[:, None], state.lse.shape)
        state = merge(xp, state, AttentionState(xp.zeros_like(state.out), sink))
    return AttentionState(xp.astype(state.out, p.query.dtype, copy=False), state.lse)


def _attention(p: AttentionProblem) -> AttentionState:
    """Return the state without the sink. It is not rounded to the problem's dtype if a sink is still to be merged."""
    has_sink = p.sink is not None
    return over_batches(p, _fill, dtype=p.compute_dtype if has_sink else p.query.dtype, lse=has_sink or "lse" in p.asked)


def _fill(p: AttentionProblem, index: tuple[int, ...], out: Any, lse: Any) -> None:
    """Fill out (b, K, G, L, E) and lse (b, K, G, L), block by block, for one index of the batch axes before the last."""
    modifiers = MaskAndBias(p, index)
    query, key, value = (with_batch(x, index) for x in (p.query, p.key, p.value))
    query = p.xp.reshape(query, (query.shape[0], -1, p.num_groups, *query.shape[2:]))
    arrays = query, key[:, :, None], value[:, :, None]
    batch, heads, groups, rows = out.shape[:-1]
    copies = batch * heads * groups if modifiers.is_computed else 0
    max_keys = partition.MAX_KEYS // 2 if str(query.dtype) == "float64" else partition.MAX_KEYS
    shape = (batch, heads, groups, rows, p.key.shape[-2])
    for block in partition.blocks(*shape, modifiers.band, copies=copies, max_keys=max_keys):
        place = (slice_of(block.batch), slice_of(block.heads), slice(None), slice_of(block.rows))
        lse_of_block = None if lse is None else lse[place]
        if len(block.cols) == 1:
            _state(modifiers, arrays, block, block.cols[0], out[place], lse_of_block)
            continue
        merged = reduce(lambda a, b: merge(p.xp, a, b), _states(modifiers, arrays, block, out[place].shape))
        out[place] = p.xp.astype(merged.out, out.dtype, copy=False)
        if lse_of_block is not None:
            lse_of_block[...] = merged.lse


def _states(
    modifiers: MaskAndBias, arrays: tuple[Any, ...], block: ScoreBlock, shape: tuple[int, ...]
) -> Iterator[AttentionState]:
    """Yield the state over no keys, then the state over each chunk of a block's keys, in the compute dtype."""
    p = modifiers.p
    where: dict[str, Any] = {"dtype": p.compute_dtype, "device": p.device}
    yield AttentionState(p.xp.zeros(shape, **where), p.xp.full(shape[:-1], -math.inf, **where))
    for cols in block.cols:
        state = AttentionState(p.xp.empty(shape, **where), p.xp.empty(shape[:-1], **where))
        _state(modifiers, arrays, block, cols, *state)
        yield state


def _state(modifiers: MaskAndBias, arrays: tuple[Any, ...], block: ScoreBlock, cols: range, out: Any, lse: Any) -> None:
    """Fill out (b, k, G, l, E), and lse (b, k, G, l) unless it is None: a product, the softmax, and a product.

    The second product multiplies the weights 0 of a fully masked row by every value, and 0 times NaN is NaN: such rows of out
    are set to 0.
    """
    p, xp = modifiers.p, modifiers.p.xp
    if lse is None and not modifiers.every_row_sees:
        lse = xp.empty(out.shape[:-1], dtype=p.compute_dtype, device=p.device)
    query, key, value = (along(along(x, 0, block.batch), 1, block.heads) for x in arrays)
    query, key, value = along(query, 3, block.rows), along(key, 3, cols), along(value, 3, cols)
    stride = -(-len(cols) // 8) * 8  # rows of scores and of weights then begin at multiples of 16 bytes
    shape = (*out.shape[:-1], stride)
    scores = xp.empty(shape, dtype=p.compute_dtype, device=p.device)
    weights = scores if p.query.dtype == p.compute_dtype else xp.empty(shape, dtype=p.query.dtype, device=p.device)
    products.product(query, xp.matrix_transpose(key), scores[..., : len(cols)], p.scale)
    first = (scores, weights, lse, *((numpy.int64(0),) * 3 if lse is None else _lse_strides(lse)))
    launch.run(softmax_launch("softmax", modifiers, block, cols, (scores, weights, first), *threads_of_row(len(cols))))
    products.product(weights[..., : len(cols)], value, out, 1 / weight_factor(weights))
    if not modifiers.every_row_sees:
        out[lse == -math.inf] = 0


def softmax_launch(
    kernel: str,
    modifiers: MaskAndBias,
    block: ScoreBlock,
    cols: range,
    arrays: tuple[Any, Any, tuple[Any, ...]],
    threads: int,
    each: int,
) -> Launch:
    """Return the launch of a kernel in cuda/softmax.cu, with the mask and the bias of a block.

    ``arrays``: scores, weights, and the arguments before the number of heads.
    """
    p, batch, (scores, weights, first) = modifiers.p, block.batch, arrays
    heads = range(block.heads.start * p.num_groups, block.heads.stop * p.num_groups)
    mask, bias = modifiers.mask(block.rows, cols), modifiers.bias(block.rows, cols)
    mask, bias = (None if x is None else along(along(x, 0, batch), 1, heads) for x in (mask, bias))
    lengths = None if modifiers.lengths is None else along(modifiers.lengths, 0, batch)
    slopes = None if modifiers.slopes is None or modifiers.is_computed else along(modifiers.slopes, 0, heads)
    low, high, _, shift = modifiers.limits
    score, int32 = scores.dtype.type, numpy.int32
    types = {"SCORE": scores, "WEIGHT": weights, "BIAS": scores if bias is None else bias}
    return Launch(
        source="softmax.cu",
        kernel=kernel,
        defines=(*(f"{name}={c_name(x.dtype)}" for name, x in types.items()), f"THREADS={threads}", f"EACH={each}"),
        grid=math.prod(scores.shape[:-1]),
        block=threads,
        args=[
            *(*first, *map(int32, (len(heads), len(block.rows), len(cols)))),
            *(numpy.int64(scores.shape[-1]), score(weight_factor(weights)), score(p.softcap or 0)),
            *map(int32, (block.rows.start, cols.start, low, high)),
            *(*with_strides(lengths, 1), *with_strides(mask, 4), *with_strides(bias, 4)),
            *(slopes, int32(0 if slopes is None else shift)),
        ],
    )


def weight_factor(weights: Any) -> float:
    """Return what weights are multiplied by before they are rounded."""
    return _WEIGHT_FACTOR.get(str(weights.dtype), 1.0)


def _lse_strides(lse: Any) -> tuple[Any, Any, Any]:
    """Return the strides of (b, k, G, l) over batch elements, query heads and rows, in elements."""
    batch, head, group, row = (numpy.int64(step // lse.dtype.itemsize) for step in lse.strides)
    return batch, group if lse.shape[2] > 1 else head, row


def slice_of(index: range) -> slice:
    """Return a range as a slice."""
    return slice(index.start, index.stop)
