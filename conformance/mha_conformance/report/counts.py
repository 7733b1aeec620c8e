"""Results of all tests of a run, counted by section and by promise, and the evidence that they recorded."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from .evidence import KINDS, Records, evidence
from .promises import PROMISES
from .sections import FAILED, OUTCOMES, SECTIONS, outcome_of, section_named, section_of

if TYPE_CHECKING:
    import pytest

TO_REPRODUCE = "to reproduce"
ERROR = "error"
"""The outcome, for its promises, of a test that failed by another error than that of an assertion."""


# user_properties travel with a test's report: pytest-xdist sends them on, and JUnit's XML shows them.


def describe(item: pytest.Item) -> None:
    """Attach its section and its promises to a test."""
    marker = item.get_closest_marker("promise")  # a test's own mark replaces its module's
    item.user_properties += [("section", section_of(item)), ("promises", [*marker.args] if marker else [])]


def attach_evidence(item: pytest.Item) -> None:
    """Attach the recorded evidence to a test whose call is over."""
    for kind, values in evidence.take().items():
        item.user_properties += [(kind, [*key, value]) for key, value in values.items()]


def died(report: pytest.TestReport) -> bool:
    """Return whether the process ended during a test; pytest-xdist then reports only that, and no phase of the test."""
    return report.when not in ("setup", "call", "teardown")


@dataclass
class Result:
    """The result of one test."""

    section: str
    promises: list[int]
    outcome: str
    reproduce: str = ""
    cause: str = ""
    """The first line of the error of a test that failed. Only a failed assertion says something about its promises."""
    details: str = ""
    """Its traceback."""

    @property
    def blames(self) -> bool:
        """True if an assertion of the test failed, or an error that it expects was not raised; False for any other error."""
        return self.outcome == FAILED and self.cause.startswith(("AssertionError", "assert ", "Failed: "))


@dataclass
class Counts:
    """Results of the tests by id, and their evidence."""

    results: dict[str, Result] = field(default_factory=dict)
    records: Records = field(default_factory=Records)
    _started: dict[str, dict[str, Any]] = field(default_factory=dict)

    def add(self, report: pytest.TestReport) -> None:
        """Count one phase of a test; reports of tests outside this suite are ignored."""
        properties: dict[str, Any] = dict(report.user_properties)
        if died(report):  # all that is known of the test comes from the report of its setup
            properties = self._started.get(report.nodeid, {"section": section_named(report.nodeid)})
        if "section" not in properties:
            return
        self._started[report.nodeid] = properties
        outcome = outcome_of(report)
        before = self.results.get(report.nodeid)
        if outcome is not None and (before is None or before.outcome != FAILED):
            reproduce = next((text for title, text in report.sections if title == TO_REPRODUCE), "")
            promises = list(properties.get("promises", []))
            failure = (cause_of(report), report.longreprtext) if outcome == FAILED else ("", "")
            self.results[report.nodeid] = Result(properties["section"], promises, outcome, reproduce, *failure)
        evidence_of_call: list[tuple[str, Any]] = report.user_properties if report.when == "call" else []
        for kind, value in evidence_of_call:
            if kind in KINDS:
                name, second, number = value
                self.records.add(kind, (name, second), number)

    @property
    def judged(self) -> bool:
        """True if any test passed or failed."""
        return any(result.outcome in ("passed", "failed") for result in self.results.values())

    def sections(self) -> dict[str, dict[str, int]]:
        """Count outcomes by section, in the order of ``SECTIONS``; sections without a test are left out."""
        named = {result.section for result in self.results.values()}
        order = [*(name for name in SECTIONS if name in named), *sorted(named.difference(SECTIONS))]
        return {name: _count(result for result in self.results.values() if result.section == name) for name in order}

    def promises(self) -> dict[int, dict[str, int]]:
        """Count outcomes by promise, including promises that no test tried; a test counts for each of its promises.

        A test that raised another error than that of an assertion is counted as "error": it did not judge its promises.
        """
        counts = {}
        for number in PROMISES:
            mine = [result for result in self.results.values() if number in result.promises]
            errors = sum(result.outcome == FAILED and not result.blames for result in mine)
            counted = _count(mine)
            counts[number] = counted | {FAILED: counted[FAILED] - errors, ERROR: errors}
        return counts

    def failed(self) -> dict[str, Result]:
        """Return the results of the tests that failed, by id."""
        return {name: result for name, result in self.results.items() if result.outcome == FAILED}

    def failures(self) -> Iterator[tuple[str, int]]:
        """Yield each promise that failed, and the number of its failed tests; then how many tests judged no promise."""
        for number, counts in self.promises().items():
            if counts[FAILED]:
                yield f"promise {number}, {PROMISES[number]}", counts[FAILED]
        if others := sum(not (result.blames and result.promises) for result in self.failed().values()):
            yield "no promise: another error, or a test of something else", others

    def causes(self) -> list[list[Result]]:
        """Return the failed tests in groups that differ in the numbers of their errors only, the largest group first."""
        groups: dict[str, list[Result]] = {}
        for result in self.failed().values():
            groups.setdefault(_NUMBERS.sub("#", result.cause), []).append(result)
        return sorted(groups.values(), key=len, reverse=True)


_NUMBERS = re.compile(r"-?\d[\d.]*(e[-+]\d+)?|\b(nan|inf)\b")


def cause_of(report: pytest.TestReport) -> str:
    """Return the first line of the error of a test that failed."""
    crash = getattr(report.longrepr, "reprcrash", None)
    lines = (report.longreprtext if crash is None else str(crash.message)).strip().splitlines()
    return lines[0] if lines else "no error was reported"


def _count(results: Iterable[Result]) -> dict[str, int]:
    counts = Counter(result.outcome for result in results)
    return {outcome: counts[outcome] for outcome in OUTCOMES}
