"""The array-API namespace of MLX: ``mlx.core``, and what that lacks, spells in another way, or gets wrong.

``depends``, by which mha-core's blocks are computed one after another, is a function of ``mlx.core`` too.
"""

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


arange, full, ones, ones_like, zeros, zeros_like = map(
    _on_any_device, ("arange", "full", "ones", "ones_like", "zeros", "zeros_like")
)


def asarray(x, /, *, dtype=None, device=None, copy=None):
    """Return an array of numbers, or of an array."""
    return mx.array(x, dtype)


def astype(x, dtype, /, *, copy=True, device=None):
    """Return an array in another dtype."""
    return x.astype(dtype)


def _reduction(name, of_nothing):
    """Return a function that does not reduce an array without elements: MLX 0.32.4 may never return from it."""
    function = getattr(mx, name)

    def reduced(x, /, *, axis=None, keepdims=False):
        result = function(x, axis=axis, keepdims=keepdims)  # not computed yet
        return result if x.size else mx.full(result.shape, of_nothing, result.dtype)

    return reduced


any, _sum = _reduction("any", False), _reduction("sum", 0)


def sum(x, /, *, axis=None, dtype=None, keepdims=False):
    """Return the sum, in another dtype if there is one."""
    return _sum(x if dtype is None else x.astype(dtype), axis=axis, keepdims=keepdims)


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
