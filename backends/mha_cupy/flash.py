"""Attention in one kernel (cuda/flash.cu): float16 and bfloat16 on tensor cores, nothing written but what is asked for.

All batch elements, heads and queries go in one launch, sequences laid end to end too. Where there are too few of them for a
card, as in decoding, the keys are computed in parts, which a second kernel combines. Nothing waits for the device.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy

from mha_core.plugin import AttentionProblem, AttentionState, Call

from . import launch
from .batches import over_batches
from .launch import Launch, c_name
from .products import with_strides
from .rows import pack
from .terms import FAR, Terms, countable, with_batch

_DTYPES = ("float16", "bfloat16")
_WIDEST = 256  # of a head: its sums still fit in the registers of a warp
_OLDEST = 80  # compute capability whose cores multiply bfloat16, and whose copies go around registers
_GRID = 2**31 - 1  # blocks of a launch
_BLOCKS = 2  # that a multiprocessor runs at once, by their registers
_STEPS = 4  # that a part of the keys has at least: less would go into beginning and combining


@dataclass(frozen=True)
class Shape:
    """Of a block: ``warps`` with ``tiles`` of 16 rows each, and how many ``keys`` it takes in a step.

    plain: nothing but a band, lengths or sequences stands between scores and softmax.
    """

    warps: int
    tiles: int
    keys: int
    plain: bool

    @property
    def rows(self) -> int:
        return 16 * self.warps * self.tiles


def supports(call: Call) -> str | None:
    if str(call.dtype) not in _DTYPES:
        return f"computes in {' and '.join(_DTYPES)}, not {call.dtype}"
    widest = max(shape[-1] for name, shape in call.shapes if name != "sink")
    if widest > _WIDEST:
        return f"takes head dimensions up to {_WIDEST}, not {widest}"
    offset = call.option("query_offset")
    if "alibi" in call.features and (offset is None or abs(offset) >= FAR // 2):
        return f"has ALiBi where the host knows the query offset, and it is below {FAR // 2}"
    found = capability(call.device)
    return f"needs compute capability 8.0, not {found / 10}" if found < _OLDEST else countable(call)


def attention(p: AttentionProblem) -> AttentionState:
    """out in the problem's dtype; lse where it is asked for."""
    return over_batches(p, _fill, dtype=p.query.dtype, lse="lse" in p.asked)


def _fill(p: AttentionProblem, index: tuple[int, ...], out: Any, lse: Any) -> None:
    """out (b, K, G, L, E) and lse (b, K, G, L) at one place of the batch axes before the last."""
    terms = Terms(p, index, reads_spans=True)
    query, key, value = (_readable(with_batch(x, index)) for x in (p.query, p.key, p.value))
    query = p.xp.reshape(query, (query.shape[0], -1, *out.shape[2:4], query.shape[-1]))
    rows = out.shape[2] * out.shape[3]
    shape = shape_of_block(query.shape[-1], value.shape[-1], rows, plain=terms.is_plain)
    blocks = math.prod(out.shape[:2]) * -(-rows // shape.rows)
    parts = parts_of_keys(blocks, key.shape[-2], shape.keys, multiprocessors(p.device))
    if parts == 1:
        launch.run(_flash(terms, shape, (query, key, value), out[None], lse if lse is None else lse[None], p.sink))
        return
    where: dict[str, Any] = {"dtype": p.compute_dtype, "device": p.device}
    outs, lses = p.xp.empty((parts, *out.shape), **where), p.xp.empty((parts, *out.shape[:-1]), **where)
    launch.run(_flash(terms, shape, (query, key, value), outs, lses, None))
    launch.run(_combine(p, outs, lses, out, lse))


def _flash(terms: Terms, shape: Shape, arrays: tuple[Any, ...], out: Any, lse: Any, sink: Any) -> Launch:
    """query (b, K, G, L, D), key (b, K, S, D), value (b, K, S, E); out (parts, b, K, G, L, E), and lse, its sums, or None."""
    p, (query, key, value) = terms.p, arrays
    cols, (low, high) = key.shape[-2], terms.band
    mask, bias = terms.mask(range(out.shape[-2]), range(cols)), terms.bias(range(out.shape[-2]), range(cols))
    small = numpy.int32
    return Launch(
        source="flash.cu",
        kernel="flash",
        defines=_defines(shape, arrays, out=out, bias=query if bias is None else bias),
        grid=math.prod(out.shape[:3]) * -(-math.prod(out.shape[3:5]) // shape.rows),
        block=32 * shape.warps,
        shared=_bytes(shape, query.shape[-1], value.shape[-1]),
        args=[
            *(*with_strides(query, 4), *with_strides(key, 3), *with_strides(value, 3)),
            *map(small, (query.shape[-1], value.shape[-1])),
            *(*with_strides(out, 5), lse, *map(small, (*out.shape[:-1], cols))),
            *map(numpy.float32, (p.scale, p.softcap or 0)),
            *map(small, (-FAR if low is None else low, FAR if high is None else high)),
            *(terms.spans, *with_strides(terms.lengths, 1), *with_strides(mask, 4), *with_strides(bias, 4)),
            *(terms.slopes, small(0 if terms.slopes is None else terms.shift), _wide(p, sink)),
        ],
    )


def _combine(p: AttentionProblem, outs: Any, lses: Any, out: Any, lse: Any) -> Launch:
    """out (b, K, G, L, E), and lse (b, K, G, L) or None, of parts."""
    warps = 4
    return Launch(
        source="flash.cu",
        kernel="combine",
        defines=_defines(Shape(1, 1, 16, True), (out, out, out), out=out, bias=out),
        grid=-(-math.prod(out.shape[:-1]) // warps),
        block=32 * warps,
        args=[outs, lses, *with_strides(out, 4), lse, *map(numpy.int32, outs.shape), _wide(p, p.sink)],
    )


@cache
def shape_of_block(dim: int, value_dim: int, rows: int, *, plain: bool) -> Shape:
    """As much as the registers of a block hold without spilling, on sm_80, sm_90 and sm_100; no more rows than there are."""
    warps = 1 if rows <= 16 else 2 if rows <= 32 else 4
    tiles = 2 if rows > 64 and value_dim <= 128 else 1
    widest = max(dim, value_dim)
    keys = 64 if widest <= 64 else 48 if plain and widest <= 192 else 32
    return Shape(warps, tiles, keys, plain)


def parts_of_keys(blocks: int, num_keys: int, keys: int, multiprocessors: int) -> int:
    """How many blocks share the keys of a row: one, unless more would find a place at once."""
    return max(1, min(_BLOCKS * multiprocessors // blocks, num_keys // (keys * _STEPS)))


def _bytes(shape: Shape, dim: int, value_dim: int) -> int:
    """What the tiles of queries, keys and values take, with the 16 bytes between rows that tiles.cuh leaves."""
    return 2 * ((shape.rows + shape.keys) * (_padded(dim) + 8) + shape.keys * (_padded(value_dim) + 8))


def _padded(length: int) -> int:
    return -(-length // 16) * 16


def _defines(shape: Shape, arrays: tuple[Any, ...], *, out: Any, bias: Any) -> tuple[str, ...]:
    query, _, value = arrays
    types = {"DTYPE": query, "OUT": out, "BIAS": bias}
    sizes = {
        "DIM": _padded(query.shape[-1]),
        "VALUE_DIM": _padded(value.shape[-1]),
        "PACK": 8 if all(pack(x.shape[-1], x) == 8 for x in arrays) else 1,
        "WARPS": shape.warps,
        "TILES": shape.tiles,
        "KEYS": shape.keys,
        "TERMS": int(not shape.plain),
    }
    return (*(f"{name}={c_name(x.dtype)}" for name, x in types.items()), *(f"{name}={size}" for name, size in sizes.items()))


def _readable(x: Any) -> Any:
    """As it lies; a copy where the numbers of a row are not side by side."""
    return x if x.strides[-1] == x.dtype.itemsize or x.shape[-1] == 1 else x.copy(order="C")


def _wide(p: AttentionProblem, sink: Any) -> Any:
    return None if sink is None else p.xp.astype(sink, p.compute_dtype, copy=False)


@cache
def capability(device: Any) -> int:
    """Ten times the compute capability."""
    import cupy

    return int(cupy.cuda.Device(device).compute_capability)


@cache
def multiprocessors(device: Any) -> int:
    import cupy

    return int(cupy.cuda.Device(device).attributes["MultiProcessorCount"])
