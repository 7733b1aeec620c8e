"""The kernel ``flash``: attention in one CUDA kernel (cuda/flash.cu), in float16 and bfloat16 on tensor cores.

Scores and weights stay in registers. All batch elements, heads and queries are one launch, packed sequences included. If they
are too few to occupy the GPU, as in decoding, the keys are split between thread blocks, and a second kernel combines the
splits. The host never waits for the device.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy

from mha_core.plugin import AttentionProblem, AttentionState, Call

from .. import launch, products
from ..launch import Launch, address
from . import flash_config
from .batch_axes import over_batches
from .flash_config import Layout, ThreadBlock
from .mask_and_bias import FAR, MaskAndBias, supports_shapes, with_batch

_DTYPES = ("float16", "bfloat16")
_MAX_HEAD_DIM = 256  # the sums of a wider head do not fit in the registers of a warp
_MAX_ROWS = 2**31 - 2**10  # a launch has at most one thread block for each row, and rows are counted past the last one
_MIN_CAPABILITY = 80  # bfloat16 on tensor cores, and asynchronous copies into shared memory


def supports(call: Call) -> str | None:
    if call.dtype_name not in _DTYPES:
        return f"supports {' and '.join(_DTYPES)}, not {call.dtype}"
    arrays = [shape for name, shape in call.shapes if name in ("query", "key", "value")]
    head_dim = max(shape[-1] for shape in arrays)
    if head_dim > _MAX_HEAD_DIM:
        return f"supports head dimensions up to {_MAX_HEAD_DIM}, not {head_dim}"
    rows = math.prod((*numpy.broadcast_shapes(*(shape[:-3] for shape in arrays)), *arrays[0][-3:-1]))
    if rows > _MAX_ROWS:
        return f"supports up to {_MAX_ROWS} queries over all heads, not {rows}"
    offset = call.option("query_offset")
    if "alibi" in call.features and (offset is None or abs(offset) >= FAR // 2):
        return f"supports ALiBi only if query_offset is an int below {FAR // 2}"
    current = capability()
    return f"needs compute capability 8.0, not {current / 10}" if current < _MIN_CAPABILITY else supports_shapes(call)


def attention(p: AttentionProblem) -> AttentionState:
    """Return out in the problem's dtype, and lse if it is asked for."""
    return over_batches(p, _fill, dtype=p.query.dtype, lse="lse" in p.asked)


def _fill(p: AttentionProblem, index: tuple[int, ...], out: Any, lse: Any) -> None:
    """Fill out (b, K, G, L, E) and lse (b, K, G, L) for one index of the batch axes before the last."""
    modifiers = MaskAndBias(p, index, takes_spans=True)
    query, key, value = (readable(with_batch(x, index)) for x in (p.query, p.key, p.value))
    query = p.xp.reshape(query, (query.shape[0], -1, *out.shape[2:4], query.shape[-1]))
    block, splits = flash_config.block_and_splits(
        out.shape, key.shape[-2:], plain=modifiers.is_plain, multiprocessors=multiprocessors()
    )
    sink = None if p.sink is None else readable(p.xp.astype(p.sink, p.compute_dtype, copy=False))
    if splits == 1:
        launch.run(_flash(modifiers, block, query, key, value, out[None], lse, sink))
        return
    where: dict[str, Any] = {"dtype": p.compute_dtype, "device": p.device}
    outs, lses = p.xp.empty((splits, *out.shape), **where), p.xp.empty((splits, *out.shape[:-1]), **where)
    launch.run(_flash(modifiers, block, query, key, value, outs, lses, None))
    launch.run(_combine(outs, lses, out, lse, sink))


def _flash(
    modifiers: MaskAndBias, block: ThreadBlock, query: Any, key: Any, value: Any, out: Any, lse: Any, sink: Any
) -> Launch:
    """Return the launch for query (b, K, G, L, D), key (b, K, S, D), value (b, K, S, E).

    The first axis of out and lse is the split.
    """
    p = modifiers.p
    rows, cols = range(out.shape[-2]), range(key.shape[-2])
    mask, bias = modifiers.mask(rows, cols), modifiers.bias(rows, cols)
    read = (query, key, value)
    without_arrays = flash_config.for_flash(
        block,
        tuple(map(layout, (*read, out, modifiers.lengths, mask, bias))),
        aligned=not any(address(x) % 16 for x in read),
        numbers=(p.scale, p.softcap or 0.0),
        limits=modifiers.limits,
    )
    return without_arrays.with_arrays(*read, out, lse, modifiers.spans, modifiers.lengths, mask, bias, modifiers.slopes, sink)


def layout(x: Any) -> Layout | None:
    """Return the layout of an array; None if there is none."""
    return None if x is None else Layout(x.shape, products.elements(x), x.dtype)


def _combine(outs: Any, lses: Any, out: Any, lse: Any, sink: Any) -> Launch:
    """Return the launch that combines splits into out (b, K, G, L, E), and into lse (b, K, G, L) unless it is None."""
    without_arrays = flash_config.for_combine(outs.shape, Layout(out.shape, products.elements(out), out.dtype))
    return without_arrays.with_arrays(outs, lses, out, lse, sink)


def readable(x: Any) -> Any:
    """Return x, or a copy if its rows are not contiguous."""
    return x if x.strides[-1] == x.dtype.itemsize or x.shape[-1] == 1 else x.copy(order="C")


def capability() -> int:
    """Return ten times the compute capability of CuPy's current device: 90 for 9.0."""
    return _numbers_of_device()[0]


def multiprocessors() -> int:
    """Return how many multiprocessors CuPy's current device has."""
    return _numbers_of_device()[1]


def _numbers_of_device() -> tuple[int, int]:
    import cupy

    return _numbers(int(cupy.cuda.runtime.getDevice()))


@cache
def _numbers(device: int) -> tuple[int, int]:
    """Return the numbers of a device, given as a number because CuPy's devices are not hashable."""
    import cupy

    of = cupy.cuda.Device(device)
    return int(of.compute_capability), int(of.attributes["MultiProcessorCount"])
