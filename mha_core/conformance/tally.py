"""What became of all the tests of a run: counts by section and by promise, and the evidence that they left."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from .evidence import Errors, Runs, evidence
from .promises import PROMISES
from .sections import FAILED, OUTCOMES, SECTIONS, outcome_of, section_named, section_of

if TYPE_CHECKING:
    import pytest

TO_REPRODUCE = "to reproduce"


# What a test's report carries, to wherever it is counted: pytest-xdist sends it on, and JUnit's XML shows it.


def describe(item: pytest.Item) -> None:
    """Write on a test to which section it belongs and which promises it holds."""
    marker = item.get_closest_marker("promise")  # a test's own stands in place of its module's
    item.user_properties += [("section", section_of(item)), ("promises", [*marker.args] if marker else [])]


def attach_evidence(item: pytest.Item) -> None:
    """Write on a test, whose call is over, what it left behind."""
    errors, runs = evidence.take()
    item.user_properties += [("error over bound", [[*key, ratio]]) for key, ratio in errors.items()]
    item.user_properties += [("kernel runs", [[*key, count]]) for key, count in runs.items()]


def died(report: pytest.TestReport) -> bool:
    """Whether a test ended with the process that ran it; pytest-xdist then reports that, and nothing of the test."""
    return report.when not in ("setup", "call", "teardown")


@dataclass
class Fate:
    """Of one test."""

    section: str
    promises: list[int]
    outcome: str
    reproduce: str = ""


@dataclass
class Tally:
    """The fates of the tests by their ids, the greatest error over its bound, and the runs of each kernel."""

    fates: dict[str, Fate] = field(default_factory=dict)
    errors: Errors = field(default_factory=dict)
    runs: Runs = field(default_factory=dict)
    _started: dict[str, dict[str, Any]] = field(default_factory=dict)

    def add(self, report: pytest.TestReport) -> None:
        """Count one phase of a test; reports of tests that are not of this suite are passed over."""
        said: dict[str, Any] = dict(report.user_properties)
        if died(report):  # all that is known of the test is what the report of its setup said
            said = self._started.get(report.nodeid, {"section": section_named(report.nodeid)})
        if "section" not in said:
            return
        self._started[report.nodeid] = said
        outcome = outcome_of(report)
        before = self.fates.get(report.nodeid)
        if outcome is not None and (before is None or before.outcome != FAILED):
            reproduce = next((text for title, text in report.sections if title == TO_REPRODUCE), "")
            self.fates[report.nodeid] = Fate(said["section"], list(said.get("promises", [])), outcome, reproduce)
        if report.when == "call":
            self._add_evidence(report.user_properties)

    def _add_evidence(self, properties: Iterable[tuple[str, Any]]) -> None:
        for name, value in properties:
            for op, which, number in value if name in ("error over bound", "kernel runs") else ():
                if name == "error over bound":
                    self.errors[op, which] = max(self.errors.get((op, which), 0.0), number)
                else:
                    self.runs[op, which] = self.runs.get((op, which), 0) + number

    @property
    def judged(self) -> bool:
        """Whether any test said anything of the backend."""
        return any(fate.outcome in ("passed", "failed") for fate in self.fates.values())

    def sections(self) -> dict[str, dict[str, int]]:
        """Outcomes counted by section, in the order of ``SECTIONS``; sections without a test are left out."""
        named = {fate.section for fate in self.fates.values()}
        order = [*(name for name in SECTIONS if name in named), *sorted(named.difference(SECTIONS))]
        return {name: _count(fate for fate in self.fates.values() if fate.section == name) for name in order}

    def promises(self) -> dict[int, dict[str, int]]:
        """Outcomes counted by promise, every one, tried or not; a test counts for each that it holds."""
        return {number: _count(fate for fate in self.fates.values() if number in fate.promises) for number in PROMISES}

    def failures(self) -> Iterator[tuple[str, int, str]]:
        """For each promise that failed: what it is, the number of tests, and the line that reproduces the first."""
        failed = [fate for fate in self.fates.values() if fate.outcome == FAILED]
        for number, name in PROMISES.items():
            mine = [fate for fate in failed if number in fate.promises]
            if mine:
                yield f"promise {number}, {name}", len(mine), mine[0].reproduce
        others = [fate for fate in failed if not fate.promises]
        if others:
            yield "no promise by number", len(others), others[0].reproduce


def _count(fates: Iterable[Fate]) -> dict[str, int]:
    found = Counter(fate.outcome for fate in fates)
    return {outcome: found[outcome] for outcome in OUTCOMES}
