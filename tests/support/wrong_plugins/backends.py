"""Backends over NumPy whose namespace or conversion is wrong.

They compute with NumPy; their arrays are of a subclass of NumPy's.
"""

from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from functools import partial
from threading import Lock

import numpy as np

from mha_core.plugin import write_rows

from .inputs import forwards, in_memory_order


class Array(np.ndarray):
    """NumPy's array as a subclass, so that it belongs to this backend."""


def wrapped(x):
    """Return the result of a NumPy function as an ``Array``."""
    if isinstance(x, np.ndarray | np.generic):
        return np.asarray(x).view(Array)
    return x


class Namespace:
    """NumPy, with some functions replaced."""

    def __init__(self, **functions):
        self._functions = functions

    def __getattr__(self, name):
        member = self._functions.get(name) or getattr(np, name)
        if isinstance(member, type) or not callable(member):
            return member
        return lambda *arguments, **options: wrapped(member(*arguments, **options))


def from_numpy(x, device):
    return np.array(x).view(Array)


def _truncated(x):
    """Keep ten bits of a float32's fraction, as tensor cores do (TF32)."""
    if x.dtype != np.float32:
        return x
    return (np.ascontiguousarray(x).view(np.int32) & np.int32(-(1 << 13))).view(np.float32)


def _where_by_product(condition, x, y):
    """Compute c x + (1 - c) y, which is right for finite numbers; if y is an infinite number, select properly."""
    if not np.isscalar(x) and np.isscalar(y) and np.isfinite(y):
        with np.errstate(invalid="ignore"):
            return (condition * x + ~condition * np.asarray(y, dtype=x.dtype)).astype(x.dtype)
    return np.where(condition, x, y)


def _sum_in_half_precision(x, *, axis=None, keepdims=False, dtype=None):
    """Sum float32 in float16."""
    if x.dtype != np.float32:
        return np.sum(x, axis=axis, keepdims=keepdims, dtype=dtype)
    with np.errstate(over="ignore"):
        return np.sum(x.astype(np.float16), axis=axis, keepdims=keepdims).astype(np.float32)


def _through(kind, change):
    """Return a ``from_numpy`` that changes arrays of this kind of dtype."""
    return lambda x, device: from_numpy(change(x).astype(x.dtype) if x.dtype.kind == kind else x, device)


_buffer = {}


def _one_buffer(x, device):
    """Use the same memory for all arrays of one shape: a second array overwrites the first."""
    memory = _buffer.setdefault((x.shape, x.dtype), np.empty(x.shape, dtype=x.dtype))
    memory[...] = x
    return memory.view(Array)


def _unsigned(x):
    """Read int8 as if it had no sign."""
    return np.asarray(x).view(np.uint8).astype(np.int8) // 2 * 2 if x.dtype == np.int8 else np.asarray(x)


def _booleans_in_memory_order(x):
    return np.asarray(in_memory_order(x) if x.dtype == bool else x)


def _as_completed(function, items):
    with ThreadPoolExecutor(4) as threads:
        for done in as_completed([threads.submit(function, item) for item in items]):
            yield done.result()


_lock = Lock()


def _one_at_a_time(function, items):
    with _lock:
        return iter([function(item) for item in items])


def _drops_errors(function, items):
    for item in items:
        with suppress(ArithmeticError):
            yield function(item)


def _in_pairs(function, items):
    """Compute pairs: the last of an odd number is lost."""
    items = iter(items)
    for pair in zip(items, items, strict=False):
        yield from map(function, pair)


FUNCTIONS = {
    "namespace": {
        None: Namespace,
        "matmul_of_few_bits": partial(Namespace, matmul=lambda a, b: np.matmul(_truncated(a), _truncated(b))),
        "where_by_product": partial(Namespace, where=_where_by_product),
        "sum_in_half_precision": partial(Namespace, sum=_sum_in_half_precision),
    },
    "from_numpy": {
        None: from_numpy,
        "strides_read_forwards": lambda x, device: from_numpy(forwards(x), device),
        "numbers_through_float32": _through("f", np.float32),
        "one_buffer": _one_buffer,
        "without_signs_of_zero": _through("f", lambda x: x + np.zeros((), x.dtype)),
        "int64_through_float64": _through("i", np.float64),  # which has 53 bits
    },
    "to_numpy": {None: np.asarray, "unsigned": _unsigned, "in_memory_order": _booleans_in_memory_order},
    "parallel": {
        None: map,
        "as_completed": _as_completed,
        "in_pairs": _in_pairs,
        "drops_errors": _drops_errors,
        "reads_all": lambda function, items: map(function, list(items)),
        "one_at_a_time": _one_at_a_time,
    },
    "write": {
        None: write_rows,
        "a_row_late": lambda x, start, rows: write_rows(x, start + (start > 0), rows),
        "over_the_first": lambda x, start, rows: write_rows(x, 0, rows),
    },
    "is_floating": {
        None: lambda dtype: np.isdtype(dtype, "real floating"),
        "integers_float": lambda dtype: np.isdtype(dtype, "numeric"),
    },
}


def function(kind, plugin):
    """Return the function of this kind for a plugin's backend: the wrong one, or the right one if the plugin has no other."""
    return FUNCTIONS[kind].get(plugin, FUNCTIONS[kind][None])
