"""Attention in two products and a softmax, block by block: what CuPy has no kernel for.

For each block of queries: scores = scale q k^T in float32 by cuBLAS, one kernel that makes of them weights and their
log-sum-exp (cuda/softmax.cu), and out = weights v by cuBLAS. Where a row of keys goes beyond a block, the states of its
parts are merged. Nothing waits for the device.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import reduce
from typing import Any

from mha_core.plugin import AttentionProblem, AttentionState, Call, by_sequence, goes_by_sequence, merge

from . import blocks as blocked
from . import launch, products
from .batches import over_batches
from .blocks import Block, shape_of_block
from .launch import Launch, c_name
from .terms import FAR, Terms, countable, part, with_batch

_TIMES = {"float16": 2.0**14}  # weights of many keys would be subnormal in float16; the second product takes it out again


def supports(call: Call) -> str | None:
    return countable(call) or products.missing()


def attention(p: AttentionProblem) -> AttentionState:
    """out in the problem's dtype; lse where it, or a sink, is wanted."""
    xp = p.xp
    state = by_sequence(p, _attention) if goes_by_sequence(p) else _attention(p)
    if p.sink is not None:  # one more score without a value: merging with the state (0, sink)
        sink = xp.broadcast_to(xp.astype(p.sink, p.compute_dtype, copy=False)[:, None], state.lse.shape)
        state = merge(xp, state, AttentionState(xp.zeros_like(state.out), sink))
    return AttentionState(xp.astype(state.out, p.query.dtype, copy=False), state.lse)


def _attention(p: AttentionProblem) -> AttentionState:
    """Before a sink nothing is rounded."""
    has_sink = p.sink is not None
    return over_batches(p, _fill, dtype=p.compute_dtype if has_sink else p.query.dtype, lse=has_sink or "lse" in p.asked)


def _fill(p: AttentionProblem, index: tuple[int, ...], out: Any, lse: Any) -> None:
    """out (b, K, G, L, E) and lse (b, K, G, L), block by block, at one place of the batch axes before the last."""
    terms = Terms(p, index)
    query, key, value = (with_batch(x, index) for x in (p.query, p.key, p.value))
    query = p.xp.reshape(query, (query.shape[0], -1, p.num_groups, *query.shape[2:]))
    arrays = query, key[:, :, None], value[:, :, None]
    batch, heads, groups, rows = out.shape[:-1]
    copies = batch * heads * groups if terms.is_computed else 0
    widest = blocked.WIDEST // 2 if str(query.dtype) == "float64" else blocked.WIDEST
    for block in blocked.blocks(batch, heads, groups, rows, p.key.shape[-2], terms.band, copies=copies, widest=widest):
        place = (_slice(block.batch), _slice(block.heads), slice(None), _slice(block.rows))
        at = None if lse is None else lse[place]
        if len(block.cols) == 1:
            _state(terms, arrays, block, block.cols[0], out[place], at)
            continue
        whole = reduce(lambda a, b: merge(p.xp, a, b), _parts(terms, arrays, block, out[place].shape))
        out[place] = p.xp.astype(whole.out, out.dtype, copy=False)
        if at is not None:
            at[...] = whole.lse


def _parts(terms: Terms, arrays: tuple[Any, ...], block: Block, shape: tuple[int, ...]) -> Iterator[AttentionState]:
    """The states of a block's queries over the parts of its keys, in the compute dtype; first, over no keys."""
    p = terms.p
    where: dict[str, Any] = {"dtype": p.compute_dtype, "device": p.device}
    yield AttentionState(p.xp.zeros(shape, **where), p.xp.full(shape[:-1], -math.inf, **where))
    for cols in block.cols:
        state = AttentionState(p.xp.empty(shape, **where), p.xp.empty(shape[:-1], **where))
        _state(terms, arrays, block, cols, *state)
        yield state


def _state(terms: Terms, arrays: tuple[Any, ...], block: Block, cols: range, out: Any, lse: Any) -> None:
    """Two products, and the softmax between them: out (b, k, G, l, E), and lse (b, k, G, l) or None."""
    p, xp = terms.p, terms.p.xp
    query, key, value = (part(part(x, 0, block.batch), 1, block.heads) for x in arrays)
    query, key, value = part(query, 3, block.rows), part(key, 3, cols), part(value, 3, cols)
    stride = -(-len(cols) // 8) * 8  # so that rows of scores and weights begin where 16 bytes do
    shape = (*out.shape[:-1], stride)
    scores = xp.empty(shape, dtype=p.compute_dtype, device=p.device)
    weights = scores if p.query.dtype == p.compute_dtype else xp.empty(shape, dtype=p.query.dtype, device=p.device)
    products.product(query, xp.matrix_transpose(key), scores[..., : len(cols)], p.scale)
    launch.run(_softmax(terms, block, cols, scores, weights, lse))
    products.product(weights[..., : len(cols)], value, out, 1 / _times(weights))


def _softmax(terms: Terms, block: Block, cols: range, scores: Any, weights: Any, lse: Any) -> Launch:
    """What stands between the products, with the mask and the bias of the block."""
    import numpy

    p = terms.p
    batch = block.batch
    heads = range(block.heads.start * p.num_groups, block.heads.stop * p.num_groups)
    mask, bias = terms.mask(block.rows, cols), terms.bias(block.rows, cols)
    mask, bias = (None if x is None else part(part(x, 0, batch), 1, heads) for x in (mask, bias))
    lengths = None if terms.lengths is None else part(terms.lengths, 0, batch)
    slopes = None if terms.slopes is None or terms.is_computed else part(terms.slopes, 0, heads)
    low, high = terms.band
    number, small, large = scores.dtype.type, numpy.int32, numpy.int64
    threads, each = shape_of_block(len(cols))
    types = {"SCORE": scores, "WEIGHT": weights, "BIAS": scores if bias is None else bias}
    return Launch(
        source="softmax.cu",
        kernel="softmax",
        defines=(*(f"{name}={c_name(x.dtype)}" for name, x in types.items()), f"THREADS={threads}", f"EACH={each}"),
        grid=math.prod(scores.shape[:-1]),
        block=threads,
        args=[
            *(scores, weights, lse, *map(large, (0, 0, 0) if lse is None else _steps(lse))),
            *(small(len(heads)), small(len(block.rows)), small(len(cols)), large(scores.shape[-1])),
            *(number(_times(weights)), number(p.softcap or 0), small(block.rows.start), small(cols.start)),
            *(small(-FAR if low is None else low), small(FAR if high is None else high)),
            *(
                *_pointer(lengths, 1),
                *_pointer(mask, 4),
                *_pointer(bias, 4),
                slopes,
                small(0 if slopes is None else terms.shift),
            ),
        ],
    )


def _times(weights: Any) -> float:
    return _TIMES.get(str(weights.dtype), 1.0)


def _pointer(x: Any, ndim: int) -> tuple[Any, ...]:
    """An array and its strides; a null pointer and none."""
    import numpy

    return x, *map(numpy.int64, (0,) * ndim if x is None else products.elements(x))


def _steps(lse: Any) -> tuple[int, int, int]:
    """From (b, k, G, l): to the next batch element, query head and row, in elements. Groups stand side by side."""
    batch, head, group, row = (step // lse.dtype.itemsize for step in lse.strides)
    return batch, group if lse.shape[2] > 1 else head, row


def _slice(index: range) -> slice:
    return slice(index.start, index.stop)
