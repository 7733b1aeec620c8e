"""Attention by tiles of scores, in torch's own operations, each computed in place in memory that all tiles share.

The state of some queries, (m, d, o), grows by the scores s of a tile of keys with values v (Milakov and Gimelshein 2018,
algorithm 3):

    n = max(m, max_j s_j)        d <- d e^(m - n) + sum_j e^(s_j - n)        o <- o e^(m - n) + sum_j e^(s_j - n) v_j
    m <- n

and at the end out = o / d, lse = m + log d. A sink is where it begins: m = sink, d = 1.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from mha_core.plugin import (
    AttentionProblem,
    AttentionState,
    Call,
    Relation,
    by_batch_slices,
    by_sequence,
    goes_by_sequence,
    pieces,
    visible_blocks,
)

from .namespace import refuse_gradient
from .parts import BAND, ScorePart, along_distances, is_turned, toeplitz
from .shapes import four_axes

_SCORES = 1 << 20  # in a tile: 4 MB in float32
_HELD = 31 << 20  # bytes that are allocated for a smaller tile; nothing is written behind it
_STEP = 64  # queries and keys of a tile are multiples of it
_SMALLEST = 2 * _STEP * _STEP  # scores of one head in a tile, at least
_FEWEST = 512  # queries, and keys, for which a bias is faster here than as the mask of a fused kernel
_ADDED = {"bias", "alibi", "relative_bias", "bias_term"}
_LOG2_E = math.log2(math.e)


def supports(call: Call) -> str | None:
    if 0 in (size for _, shape in call.shapes for size in shape):
        return "does not support empty axes"
    if call.device.type != "cpu":
        return f"supports arrays on the CPU, not on {call.device.type}"
    if call.features & {"softcap", "score_function"}:
        return None
    if not call.features & _ADDED:
        return "would be slower than torch's fused kernel where nothing is added to scores"
    if "packed" in call.features:
        return "would be slower than torch's fused kernel for packed sequences with a bias"
    query, key = call.shape("query"), call.shape("key")
    assert query is not None and key is not None
    if min(query[-2], key[-2]) < _FEWEST:
        return f"needs {_FEWEST} queries and keys to be faster than torch's fused kernel with a bias"
    return None


def exp_in_place(x: Tensor) -> Tensor:
    """Return e^x, computed in place, with 0 for subnormal numbers, which some processors multiply slowly.

    As 2^(x log2 e): on the CPU, torch's exp is MKL's, which takes 16 times as long where e^x is 0 and 57 times where it is
    subnormal (float32, on an EPYC of family 25 model 17).
    """
    return F.threshold(x.mul_(_LOG2_E).exp2_(), torch.finfo(x.dtype).tiny * 1.02, 0.0, inplace=True)


def attention(p: AttentionProblem) -> AttentionState:
    if goes_by_sequence(p):
        return by_sequence(p, attention)
    if (size := _slice_size(p)) is not None:
        return by_batch_slices(p, size, attention)
    arrays: tuple[Any, ...] = (p.query, p.key, p.value)
    query, key, value = (four_axes(x.to(p.compute_dtype), p.batch_shape) for x in arrays)
    rows_shape: tuple[int, ...] = p.rows_shape
    tiles = _Tiles(p, query, key, value)
    out = query.new_empty((*rows_shape, value.shape[-1]), dtype=arrays[0].dtype)
    lse = query.new_empty(rows_shape)
    for rows in pieces(range(rows_shape[-1]), tiles.num_rows):
        span = slice(rows.start, rows.stop)
        out[..., span, :], lse[..., span] = tiles.state(rows)
    return AttentionState(out, lse)


def _slice_size(p: AttentionProblem) -> int | None:
    """Return how many elements of the first batch axis have the smallest tiles in so much memory; None if all have."""
    if not p.batch_shape or not isinstance(p.offset, int):
        return None
    if any(term.may_differ_in_batch for term in (p.mask, p.bias) if term is not None):
        return None
    size = max(1, _SCORES // (_SMALLEST * math.prod(p.rows_shape[1:-1])))
    return size if size < p.batch_shape[0] else None


class _Tiles:
    """The states of queries, tile by tile; arrays are those of a problem on four axes."""

    def __init__(self, p: AttentionProblem, query: Tensor, key: Tensor, value: Tensor) -> None:
        self.p = p
        count, heads, queries, _ = query.shape
        pairs = max(_SMALLEST, _SCORES // (count * heads))
        self.num_rows = min(queries, math.isqrt(pairs // 2) // _STEP * _STEP)
        self.num_cols = min(key.shape[-2], pairs // self.num_rows // _STEP * _STEP)
        self.of_distances: Tensor | None = None
        """What is added to scores for each distance, (h, S + L - 1); keys and values are then in reverse order."""
        self.mask = p.mask
        """The mask, unless it is among ``of_distances``."""
        if queries >= _STEP and is_turned(p):  # fewer do not pay for the copies
            only_band = p.structure.features <= BAND
            self.of_distances = along_distances(p, band=only_band)
            self.mask = None if only_band else p.mask
            key, value = key.flip(-2), value.flip(-2)
        self.query = (query * p.scale).reshape(-1, p.num_groups, *query.shape[-2:])  # (B K, G, L, D)
        self.key, self.value = key.flatten(0, 1).mT, value.flatten(0, 1)
        # glibc returns freed memory to the system unless a larger piece, of 32 MB at most, was freed before; the system would
        # otherwise clear pages for each array of a function of scores, which takes as long as the products
        tile = count * heads * self.num_rows * self.num_cols
        self.memory = query.new_empty(max(tile, min(8 * tile, _HELD // query.element_size())))
        self.hidden = query.new_tensor(-math.inf)

    def state(self, rows: range) -> tuple[Tensor, Tensor]:
        """Return out and lse of some queries."""
        p = self.p
        leading = (*p.rows_shape[:-1], len(rows))
        query = self.query[:, :, rows.start : rows.stop].flatten(1, 2)
        largest = query.new_full((*leading, 1), -math.inf)
        if p.sink is not None:
            largest.copy_(p.sink[:, None, None])  # type: ignore[arg-type]
        total = torch.full_like(largest, 0 if p.sink is None else 1)
        out = query.new_zeros((*query.shape[:-1], self.value.shape[-1]))
        by_row, first_key = (*query.shape[:-1], 1), p.structure.keys.start
        for cols, relation in visible_blocks(p, rows, self.num_cols):
            part = ScorePart(rows, range(cols.start - first_key, cols.stop - first_key))
            of_arrays = part.slices(self.value.shape[-2], turned=self.of_distances is not None)[1]
            tile = self.memory[: math.prod(leading) * len(cols)].view(*query.shape[:-1], len(cols))
            torch.bmm(query, self.key[..., of_arrays], out=tile)
            by_head = tile.view(*leading, len(cols))
            scores = self._changed(by_head, part, cols, masked=relation is Relation.SOME)
            largest, before = torch.maximum(largest, scores.amax(-1, keepdim=True)), largest
            shift = torch.where(largest == -math.inf, 0, largest)
            exp_in_place(torch.sub(scores, shift, out=by_head))
            kept = exp_in_place(before - shift)
            total = total.mul_(kept).add_(by_head.sum(-1, keepdim=True))
            out.mul_(kept.view(by_row)).baddbmm_(tile, self.value[:, of_arrays])
        empty = largest == -math.inf
        total.masked_fill_(empty, 1)
        whole = out.div_(total.view(by_row)).view(*leading, -1).masked_fill_(empty, 0)
        return whole, largest.add_(total.log_())[..., 0]

    def _changed(self, scores: Tensor, part: ScorePart, cols: range, *, masked: bool) -> Tensor:
        """Return scores after softcap, bias and mask: written in place, but for what a function of the caller returns."""
        p = self.p
        if p.softcap is not None:
            scores.div_(p.softcap).tanh_().mul_(p.softcap)
        grid = p.grid(part.rows, cols)
        changed: Any = scores
        if self.of_distances is not None:
            if masked or p.bias is not None:
                scores.add_(toeplitz(self.of_distances, self.value.shape[-2], part.rows, part.cols))
        elif p.bias is not None:
            changed = p.bias.added(scores, grid)
            refuse_gradient(changed)
        if self.mask is None or not masked:
            return changed
        allowed: Any = self.mask.block(grid)
        allowed = allowed if self.of_distances is None else allowed.flip(-1)
        return torch.where(allowed, changed, self.hidden, out=scores)
