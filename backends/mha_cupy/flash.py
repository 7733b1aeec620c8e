"""Attention in one kernel (cuda/flash.cu): float16 and bfloat16 on tensor cores, nothing written but what is asked for.

All batch elements, heads and queries go in one launch, sequences laid end to end too. Where there are too few of them for a
card, as in decoding, the keys are computed in parts, which a second kernel combines. Nothing waits for the device.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy

from mha_core.plugin import AttentionProblem, AttentionState, Call

from . import flash_plan, launch, products
from .batches import over_batches
from .flash_plan import Layout, Shape
from .launch import Launch, address
from .terms import FAR, Terms, countable, with_batch

_DTYPES = ("float16", "bfloat16")
_WIDEST = 256  # of a head: its sums still fit in the registers of a warp
_MOST = 2**31 - 2**10  # blocks of a launch, each with one row at least, and rows, counted beyond the last
_OLDEST = 80  # compute capability whose cores multiply bfloat16, and whose copies go around registers


def supports(call: Call) -> str | None:
    if str(call.dtype) not in _DTYPES:
        return f"computes in {' and '.join(_DTYPES)}, not {call.dtype}"
    arrays = [shape for name, shape in call.shapes if name != "sink"]
    widest = max(shape[-1] for shape in arrays)
    if widest > _WIDEST:
        return f"takes head dimensions up to {_WIDEST}, not {widest}"
    rows = math.prod((*numpy.broadcast_shapes(*(shape[:-3] for shape in arrays)), *arrays[0][-3:-1]))
    if rows > _MOST:
        return f"counts up to {_MOST} queries of all heads, not {rows}"
    offset = call.option("query_offset")
    if "alibi" in call.features and (offset is None or abs(offset) >= FAR // 2):
        return f"has ALiBi where the host knows the query offset, and it is below {FAR // 2}"
    found = capability()
    return f"needs compute capability 8.0, not {found / 10}" if found < _OLDEST else countable(call)


def attention(p: AttentionProblem) -> AttentionState:
    """out in the problem's dtype; lse where it is asked for."""
    return over_batches(p, _fill, dtype=p.query.dtype, lse="lse" in p.asked)


def _fill(p: AttentionProblem, index: tuple[int, ...], out: Any, lse: Any) -> None:
    """out (b, K, G, L, E) and lse (b, K, G, L) at one place of the batch axes before the last."""
    terms = Terms(p, index, reads_spans=True)
    query, key, value = (_readable(with_batch(x, index)) for x in (p.query, p.key, p.value))
    query = p.xp.reshape(query, (query.shape[0], -1, *out.shape[2:4], query.shape[-1]))
    shape, parts = flash_plan.cut(out.shape, key.shape[-2:], plain=terms.is_plain, multiprocessors=multiprocessors())
    sink = None if p.sink is None else _readable(p.xp.astype(p.sink, p.compute_dtype, copy=False))
    if parts == 1:
        launch.run(_flash(terms, shape, query, key, value, out[None], lse, sink))
        return
    where: dict[str, Any] = {"dtype": p.compute_dtype, "device": p.device}
    outs, lses = p.xp.empty((parts, *out.shape), **where), p.xp.empty((parts, *out.shape[:-1]), **where)
    launch.run(_flash(terms, shape, query, key, value, outs, lses, None))
    launch.run(_combine(outs, lses, out, lse, sink))


def _flash(terms: Terms, shape: Shape, query: Any, key: Any, value: Any, out: Any, lse: Any, sink: Any) -> Launch:
    """query (b, K, G, L, D), key (b, K, S, D), value (b, K, S, E); out and lse with an axis of parts before all others."""
    p, (low, high) = terms.p, terms.band
    rows, cols = range(out.shape[-2]), range(key.shape[-2])
    mask, bias = terms.mask(rows, cols), terms.bias(rows, cols)
    read = (query, key, value)
    found = flash_plan.of_flash(
        shape,
        tuple(map(_layout, (*read, out, terms.lengths, mask, bias))),
        aligned=not any(address(x) % 16 for x in read),
        numbers=(p.scale, p.softcap or 0.0),
        band=(-FAR if low is None else low, FAR if high is None else high),
        shift=0 if terms.slopes is None else terms.shift,
    )
    arrays = (*read, out, lse, terms.spans, terms.lengths, mask, bias, terms.slopes, sink)
    return Launch("flash.cu", "flash", found.defines, found.grid, found.block, (*arrays, *found.scalars), found.shared)


def _layout(x: Any) -> Layout | None:
    return None if x is None else Layout(x.shape, products.elements(x), x.dtype)


def _combine(outs: Any, lses: Any, out: Any, lse: Any, sink: Any) -> Launch:
    """out (b, K, G, L, E), and lse (b, K, G, L) or None, of parts."""
    found = flash_plan.of_combine(outs.shape, Layout(out.shape, products.elements(out), out.dtype))
    arrays = (outs, lses, out, lse, sink)
    return Launch("flash.cu", "combine", found.defines, found.grid, found.block, (*arrays, *found.scalars))


def _readable(x: Any) -> Any:
    """As it lies; a copy where the numbers of a row are not side by side."""
    return x if x.strides[-1] == x.dtype.itemsize or x.shape[-1] == 1 else x.copy(order="C")


def capability() -> int:
    """Of CuPy's current device, ten times: 90 of compute capability 9.0."""
    return _capability(_current())


def multiprocessors() -> int:
    """Of CuPy's current device."""
    return _multiprocessors(_current())


def _current() -> int:
    """A number: devices of CuPy have no hash."""
    import cupy

    return int(cupy.cuda.runtime.getDevice())


@cache
def _capability(device: int) -> int:
    import cupy

    return int(cupy.cuda.Device(device).compute_capability)


@cache
def _multiprocessors(device: int) -> int:
    import cupy

    return int(cupy.cuda.Device(device).attributes["MultiProcessorCount"])
