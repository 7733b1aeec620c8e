"""Recording of the calls that a kernel receives while it is preferred to all others of its operation.

The registry is used as any plugin uses it: the kernel is registered once more, under another name and with top priority.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from mha_core.plugin import Call, Kernel, hookimpl, register, unregister
from mha_core.shared import FEATURES, STATE_FEATURES, imported

from ..report.evidence import REFUSALS, RUNS, evidence
from ..report.sections import REFUSED_EVERY_CALL


@dataclass
class Recording:
    """The calls of a kernel while it was recorded; also the plugin that registers the kernel once more."""

    kernel: Kernel
    features: frozenset[str]
    """All features that core may name."""
    seen: list[Call] = field(default_factory=list)
    """Every call of the operation, whether or not the kernel may compute it."""
    asked: list[Call] = field(default_factory=list)
    """Calls that the kernel's ``supports`` was asked about."""
    runs: int = 0
    """Number of calls of the kernel."""
    prepared_runs: int = 0
    """Number of calls of what it prepared, which count as calls of the kernel too."""
    reasons: list[str] = field(default_factory=list)
    """Reasons for which the kernel refused calls."""

    def _observe(self, call: Call) -> str:
        self.seen.append(call)
        return "only observes"

    def _supports(self, call: Call) -> str | None:
        self.asked.append(call)
        reason = None if self.kernel.supports is None else imported(self.kernel.supports)(call)
        self.reasons += [] if reason is None else [reason]
        return reason

    @hookimpl
    def mha_kernels(self) -> Iterator[Kernel]:
        """Yield the kernel under test, and an observer that declares every feature and refuses every call."""
        under_test = replace(
            self.kernel,
            name=f"{self.kernel.name} under test",
            load=f"{__name__}:run",
            prepare=None if self.kernel.prepare is None else f"{__name__}:prepare",
            priority=sys.maxsize - 1,
            supports=self._supports,
            opt_in=False,
        )
        yield under_test
        # it comes first and declares everything, and so sees each call as core describes it
        yield replace(under_test, name="observer", priority=sys.maxsize, handles=self.features, supports=self._observe)

    def assert_given_what_it_declares(self) -> None:
        """Raise AssertionError if the kernel was asked for undeclared features, or not asked for declared ones."""
        assert self.seen, "no call of this operation was seen: core names a feature that this suite does not know"
        for call in self.seen:
            undeclared = sorted(call.features - self.kernel.handles)
            asked = call in self.asked
            assert not (undeclared and asked), f"the kernel was asked for {', '.join(undeclared)}, which it does not declare"
            assert undeclared or asked, f"the kernel declares {sorted(call.features)}, but was not asked"
        assert self.asked or not self.runs, "the kernel was called for features that it does not declare"


def recording_of(kernel: Kernel, judge: Callable[[Any], object], problems: Iterable[Any]) -> Recording:
    """Prefer a kernel while ``judge`` judges problems; assert that it was asked for what it declares, and nothing else."""
    with recorded(kernel, FEATURES[kernel.op] | STATE_FEATURES) as recording:
        for problem in problems:
            judge(problem)
    recording.assert_given_what_it_declares()
    return recording


def skip_if_never_run(recordings: Iterable[Recording]) -> None:
    """Skip the test if the kernel computed none of the recorded calls, with the reasons that it gave."""
    recordings = list(recordings)
    if not any(recording.runs for recording in recordings):
        reasons = sorted({reason for recording in recordings for reason in recording.reasons})
        pytest.skip(f"{REFUSED_EVERY_CALL}: {'; '.join(reasons)}" if reasons else "core offered the kernel no call tried here")


def assert_declares_known_features(kernel: Kernel) -> None:
    """Raise AssertionError if a kernel declares a feature that core never names."""
    known = FEATURES[kernel.op] | STATE_FEATURES
    unknown = sorted(kernel.handles - known)
    assert not unknown, f"the kernel declares {', '.join(unknown)}; known features are {', '.join(sorted(known))}"


_recordings: list[Recording] = []


def run(*arguments: Any, **options: Any) -> Any:
    """Call the kernel that is recorded."""
    recording = _recordings[-1]
    recording.runs += 1
    return imported(recording.kernel.load)(*arguments, **options)


def prepare(problem: Any) -> Callable[..., Any] | None:
    """Prepare a call of the kernel that is recorded."""
    recording = _recordings[-1]
    assert recording.kernel.prepare is not None
    compute = imported(recording.kernel.prepare)(problem)
    if compute is None:
        return None

    def counted(*arrays: Any) -> Any:
        recording.runs += 1
        recording.prepared_runs += 1
        return compute(*arrays)

    return counted


@contextmanager
def recorded(kernel: Kernel, features: Iterable[str] = ()) -> Iterator[Recording]:
    """Prefer a kernel for every call of its operation on its backend, and record its calls.

    features: all features that core may name.
    """
    recording = Recording(kernel, frozenset(features))
    register(recording, f"conformance of {kernel.name}")
    _recordings.append(recording)
    try:
        yield recording
    finally:
        _recordings.pop()
        unregister(recording)
        evidence.add(RUNS, (kernel.op, kernel.name), recording.runs)
        evidence.add(REFUSALS, (kernel.op, kernel.name), sorted({*recording.reasons}))
