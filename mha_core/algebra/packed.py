"""Packed sequences: whether they are independent problems, and their attention, one run of equal lengths at a time."""

from __future__ import annotations

from collections.abc import Callable

from .arrays import Array, move_axis, split_axis
from .masks import Band, runs
from .problem import AttentionProblem
from .state import AttentionState, concat_queries
from .structure import Structure


def goes_by_sequence(p: AttentionProblem) -> bool:
    """Return whether the sequences of a packed problem are independent: mask and bias depend only on distances within them."""
    s = p.structure
    plain = s.key_lengths is None and s.array is None and s.rest is None
    if s.packed is None or not plain or not isinstance(p.offset, int):
        return False
    return p.bias is None or (p.bias.by_distance and p.offset == 0)  # the band already includes the offset, a bias does not


def only_packed(p: AttentionProblem) -> bool:
    """Return whether ``goes_by_sequence`` is true and there is no bias, for kernels without biases of packed sequences."""
    return p.bias is None and goes_by_sequence(p)


def by_sequence(p: AttentionProblem, attend: Callable[[AttentionProblem], AttentionState]) -> AttentionState:
    """Return the state of a packed problem; no pair of different sequences is computed.

    ``attend`` is called once for each run of sequences of one length, with the sequences as batch. If it returns
    None as lse, so does this function.
    """
    xp = p.xp
    low, high = p.structure.band

    def stacked(x: Array, start: int, count: int, length: int) -> Array:
        # (..., H, L, D) -> (..., count, H, length, D), a view
        run = x[..., start : start + count * length, :]
        return move_axis(xp, split_axis(xp, run, -2, (count, length)), -3, -4)

    states = []
    for start, count, length in runs(p.structure.packed or ()):
        if not count * length:
            continue
        structure = Structure(keys=range(length), band=(low, high))
        mask = None if (low, high) == (None, None) else Band(low, high)
        arrays = (stacked(x, start, count, length) for x in (p.query, p.key, p.value))
        out, lse = attend(p.with_arrays(*arrays, structure=structure, mask=mask, offset=0))
        out = xp.reshape(move_axis(xp, out, -4, -3), (*out.shape[:-4], out.shape[-3], count * length, out.shape[-1]))
        if lse is not None:
            lse = xp.reshape(move_axis(xp, lse, -3, -2), (*lse.shape[:-3], lse.shape[-2], count * length))
        states.append(AttentionState(out, lse))
    return concat_queries(xp, states)
