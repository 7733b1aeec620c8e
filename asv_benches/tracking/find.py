"""Find the commit that changed the instructions of a case: bisection between two commits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mha_conformance.bench.instructions.cases import COUNTED

from .counting import counted
from .project import Refused


@dataclass(frozen=True)
class Found:
    """Two neighbouring commits of the line, between which the count changed."""

    good: str
    bad: str
    before: int
    after: int
    tried: int
    """Number of commits that were counted."""


def find(line: Sequence[str], backend: str, case: str, watch: Callable[[str, int], None] = lambda *_: None) -> Found:
    """Return where the instructions of a case changed between the first and the last commit of a line.

    A commit belongs to the side whose count is nearer to its own. ``watch`` is called with each commit and its count.

    Raises Refused if there is nothing to find: a side was not counted, or both are alike; CannotCount.
    """
    counts: dict[int, int] = {}

    def at(place: int) -> int:
        if place not in counts:
            count = counted(line[place], [backend], [case])[backend][case]
            if count.instructions is None:
                raise Refused(f"{line[place][:8]} cannot be counted on {backend} in {case!r}: {count.wrong}")
            counts[place] = count.instructions
            watch(line[place], count.instructions)
        return counts[place]

    good, bad = 0, len(line) - 1
    before, after = at(good), at(bad)
    if abs(after / before - 1) <= COUNTED[case].limit:
        raise Refused(
            f"{case!r} on {backend} runs {before:,} instructions at {line[good][:8]} and {after:,} at {line[bad][:8]}: "
            f"no more than {COUNTED[case].limit:.1%} apart"
        )
    while bad - good > 1:
        middle = (good + bad) // 2
        if abs(at(middle) - before) < abs(at(middle) - after):
            good = middle
        else:
            bad = middle
    return Found(line[good], line[bad], counts[good], counts[bad], len(counts))
