"""A problem as the compiled module reads it, for any array library: a plan, and arrays beside query, key and value."""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np

from mha_core.plugin import AttentionProblem, Call, bias_by_distance, goes_by_sequence

from .level import native
from .tile_map import tile_map

_LONGEST = 2**31
_BATCH_AXES = 8
_MOST_BITS = 2**31  # a quarter of a gigabyte
_ALONE = frozenset({"key_lengths", "array_mask", "bias", "mask"})  # features that packed sequences are not combined with

WITHOUT_ARRAYS = frozenset(
    {"lse", "causal", "window", "softcap", "sink", "grouped_query", "value_dim", "broadcast", "packed", "int8"}
)
"""Features of problems without arrays in mask and bias, which are prepared once."""


class Beside(NamedTuple):
    """Arrays in the form that the compiled module reads; None for those that the problem lacks."""

    mask: Any = None
    bias: Any = None
    distance: Any = None
    lengths: Any = None
    sequences: Any = None
    tiles: Any = None
    words: Any = None


def supports(call: Call) -> str | None:
    """Return why the kernel does not compute a call, for a reason that its shapes and options show; None if it does."""
    shapes = dict(call.shapes)
    if 0 in (size for shape in shapes.values() for size in shape):
        return "does not support empty axes"
    if max(size for shape in shapes.values() for size in shape) >= _LONGEST:
        return "does not support axes of 2^31 numbers or more"
    if max(map(len, shapes.values())) > _BATCH_AXES + 3:
        return f"does not support more than {_BATCH_AXES} batch axes"
    if call.option("softcap") is not None and abs(call.option("scale")) > 1e30 * call.option("softcap"):
        return "does not support a softcap that is so much smaller than the scale"
    if "mask" in call.features and shapes["query"][-2] * shapes["key"][-2] > _MOST_BITS:
        return f"keeps a bit for each pair of such a mask, and there are more than {_MOST_BITS} pairs"
    if "packed" in call.features:
        together = sorted(call.features & _ALONE)
        if together:
            return f"does not combine packed with {', '.join(together)}"
        if call.features & {"alibi", "relative_bias"} and call.option("query_offset") != 0:
            return "does not combine packed sequences, a bias and a query_offset"
        if call.option("query_offset") is None:
            return "does not combine packed with a query_offset for each batch element"
    return None


def plan(p: AttentionProblem, kind: str, team: int = 0) -> Any:
    """Return the compiled module's plan of a problem whose numbers are of this kind, as in ``struct``; H is bfloat16.

    ``team``: the address of a function GOMP_parallel, whose threads compute; 0 for the module's own.
    """
    low, high = p.structure.band
    queries, width = p.query.shape[-2:]
    keys, value_width = p.value.shape[-2:]
    heads = p.query.shape[-3], p.key.shape[-3]
    shape = (*heads, queries, keys, width, value_width)
    return native.plan(kind, tuple(p.batch_shape), *shape, p.scale, p.softcap or 0.0, low, high, team)


class Library(NamedTuple):
    """Functions of an array library."""

    view: Callable[[Any], Any]
    """Returns an array in a form that the compiled module reads."""
    lengths: Callable[[Any, tuple[int, ...]], Any]
    """Returns integers that broadcast to the batch shape as the compiled module reads the number of keys of each element."""
    dense: Callable[[Any, Any], Any]
    """Returns an array in a dtype, with rows without gaps."""
    to_numpy: Callable[[Any], np.ndarray] = np.asarray
    """Returns an array in the host's memory as one of NumPy's, without a copy."""


def beside(p: AttentionProblem, library: Library) -> Beside:
    """Return the problem's other arrays."""
    view = library.view
    s = p.structure
    by_distance = p.bias is not None and p.bias.by_distance
    return Beside(
        mask=None if s.array is None else view(s.array),
        bias=None if p.bias is None or by_distance else view(p.bias.block(_grid(p))),
        distance=view(library.dense(bias_by_distance(p), p.compute_dtype)) if by_distance else None,
        lengths=None if s.key_lengths is None else library.lengths(s.key_lengths, p.batch_shape),
        sequences=sequences(s.packed) if goes_by_sequence(p) else None,
        **({} if s.rest is None else tile_map(p, library.to_numpy)._asdict()),
    )


def host_lengths(lengths: np.ndarray, batch_shape: tuple[int, ...]) -> np.ndarray:
    """Return the number of keys of each batch element in the host's memory."""
    return np.ascontiguousarray(np.broadcast_to(lengths, batch_shape), dtype=np.int64)


def _grid(p: AttentionProblem) -> Any:
    return p.grid(range(p.query.shape[-2]), p.structure.keys)


def sequences(lengths: Any) -> np.ndarray:
    """Return (query start, queries, key start, keys) of sequences that are laid end to end, without empty ones."""
    starts = list(accumulate(lengths, initial=0))
    return np.asarray([(at, n, at, n) for at, n in zip(starts, lengths, strict=False) if n], dtype=np.int64)
