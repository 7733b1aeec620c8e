"""Section and outcome of a test: the rows and columns of the table at the end of a run.

The name of a module gives its section, "kernels" for ``test_kernels``, unless it sets ``SECTION = "layers"``. Tests in half
precision belong to "half precision" whatever their module, since many backends are right in float32 only.
"""

from __future__ import annotations

from pathlib import PurePath
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pytest

SECTIONS = (
    "namespace", "promises", "algebra", "kernels", "layers", "gradients", "half precision",
    "determinism", "threads", "memory", "imports", "vectors",
)  # fmt: skip
PASSED, FAILED, REFUSED, NOT_APPLICABLE = OUTCOMES = ("passed", "failed", "refused", "not applicable")
REFUSED_EVERY_CALL = "the kernel refused every call"
"""Start of the skip reason if a kernel's ``supports`` refused every call that was tried."""


def section_of(item: pytest.Item) -> str:
    """Return the section of a test, from its dtype, its module's ``SECTION`` or its module's name."""
    given: dict[str, Any] = item.callspec.params if hasattr(item, "callspec") else {}
    if given.get("dtype") in ("float16", "bfloat16"):
        return "half precision"
    declared: str | None = getattr(getattr(item, "module", None), "SECTION", None)
    return section_named(item.nodeid) if declared is None else declared


def section_named(nodeid: str) -> str:
    """Return the section of a test that is known by its id only."""
    return PurePath(nodeid.partition("::")[0]).stem.removeprefix("test_").replace("_", " ")


def outcome_of(report: pytest.TestReport) -> str | None:
    """Return one of ``OUTCOMES``; None for a setup or teardown that passed."""
    if report.failed:
        return FAILED
    if report.skipped:
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        return REFUSED if reason.startswith(f"Skipped: {REFUSED_EVERY_CALL}") else NOT_APPLICABLE
    return PASSED if report.when == "call" else None
