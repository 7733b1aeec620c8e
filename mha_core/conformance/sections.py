"""Where a test of this suite belongs, and what became of it: the rows and the columns of the table at the end of a run.

A module's section is in its name, ``test_kernels`` being of "kernels", or is what it says itself: ``SECTION = "layers"``.
A test in half precision is of "half precision" whatever its module, for a backend that is right in float32 alone is common.
"""

from __future__ import annotations

from pathlib import PurePath
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pytest

SECTIONS = (
    "namespace", "promises", "algebra", "kernels", "layers", "half precision",
    "determinism", "threads", "memory", "imports", "vectors",
)  # fmt: skip
PASSED, FAILED, REFUSED, NOT_APPLICABLE = OUTCOMES = ("passed", "failed", "refused", "not applicable")
REFUSED_EVERY_CALL = "the kernel refused every call"
"""What the reason of a skip begins with, where a kernel gave reasons of its own against all that was tried."""


def section_of(item: pytest.Item) -> str:
    """The section of a test, from its dtype, its module's ``SECTION`` or its module's name."""
    given: dict[str, Any] = item.callspec.params if hasattr(item, "callspec") else {}
    if given.get("dtype") in ("float16", "bfloat16"):
        return "half precision"
    said: str | None = getattr(getattr(item, "module", None), "SECTION", None)
    return section_named(item.nodeid) if said is None else said


def section_named(nodeid: str) -> str:
    """The section of a test of which no more is known than where it stands."""
    return PurePath(nodeid.partition("::")[0]).stem.removeprefix("test_").replace("_", " ")


def outcome_of(report: pytest.TestReport) -> str | None:
    """One of ``OUTCOMES``, or None where a phase of the test passed and its call is still to come, or is over."""
    if report.failed:
        return FAILED
    if report.skipped:
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        return REFUSED if reason.startswith(f"Skipped: {REFUSED_EVERY_CALL}") else NOT_APPLICABLE
    return PASSED if report.when == "call" else None
