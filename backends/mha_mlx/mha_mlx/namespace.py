"""The array-API namespace of MLX: ``mlx.core``, and what that lacks, spells in another way, or gets wrong."""

import math
from types import SimpleNamespace

import mlx.core as mx
from mlx.core import *  # noqa: F403
from mlx.core import bool_ as bool  # noqa: F401


def _on_any_device(name):
    """Return a function that accepts ``device=None``: in MLX operations have a device, and arrays have none."""
    function = getattr(mx, name)

    def made(*arguments, device=None, **options):
        return function(*arguments, **options)

    return made


for _name in ("arange", "full", "ones", "ones_like", "zeros", "zeros_like"):
    globals()[_name] = _on_any_device(_name)


def asarray(x, /, *, dtype=None, device=None, copy=None):
    """Return an array of numbers, or of an array."""
    return mx.array(x, dtype)


def astype(x, dtype, /, *, copy=True, device=None):
    """Return an array in another dtype."""
    return x.astype(dtype)


def any(x, /, *, axis=None, keepdims=False):
    """Return whether any element is true. MLX 0.32.4 may never return from a reduction of an empty array."""
    result = mx.any(x, axis=axis, keepdims=keepdims)  # not computed yet
    return result if x.size else mx.zeros(result.shape, mx.bool_)


def sum(x, /, *, axis=None, dtype=None, keepdims=False):
    """Return the sum, in another dtype if there is one: of the square root of n parts, because MLX adds up one by one."""
    x = x if dtype is None else x.astype(dtype)
    like = mx.sum(x, axis=axis, keepdims=keepdims)  # not computed
    if not x.size:
        return mx.zeros(like.shape, like.dtype)
    axes = [at % x.ndim for at in (range(x.ndim) if axis is None else [axis] if isinstance(axis, int) else axis)]
    rows = mx.transpose(x, [at for at in range(x.ndim) if at not in axes] + axes).reshape(like.size, -1)
    size = math.isqrt(rows.shape[1])
    parts = mx.pad(rows, [(0, 0), (0, -rows.shape[1] % size)]).reshape(like.size, -1, size)
    return mx.sum(mx.sum(parts, axis=-1), axis=-1).reshape(like.shape)


def mean(x, /, *, axis=None, keepdims=False):
    """Return the mean."""
    total = sum(x, axis=axis, keepdims=keepdims)
    return total / (x.size / total.size) if total.size else total


def exp(x, /):
    """Return e^x. In float64 ``mlx.core.exp`` has the accuracy of float32; a power has that of float64."""
    return mx.power(mx.array(math.e, x.dtype), x) if x.dtype == mx.float64 else mx.exp(x)


def matmul(x, y, /):
    """Return a product of matrices. MLX 0.32.4 copies a view to freed memory if the product has no elements."""
    product = mx.matmul(x, y)  # not computed yet
    return product if product.size else mx.zeros(product.shape, product.dtype)


def iinfo(dtype, /):
    """Return the limits of an integer dtype, and its number of bits, which those of MLX lack."""
    limits = mx.iinfo(dtype)
    return SimpleNamespace(min=limits.min, max=limits.max, dtype=dtype, bits=8 * dtype.size)
