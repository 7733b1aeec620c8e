"""Find the commit that changed the instructions of a case: bisection between two commits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mha_conformance.bench.instructions.cases import COUNTED
from mha_conformance.history.changes import RULES

from .compiled import NotInstalled
from .counting import counted
from .project import Refused


@dataclass(frozen=True)
class Step:
    """Two commits of the line, between which the count changed; those between them, if any, cannot be counted."""

    good: str
    bad: str
    before: int
    after: int
    tried: int
    """Number of commits that were counted."""


def find(line: Sequence[str], backend: str, case: str, watch: Callable[[str, int], None] = lambda *_: None) -> Step:
    """Return where the instructions of a case changed between the first and the last commit of a line.

    A commit belongs to the side whose count is nearer to its own. ``watch`` is called with each commit and its count.

    A commit between them that cannot be counted is left out.

    Raises Refused if there is nothing to find: an end cannot be counted, or both are alike; CannotCount.
    """
    counts: dict[str, int] = {}

    def count(commit: str) -> str:
        """Count a commit, and return why it cannot be counted; "" if it can."""
        try:
            one = counted(commit, [backend], [case])[backend][case]
        except NotInstalled as error:
            return str(error)
        if one.instructions is not None:
            counts[commit] = one.instructions
            watch(commit, one.instructions)
        return one.wrong

    left = list(line)
    for end in (left[0], left[-1]):
        if why := count(end):
            raise Refused(f"{end[:8]} cannot be counted on {backend} in {case!r}: {why}")
    before, after = counts[left[0]], counts[left[-1]]
    tolerance = min(COUNTED[case].tolerance, RULES["instructions"].tolerance)  # the report names what is beyond its own
    if abs(after / before - 1) <= tolerance:
        raise Refused(
            f"{case!r} on {backend} runs {before:,} instructions at {left[0][:8]} and {after:,} at {left[-1][:8]}: "
            f"no more than {tolerance:.1%} apart"
        )
    while len(left) > 2:
        middle = len(left) // 2
        if count(left[middle]):
            del left[middle]
        elif abs(counts[left[middle]] - before) < abs(counts[left[middle]] - after):
            left = left[middle:]
        else:
            left = left[: middle + 1]
    good, bad = left
    return Step(good, bad, counts[good], counts[bad], len(counts))
