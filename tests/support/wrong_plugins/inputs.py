"""Kernels that write to their inputs, misread their memory layout, or return another kind of array."""

from dataclasses import replace

import numpy as np

from mha_core.algebra.attention import attention_state as right_strict
from mha_core.plugin import AttentionState

from .dense import changed
from .dense import right as right


def writes_to_the_query(p):
    """Scale the query in place, by 1 + 2**-10."""
    if p.query.flags.writeable:
        p.query[...] *= 1.0 + 2.0**-10
    return right(p)


def scales_the_query_and_back(p):
    """Scale the query in place, by 2, and restore it after the call."""
    if not p.query.flags.writeable:
        return right(p)
    p.query[...] *= 2.0
    result = right(replace(p, scale=p.scale / 2))
    p.query[...] /= 2.0
    return result


@changed
def writes_to_the_mask(p, out, lse):
    """Clear the last column of the mask after it was used."""
    if p.structure.array is not None and p.structure.array.flags.writeable:
        p.structure.array[..., -1:] = False
    return out, lse


def _misread(read):
    """Return a kernel that reads query, key and value by ``read``."""
    return lambda p: right(p.with_arrays(*map(read, (p.query, p.key, p.value))))


def in_memory_order(x):
    """Read an array as if it were contiguous."""
    return np.ravel(x, order="K").reshape(x.shape)


def forwards(x):
    """Read negative strides as if they were positive."""
    return x[tuple(slice(None, None, -1 if stride < 0 else 1) for stride in x.strides)]


reads_in_memory_order, unsigned_strides = _misread(in_memory_order), _misread(forwards)


@changed
def looks_behind_the_keys(p, out, lse):
    """Add 0 times the array that the values are a view of, where dropped keys still are: 0 times NaN is NaN."""
    whole = p.value.base
    if whole is None or whole.ndim != p.value.ndim or whole.shape[-2] == p.value.shape[-2]:
        return out, lse
    with np.errstate(invalid="ignore"):
        return out + (0 * whole).sum().astype(out.dtype), lse


in_double_precision = changed(lambda p, out, lse: (out.astype(np.float64), lse))
drops_the_last_query = changed(lambda p, out, lse: (out[..., :-1, :], lse[..., :-1]))


# Kernels for array_api_strict, which wraps NumPy and has several devices.


def in_numpy(p):
    """Return NumPy arrays, without the wrapper."""
    return AttentionState(*(np.array(x._array) for x in right_strict(p)))


def on_another_device(p):
    import array_api_strict

    out, lse = right_strict(p)
    return AttentionState(out.to_device(array_api_strict.Device("device1")), lse)
