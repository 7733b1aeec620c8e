"""Packed sequences: whether they are independent problems, and their attention, one run of equal lengths at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from .arrays import Array, move_axis, split_axis
from .int8 import map_rows
from .masks import Band, runs
from .problem import AttentionProblem
from .state import AttentionState, concat_queries
from .structure import Structure
from .tiles import NO_LIMITS


def goes_by_sequence(p: AttentionProblem) -> bool:
    """Return whether the sequences of a packed problem are independent: mask and bias depend only on distances within them."""
    s = p.structure
    plain = s.key_lengths is None and s.array is None and s.rest is None
    if s.packed is None or not plain or not isinstance(p.offset, int) or p.dropout is not None:
        return False
    return p.bias is None or (p.bias.by_distance and p.offset == 0)  # the band already includes the offset, a bias does not


def only_packed(p: AttentionProblem) -> bool:
    """Return whether ``goes_by_sequence`` is true and there is no bias, for kernels without biases of packed sequences."""
    return p.bias is None and goes_by_sequence(p)


@dataclass(frozen=True)
class Run:
    """Adjacent sequences of one length, with the sequences as batch."""

    problem: AttentionProblem
    start: int
    count: int
    length: int

    def stacked(self, x: Array) -> Array:
        """(..., H, L, D) -> (..., count, H, length, D), a view."""
        run = x[..., self.start : self.start + self.count * self.length, :]
        return move_axis(self.problem.xp, split_axis(self.problem.xp, run, -2, (self.count, self.length)), -3, -4)

    def laid_out(self, x: Array) -> Array:
        """(..., count, H, length, D) -> (..., H, count * length, D)."""
        return self.problem.xp.reshape(
            move_axis(self.problem.xp, x, -4, -3), (*x.shape[:-4], x.shape[-3], self.count * self.length, x.shape[-1])
        )

    def stacked_rows(self, x: Array) -> Array:
        """(..., H, L) -> (..., count, H, length)."""
        return self.stacked(x[..., None])[..., 0]


def sequences(p: AttentionProblem) -> Iterator[Run]:
    """Yield the runs of a packed problem; no pair of different sequences is in any of them."""
    band = p.structure.band
    mask = None if band == NO_LIMITS else Band(*band)
    for start, count, length in runs(p.structure.packed or ()):
        if count * length:
            run = Run(p, start, count, length)
            structure = Structure(keys=range(length), band=band)
            arrays = (map_rows(x, run.stacked) for x in (p.query, p.key, p.value))
            yield replace(run, problem=p.with_arrays(*arrays, structure=structure, mask=mask, offset=0))


def by_sequence(p: AttentionProblem, attend: Callable[[AttentionProblem], AttentionState]) -> AttentionState:
    """Return the state of a packed problem; no pair of different sequences is computed.

    ``attend`` is called once for each run of sequences of one length, with the sequences as batch. If it returns
    None as lse, so does this function.
    """
    states: list[AttentionState] = []
    for run in sequences(p):
        out, lse = attend(run.problem.after(*(state.out for state in states[-1:])))
        states.append(AttentionState(run.laid_out(out), lse if lse is None else run.laid_out(lse[..., None])[..., 0]))
    return concat_queries(p.xp, states)
