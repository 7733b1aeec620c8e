"""Functions that prepare a call of a kernel which is right without them."""

from threading import get_ident

import numpy as np

from mha_core.plugin import AttentionState

from .dense import right as right


def of_right(p):
    return lambda q, k, v, sink: right(p.with_arrays(q, k, v, sink=sink))


def keeps_a_key(p):
    key = p.key.copy()
    return lambda q, k, v, sink: right(p.with_arrays(q, key, v, sink=sink))


def keeps_its_result(p):
    kept = np.empty((*p.rows_shape, p.value.shape[-1]), dtype=p.query.dtype)

    def run(q, k, v, sink):
        kept[...], lse = right(p.with_arrays(q, k, v, sink=sink))
        return AttentionState(kept, lse)

    return run


def reads_rows(p):
    """Read the memory of the keys as if it were contiguous."""

    def run(q, k, v, sink):
        whole = np.lib.stride_tricks.as_strided(k, k.shape, p.key.strides) if k.strides[-1] == k.itemsize else k
        return right(p.with_arrays(q, whole, v, sink=sink))

    return run


def for_one_thread(p):
    mine = get_ident()
    return lambda q, k, v, sink: right(p.with_arrays(q if get_ident() == mine else q + 1, k, v, sink=sink))
