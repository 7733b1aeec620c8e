"""The array-API namespace of dask.array: that of array_api_compat, what it lacks, and functions that fail for empty arrays."""

from functools import wraps

import array_api_compat.dask.array as compat
import dask.array as da
import numpy as np
from array_api_compat.dask.array import *  # noqa: F403
from numpy import float16  # noqa: F401


def _also_empty(name):
    """Return a function of the namespace that leaves arrays without elements to NumPy: there is nothing to compute later."""
    function, by_numpy = getattr(compat, name), getattr(np, name)

    @wraps(function)
    def call(x, /, *arguments, **options):
        if 0 in x.shape:
            return da.from_array(by_numpy(np.empty(x.shape, x.dtype), *arguments, **options), chunks=-1)
        return function(x, *arguments, **options)

    return call


max, reshape = map(_also_empty, ("max", "reshape"))


def _made_empty(name):
    """Return a creation function of the namespace that makes one chunk of no elements: Dask 2026.8 divides by their number."""
    function, by_numpy = getattr(compat, name), getattr(np, name)

    @wraps(function)
    def call(shape, *arguments, device=None, **options):
        if 0 in np.atleast_1d(shape):
            return da.from_array(by_numpy(shape, *arguments, **options), chunks=-1)
        return function(shape, *arguments, **options)

    return call


zeros, ones, full = map(_made_empty, ("zeros", "ones", "full"))


def asarray(x, /, **options):
    """Return x as an array; one of NumPy without elements as one chunk."""
    return compat.asarray(da.from_array(x, chunks=-1) if isinstance(x, np.ndarray) and 0 in x.shape else x, **options)


def take_along_axis(x, indices, /, *, axis=-1):
    """Return the elements of x at indices along an axis, of which one chunk is made."""
    chunks = {at: -1 if at == axis % x.ndim else sizes for at, sizes in enumerate(x.chunks)}
    x, indices = x.rechunk(chunks), indices.rechunk(chunks)
    return da.map_blocks(np.take_along_axis, x, indices, axis, dtype=x.dtype, chunks=indices.chunks)


def take(x, indices, /, *, axis=None):
    """Return the elements of x at indices; their sum with 0 has a name of its own.

    Dask 2026.8 names an array after its numbers, and its array of the chunks' offsets, [0] for one chunk, declares other sizes.
    """
    return compat.take(x, indices + 0, axis=axis)
