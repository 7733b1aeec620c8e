"""ndonnx's namespace where sizes may be unknown, and attention as one piece of a graph."""

import math
from typing import Any

import ndonnx as ndx
from ndonnx import Array
from spox.opset.ai.onnx import v21 as op

from mha_core.plugin import AttentionProblem, AttentionState, Call, DynamicRange, Grid
from mha_core.shared import attention_algebra

_MOST = 1 << 22  # known scores that are computed together; more are left to the algebra, which computes them in blocks


class Namespace:
    """The functions of ndonnx. Those below accept sizes that are known only when the model runs: None in a shape."""

    __name__ = "ndonnx"

    def __getattr__(self, name: str) -> Any:
        return getattr(ndx, name)

    def reshape(self, x: Array, shape: tuple[int | None, ...], *, copy: bool | None = None) -> Array:
        """Return x in another shape. Unknown sizes must stand where they stand in x, after the same sizes."""
        shape = tuple(shape)
        whole = getattr(x, "_not_flattened", None)
        if whole is not None and whole.shape == shape:
            return whole
        if None in shape:
            if any(size is None and x.shape[: at + 1] != shape[: at + 1] for at, size in enumerate(shape)):
                raise ValueError(f"cannot tell which sizes are None where {x.shape} is reshaped to {shape}")
            return ndx.asarray(op.reshape(x.unwrap_spox(), op.const([0 if size is None else size for size in shape])))
        y = ndx.reshape(x, shape)
        if shape == (-1,):
            y._not_flattened = x
        return y

    def broadcast_to(self, x: Array, shape: tuple[int | None, ...] | Array, /) -> Array:
        """Return x in a wider shape. With unknown sizes it is a placeholder, for ``mha_core.explain``: no graph can hold it."""
        if isinstance(shape, Array) or None not in shape:
            return ndx.broadcast_to(x, shape)
        if x.ndim:
            raise ValueError(f"cannot tell which sizes are None where {x.shape} is broadcast to {tuple(shape)}")
        return ndx.argument(shape=tuple(shape), dtype=x.dtype)

    def take(self, x: Array, indices: Array, /, *, axis: int | None = None) -> Array:
        """Return x at indices. If these were flattened, rows in the shape of the indices need not be reshaped back."""
        y, whole = ndx.take(x, indices, axis=axis), getattr(indices, "_not_flattened", None)
        if whole is not None and axis == 0:
            y._not_flattened = ndx.asarray(op.gather(x.unwrap_spox(), whole.unwrap_spox()))
        return y

    def matmul(self, x1: Array, x2: Array, /) -> Array:
        """Return the product as one node. ndonnx's has a branch for empty arrays, which made graphs several times larger."""
        if x1.dtype != x2.dtype or 0 in (*x1.shape, *x2.shape):
            return ndx.matmul(x1, x2)
        return ndx.asarray(op.matmul(x1.unwrap_spox(), x2.unwrap_spox()))


def size_of(x: Array, axis: int) -> int | Array:
    """Return the length of an axis; as an array if it is known only when the model runs."""
    known = x.shape[axis]
    return x.dynamic_shape[axis] if known is None else known


def supports(call: Call) -> str | None:
    """Return why the kernel leaves a call to the algebra, or None."""
    query, key = call.shape("query") or (), call.shape("key") or ()
    sizes = (*query[:-1], key[-2])
    if 0 in (*query, *key):
        return "leaves empty axes to the algebra"
    if None not in sizes and math.prod(sizes) > _MOST:
        return f"computes all scores together, and these are more than {_MOST}"
    return None


def attention(p: AttentionProblem) -> AttentionState:
    """softmax(softcap(scale q k^T) + bias) v with all scores at once, -inf where masked; of lengths that may be unknown."""
    xp, wide = p.xp, p.compute_dtype
    q, k, v = (xp.astype(x, wide, copy=False) for x in (p.query, p.key, p.value))
    if p.num_groups > 1 and k.shape[-3] > 1:
        k, v = (xp.repeat(x, p.num_groups, axis=x.ndim - 3) for x in (k, v))
    grid = _grid(p)
    s = xp.matmul(q * p.scale, xp.matrix_transpose(k))
    if p.softcap is not None:
        s = p.softcap * xp.tanh(s / p.softcap)
    if p.bias is not None:
        s = s + xp.astype(p.bias.block(grid), wide, copy=False)
    if p.mask is not None:
        keep = p.mask.block(grid)
        s = xp.where(keep, s, -math.inf)
        v = xp.where(xp.any(keep, axis=-2)[..., None], v, 0)  # core zeroes unseen keys only if it knows their number
    sink = None if p.sink is None else xp.astype(p.sink, wide, copy=False)[:, None, None]
    e, d, m, empty = attention_algebra.exponentials(xp, s, sink)
    out = xp.where(empty, 0, xp.matmul(e, v) / d)
    lse = xp.where(empty, -math.inf, m + xp.log(d))[..., 0]
    if "lse" in p.asked:  # values may have more batch axes than the scores
        shape = p.rows_shape
        lse = xp.broadcast_to(lse, out.dynamic_shape[:-1] if None in shape else shape)
    return AttentionState(xp.astype(out, p.query.dtype, copy=False), lse)


def supports_gelu(call: Call) -> str | None:
    """Return why the kernel leaves a call to the algebra, or None."""
    return None if call.dtype == ndx.float32 else f"computes in float32, not {call.dtype}"


def gelu(x: Array, *, approximate: str = "none") -> Array:
    """ONNX's operator, one node instead of fifty."""
    return ndx.asarray(op.gelu(x.unwrap_spox(), approximate=approximate))


def _grid(p: AttentionProblem) -> Grid:
    """Return all queries and keys of a problem as one block."""
    if None not in (p.query.shape[-2], p.key.shape[-2]):
        return p.grid(range(p.query.shape[-2]), p.structure.keys)
    return p.grid(*(DynamicRange(0, size_of(x, -2), lambda x, start, size, axis: x) for x in (p.query, p.key)))
