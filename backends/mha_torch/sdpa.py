"""Attention by torch's fused kernels.

Attention without a mask, and causal attention aligned at the start, need no mask array. Causal attention aligned elsewhere is
merged from two states that need none. Everything else is computed in blocks of queries, each with the keys in its reach and a
floating-point mask: torch would expand a boolean mask in memory, and let NaN through it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial, reduce
from itertools import groupby
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from mha_core.plugin import (
    BLOCK,
    AttentionProblem,
    AttentionState,
    Call,
    MappedMask,
    Relation,
    by_sequence,
    concat_queries,
    goes_by_sequence,
    keys_by_distance,
    merge,
    pieces,
    runs,
)

from . import second
from .parts import mask_of, toeplitz
from .shapes import contiguous_rows, fits, four_axes, mask_on_four_axes, padded, recorded_with_mask, with_whole_rows

_MASK = 1 << 20  # elements in the mask of a block: 4 MB in float32
_ROWS = 512  # queries in a block, at most: larger blocks would compute more scores outside a band
_MAPPED_ROWS = 256  # likewise, for a mask with a map: fewer lose more to merging than they save
_STEP = 128  # keys that are tested together: at both ends of its reach, a block drops steps that no query sees

_flash: Any = torch._scaled_dot_product_flash_attention_for_cpu  # the kernel of SDPA on the CPU; it returns the log-sum-exp

_HALF = (torch.float16, torch.bfloat16)


def supports(call: Call) -> str | None:
    if 0 in (size for _, shape in call.shapes for size in shape):
        return "does not support empty axes"
    on_cpu = call.device.type == "cpu"
    if call.dtype not in (torch.float32, *_HALF) and not (on_cpu and call.dtype == torch.float64):
        return f"does not support {call.dtype} on {call.device.type}"
    if ("causal" in call.features or not on_cpu) and not call.option("scale") > 0:
        return "may return NaN when scale <= 0"
    wants_lse = call.features & {"lse", "sink"}
    if wants_lse and "gradient" in call.features:
        return "does not return a log-sum-exp with a gradient"
    if wants_lse and not on_cpu:
        return f"does not return a log-sum-exp on {call.device.type}"
    if not on_cpu and call.dtype != torch.float32 and call.features & {"bias", "alibi", "relative_bias", "bias_term"}:
        return f"would round the bias to {call.dtype} on {call.device.type}"
    return None


def prepare(p: AttentionProblem) -> Callable[..., AttentionState] | None:
    """Return a function that calls torch once, if nothing else is needed; else None."""
    if p.sink is not None or not fits(p.query, p.key, p.value) or not _is_plain(p):
        return None
    if _high(p) not in (None, 0) or not _has_lse(p) or _is_widened(p):
        return None
    options: dict[str, Any] = {"is_causal": True} if _high(p) == 0 else {}
    if p.scale != 1 / math.sqrt(p.query.shape[-1]):  # torch's default, which need not be passed
        options |= {"scale": p.scale}
    flash = partial(_flash, **options)
    state: Any = partial(tuple.__new__, AttentionState)  # saves 0.07 us of 5

    def attend(query: Tensor, key: Tensor, value: Tensor, sink: None) -> AttentionState:
        if query.is_contiguous() and key.is_contiguous() and value.is_contiguous():
            return state(flash(query, key, value))
        return state(flash(contiguous_rows(query), contiguous_rows(key), contiguous_rows(value)))

    return attend


def attention(p: AttentionProblem) -> AttentionState:
    """Return out, and lse if it is asked for or there is a sink.

    In half precision torch uses a fast exponential, and its lse is less accurate than float32 (off by 7e-5 from 16 keys on). If
    lse is needed, everything is computed in float32 and rounded once.
    """
    dtype: Any = p.query.dtype
    if _is_widened(p):
        p = p.with_arrays(*(_wide(p, x) for x in (p.query, p.key, p.value)))
    state: Any = _attention(p) if not goes_by_sequence(p) else _by_run(p) if _supports_runs(p) else by_sequence(p, _attention)
    if p.sink is not None:  # a sink is one more score without a value: merge with the state (0, sink)
        sink = _wide(p, p.sink)[:, None].expand(state.lse.shape)
        state = merge(p.xp, state, AttentionState(torch.zeros_like(state.out), sink))
    return AttentionState(state.out.to(dtype), state.lse)


def _is_widened(p: AttentionProblem) -> bool:
    return p.query.dtype in _HALF and ("lse" in p.asked or p.sink is not None)


def _high(p: AttentionProblem) -> int | None:
    """Return the band's upper limit, None if it excludes no key: a band may be wider than one of several sequences."""
    high = p.structure.band[1]
    return None if high is None or high >= p.key.shape[-2] - 1 else high


def _is_plain(p: AttentionProblem) -> bool:
    return p.bias is None and p.structure.features <= {"causal"}


def _attention(p: AttentionProblem) -> AttentionState:
    plain, high = _is_plain(p), _high(p)
    if plain and high in (None, 0):
        return _fused(p, p.query, p.key, p.value, causal=high == 0)
    if plain and high is not None and high > 0 and _has_lse(p) and p.query.dtype not in _HALF:
        # all queries see the first keys, and the rest is aligned; half precision would be rounded before the merge
        before = _fused(p, p.query, p.key[..., :high, :], p.value[..., :high, :])
        after = _fused(p, p.query, p.key[..., high:, :], p.value[..., high:, :], causal=True)
        return merge(p.xp, before, after)
    blocks = ((rows, _block(p, rows)) for rows in _row_blocks(p))
    if "gradient" in p.asked:
        return concat_queries(p.xp, [state for _, state in blocks])
    # written in place: results allocated between large temporaries would prevent their memory from being reused
    shape = (*p.batch_shape, *p.query.shape[-3:-1])
    out: Any = torch.empty((*shape, p.value.shape[-1]), dtype=p.query.dtype, device=p.device)
    lse: Any = torch.empty(shape, dtype=p.compute_dtype, device=p.device) if _has_lse(p) else None
    for rows, state in blocks:
        out[..., rows.start : rows.stop, :] = state.out
        if lse is not None:
            lse[..., rows.start : rows.stop] = state.lse
    return AttentionState(out, lse)


def _supports_runs(p: AttentionProblem) -> bool:
    """Return whether torch's kernel alone computes packed sequences."""
    same_shape = len({(x.ndim, x.shape[-1]) for x in (p.query, p.key, p.value)}) == 1
    bands = ((None, None), (None, 0)) if p.bias is None else ((None, None),)
    return same_shape and p.query.ndim == 3 and _has_lse(p) and p.structure.band in bands


def _by_run(p: AttentionProblem) -> AttentionState:
    """Compute ``by_sequence`` in place, one run of sequences of equal length at a time.

    For runs of a few short texts, a copy and a problem for each would cost too much. torch returns (count, length, heads,
    head_dim), and out keeps that order, which the next projection reads without a copy.
    """
    bias = _bias_by_distance(p)
    if bias is not None and bool((bias == -math.inf).any()):  # a row may be fully masked, which blocks support
        return by_sequence(p, _attention)
    heads, tokens, width = p.query.shape
    out: Any = torch.empty((tokens, heads, width), dtype=p.query.dtype, device=p.device)
    lse: Any = torch.empty((heads, tokens), dtype=p.compute_dtype, device=p.device)
    arrays: tuple[Any, ...] = (p.query, p.key, p.value)
    for start, count, length in runs(p.structure.packed or ()):
        if not count * length:
            continue
        tokens_of_run, sequences = slice(start, start + count * length), (count, length)
        query, key, value = (contiguous_rows(x[:, tokens_of_run].unflatten(1, sequences).transpose(0, 1)) for x in arrays)
        causal, mask = p.structure.band[1] == 0, None
        if bias is not None:
            longest = bias.shape[-1] // 2 + 1
            key, value, mask = key.flip(-2), value.flip(-2), toeplitz(bias, longest, range(length), range(length))[None]
        out_of_run, lse_of_run = _flash(query, key, value, 0.0, causal, attn_mask=mask, scale=p.scale)
        out[tokens_of_run].unflatten(0, sequences).copy_(out_of_run.transpose(1, 2))
        lse[:, tokens_of_run].unflatten(1, sequences).copy_(lse_of_run.transpose(0, 1))
    return AttentionState(out.transpose(0, 1), lse)


def _bias_by_distance(p: AttentionProblem) -> Tensor | None:
    """Return the bias for the distances n - 1 to 1 - n as (H, 2 n - 1), where n is the length of the longest sequence."""
    if p.bias is None:
        return None
    longest = max(p.structure.packed or (), default=1)
    return _wide(p, p.bias.block(p.grid(range(1), keys_by_distance(range(longest), longest)))).squeeze(-2)


def _block(p: AttentionProblem, rows: range) -> AttentionState:
    """Return the state of some queries over the keys that any of them may see, with a floating-point mask."""
    codes = _codes(p)
    return _of_keys(p, rows, _reach(p, rows)) if codes is None else _mapped_block(p, rows, codes)


def _of_keys(p: AttentionProblem, rows: range, cols: range, *, masked: bool = True) -> AttentionState:
    """Return the state of some queries over some of the caller's keys; without ``masked``, all of these pairs attend."""
    query: Any = p.query[..., rows.start : rows.stop, :]
    out: Any
    lse: Any
    if not len(cols):
        shape = (*p.batch_shape, p.query.shape[-3], len(rows))
        out = query.new_zeros((*shape, p.value.shape[-1]))
        lse = query.new_full(shape, -math.inf, dtype=p.compute_dtype) if _has_lse(p) else None
        return AttentionState(out, lse)
    start = p.structure.keys.start
    key, value = (x[..., cols.start - start : cols.stop - start, :] for x in (p.key, p.value))
    mask = mask_of(p, rows, cols) if masked else None
    if mask is None:
        return _fused(p, query, key, value)
    # a fully masked row is computed over all keys, then replaced by zeros: torch's paths treat such rows differently
    empty = (mask == -math.inf).all(dim=-1, keepdim=True)
    out, lse = _fused(p, query, key, value, mask=torch.where(empty, 0, mask))
    lse = lse if lse is None else torch.where(empty[..., 0], -math.inf, lse)
    return AttentionState(torch.where(empty, 0, out), lse)


def _codes(p: AttentionProblem) -> Sequence[bytes] | None:
    """Return which tiles of the mask attend, if it has a map, and states of some keys can be merged without rounding twice."""
    if not isinstance(p.mask, MappedMask) or p.bias is not None or p.structure.keys.start:
        return None
    return p.mask.codes_at(p.offset) if _has_lse(p) and p.query.dtype not in _HALF else None


def _mapped_block(p: AttentionProblem, rows: range, codes: Sequence[bytes]) -> AttentionState:
    """Return the state of some queries, merged from those of keys that all of them see, and of others with a mask."""
    lines = codes[rows.start // BLOCK : (rows.stop - 1) // BLOCK + 1]
    shares = [{*column} for column in zip(*lines, strict=True)]
    states: list[AttentionState] = []
    start = 0
    for share, tiles in groupby(shares, key=lambda column: column.pop() if len(column) == 1 else Relation.SOME):
        stop = start + len(list(tiles)) * BLOCK
        cols = range(start, min(stop, p.key.shape[-2]))
        if share != Relation.NONE:
            states.append(_of_keys(p, rows, cols, masked=share == Relation.SOME))
        start = stop
    return reduce(partial(merge, p.xp), states) if states else _of_keys(p, rows, range(0), masked=False)


def _row_blocks(p: AttentionProblem) -> Sequence[range]:
    """Return blocks of queries with small masks. A mask or bias with arrays may differ between heads and batch elements."""
    if _codes(p) is not None:
        return pieces(range(p.query.shape[-2]), _MAPPED_ROWS)
    terms = [x for x in (p.mask, p.bias) if x is not None]
    by_head = any(x.may_differ_in_batch for x in terms) or (p.bias is not None)
    each = p.structure.band.most_keys(_ROWS, len(p.structure.keys)) * (math.prod(p.rows_shape[:-1]) if by_head else 1)
    return pieces(range(p.query.shape[-2]), min(_ROWS, max(16, _MASK // max(1, each))))


def _reach(p: AttentionProblem, rows: range) -> range:
    """Return one range around all keys that these queries may see, in the caller's indices."""
    cols = p.structure.keys_of(rows)
    if p.mask is None:
        return cols
    while cols and p.mask.relation(p.grid(rows, cols[:_STEP])) is Relation.NONE:
        cols = cols[_STEP:]
    while cols and p.mask.relation(p.grid(rows, last := cols[(len(cols) - 1) // _STEP * _STEP :])) is Relation.NONE:
        cols = cols[: -len(last)]
    return cols


def _fused(
    p: AttentionProblem, query: Any, key: Any, value: Any, *, causal: bool = False, mask: Tensor | None = None
) -> AttentionState:
    """Call torch once, on four axes. ``causal`` is aligned at the start."""
    q, k, v = query, key, value
    width, batch = value.shape[-1], None
    if not fits(query, key, value):
        batch = p.batch_shape
        widest = max(query.shape[-1], width)  # the fused kernels need equal head dimensions, and zeros change no score
        q, k, v = (four_axes(padded(x, widest), batch) for x in (query, key, value))
    if mask is not None:
        mask = mask_on_four_axes(mask, p.batch_shape)
    lse: Any = None
    if not _has_lse(p):
        if mask is not None and not query.is_cpu:
            mask = with_whole_rows(mask.to(q.dtype), k.shape[-2])
            q = recorded_with_mask(q, k, v, mask)
        grouped = k.shape[1] != q.shape[1]
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal, scale=p.scale, enable_gqa=grouped)
        out = second.refused(out)
    else:
        out, lse = _flash(*map(contiguous_rows, (q, k, v)), 0.0, causal, attn_mask=mask, scale=p.scale)
    if batch is None:
        return AttentionState(out, lse)
    lse = lse if lse is None else lse.reshape(*batch, *lse.shape[1:])
    return AttentionState(out.reshape(*batch, *out.shape[1:])[..., :width], lse)


def _has_lse(p: AttentionProblem) -> bool:
    """Return whether the fused kernel returns the log-sum-exp: on the CPU only, and without a gradient."""
    return p.device.type == "cpu" and "gradient" not in p.asked


def _wide(p: AttentionProblem, x: Any) -> Any:
    return x.to(p.compute_dtype)
