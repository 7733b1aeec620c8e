"""Kernels that write to their inputs, misread their memory layout, or return another kind of array."""

import numpy as np

from mha_core.algebra.attention import attention_state
from mha_core.plugin import AttentionState

from .dense import right as right


def writes_to_the_query(p):
    """Scale the query in place, by 1 + 2**-10."""
    if p.query.flags.writeable:
        p.query[...] *= 1.0 + 2.0**-10
    return right(p)


def writes_to_the_mask(p):
    """Clear the last column of the mask after it was used."""
    state = right(p)
    if p.structure.array is not None and p.structure.array.flags.writeable:
        p.structure.array[..., -1:] = False
    return state


def reads_in_memory_order(p):
    """Read arrays as if they were contiguous."""
    return right(p.with_arrays(*(np.ravel(x, order="K").reshape(x.shape) for x in (p.query, p.key, p.value))))


def unsigned_strides(p):
    """Read negative strides as if they were positive."""
    return right(p.with_arrays(*(_forwards(x) for x in (p.query, p.key, p.value))))


def _forwards(x):
    return x[tuple(slice(None, None, -1 if stride < 0 else 1) for stride in x.strides)]


def looks_behind_the_keys(p):
    """Add 0 times the array that the values are a view of, where dropped keys still are: 0 times NaN is NaN."""
    state = right(p)
    whole = p.value.base
    if whole is None or whole.ndim != p.value.ndim or whole.shape[-2] == p.value.shape[-2]:
        return state
    with np.errstate(invalid="ignore"):
        leak = (0 * whole).sum()
    return AttentionState(state.out + leak.astype(state.out.dtype), state.lse)


def in_double_precision(p):
    out, lse = right(p)
    return AttentionState(out.astype(np.float64), lse)


def drops_the_last_query(p):
    """Leave the last query out of the result."""
    out, lse = right(p)
    return AttentionState(out[..., :-1, :], lse[..., :-1])


# Kernels for array_api_strict, which wraps NumPy and has several devices.


def right_strict(p):
    return attention_state(p)


def in_numpy(p):
    """Return NumPy arrays, without the wrapper."""
    out, lse = attention_state(p)
    return AttentionState(np.array(out._array), np.array(lse._array))


def on_another_device(p):
    import array_api_strict

    out, lse = attention_state(p)
    return AttentionState(out.to_device(array_api_strict.Device("device1")), lse)
