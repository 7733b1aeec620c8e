"""Gradients of attention by the kernel ``flash``: two launches (cuda/flash_vjp.cu), in float16 and bfloat16 on tensor cores.

One launch computes the gradient of the query, the other those of key and value; each computes scores and weights again, which
stay in registers. That is seven products of the size of the scores where atomic additions would need five, but each sum has one
owner and a fixed order, so the bits are the same each time. Packed sequences are in the same launches.
"""

from __future__ import annotations

from collections.abc import Set
from functools import lru_cache
from typing import Any

from mha_core.algebra.attention_vjp import RowTerms
from mha_core.plugin import AttentionGradients, AttentionProblem, AttentionState, Call

from .. import launch
from ..launch import Launch, address
from . import flash, flash_config
from .flash_config import Layout, padded, pitch
from .mask_and_bias import MaskAndBias, with_batch
from .rows import gradients_of, over_batches, rows_of

_MAX_HEAD_DIM = 128  # the sums of keys and values that are wider do not fit in the registers of a warp


def supports(call: Call) -> str | None:
    query, value = call.shape("query"), call.shape("value")
    assert query is not None and value is not None
    if (widest := max(query[-1], value[-1])) > _MAX_HEAD_DIM:
        return f"supports head dimensions up to {_MAX_HEAD_DIM}, not {widest}"
    return flash.supports(call)


def attention_vjp(p: AttentionProblem, state: AttentionState, d_out: Any, d_lse: Any, wanted: Set[str]) -> AttentionGradients:
    """Return the wanted gradients, in the dtypes of the arrays; sums are float32."""
    rows = rows_of(p, state, d_out, d_lse)
    sums = {name: _empty(p, getattr(p, name)) for name in ("query", "key", "value") if name in wanted}
    for index, of_batch, to in over_batches(p, rows, sums) if sums else ():
        _fill(p, index, of_batch, to)
    return gradients_of(p, sums, rows, wanted)


def _empty(p: AttentionProblem, x: Any) -> Any:
    """Return memory for the gradient of an array for all batch elements; in float32 if they are summed later."""
    shape = (*p.batch_shape, *x.shape[-3:])
    return p.xp.empty(shape, dtype=p.query.dtype if shape == tuple(x.shape) else p.compute_dtype, device=p.device)


def _fill(p: AttentionProblem, index: tuple[int, ...], rows: RowTerms, to: dict[str, Any]) -> None:
    """Fill the gradients, (b, H, L, D) and so on, for one index of the batch axes before the last."""
    modifiers = MaskAndBias(p, index, takes_spans=True)
    read = [flash.readable(x) for x in (*(with_batch(x, index) for x in (p.query, p.key, p.value)), rows.d_out)]
    if "query" in to:
        launch.run(_flash_vjp(modifiers, read, rows, (to["query"], None, None)))
    of_keys = [to[name] for name in ("key", "value") if name in to]
    for dtype in {str(x.dtype): x.dtype for x in of_keys}.values():  # two, if only one of them is shared by batch elements
        key, value = (x if (x := to.get(name)) is not None and x.dtype == dtype else None for name in ("key", "value"))
        launch.run(_flash_vjp(modifiers, read, rows, (None, key, value)))


def _flash_vjp(modifiers: MaskAndBias, read: list[Any], rows: RowTerms, to: tuple[Any, Any, Any]) -> Launch:
    """Return the launch for query (b, H, L, D), key, value and d_out, which fills d_query, or d_key and d_value."""
    p = modifiers.p
    num_rows, num_cols = range(read[0].shape[-2]), range(read[1].shape[-2])
    mask, bias = modifiers.mask(num_rows, num_cols), modifiers.bias(num_rows, num_cols)
    without_arrays = _launch(
        tuple(map(flash.layout, (*read, modifiers.lengths, mask, bias))),
        tuple(rows.lse.shape),
        next(x.dtype for x in to if x is not None),
        of_keys=to[0] is None,
        plain=modifiers.is_plain,
        aligned=not any(address(x) % 16 for x in read),
        numbers=(p.scale, p.softcap or 0.0),
        limits=modifiers.limits,
    )
    return without_arrays.with_arrays(
        *(*read, *to, rows.lse, rows.delta, modifiers.spans, modifiers.lengths, mask, bias, modifiers.slopes)
    )


def own_and_step(dim: int, value_dim: int, count: int) -> tuple[int, int]:
    """Return how many warps a thread block has, with 16 rows of its own each, and how many of the others are in a step."""
    return 1 if count <= 16 else 2 if count <= 32 else 4, 64 if max(dim, value_dim) <= 64 else 32


def shared_bytes(dim: int, value_dim: int, warps: int, step: int) -> int:
    """Return the shared memory of a thread block: its own rows, two steps of the others, and lse and delta of these."""
    return 2 * (16 * warps + 2 * step) * (pitch(dim) + pitch(value_dim)) + 4 * 4 * step


@lru_cache(maxsize=4096)
def _launch(
    layouts: tuple[Layout | None, ...],
    lse: tuple[int, int, int],
    out: Any,
    *,
    of_keys: bool,
    plain: bool,
    aligned: bool,
    numbers: tuple[float, ...],
    limits: tuple[int, int, int, int],
) -> Launch:
    """Return a launch without its arrays. layouts: of query, key, value, d_out, lengths, mask and bias."""
    query, key, value, d_out, lengths, mask, bias = layouts
    assert query and key and value and d_out
    (batch, heads, rows), (kv_heads, cols, dim), value_dim = lse, key.shape[-3:], value.shape[-1]
    own_count = cols if of_keys else rows
    warps, step = own_and_step(dim, value_dim, own_count)
    types = {"DTYPE": query.dtype, "OUT": out, "BIAS": (bias or query).dtype}
    sizes = {
        "OF_KEYS": int(of_keys),
        "DIM": padded(dim),
        "VALUE_DIM": padded(value_dim),
        "PACK": flash_config.pack(aligned, query, key, value, d_out),
        "WARPS": warps,
        "OTHERS": step,
        "PLAIN": int(plain),
    }
    return Launch(
        "flash_vjp.cu",
        "flash_vjp",
        flash_config.defines(types, sizes),
        grid=batch * (kv_heads if of_keys else heads) * -(-own_count // (16 * warps)),
        block=32 * warps,
        shared=shared_bytes(dim, value_dim, warps, step),
        args=flash_config.scalars(
            ((query, 3), (key, 3), (value, 3), (d_out, 3), (lengths, 1), (mask, 4), (bias, 4)),
            (batch, heads, heads // kv_heads, rows, cols, dim, value_dim),
            numbers,
            limits,
        ),
    )
