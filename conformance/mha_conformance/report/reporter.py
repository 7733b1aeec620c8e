"""The pytest plugin that writes the summary and the certificate, in the process that receives all reports."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from mha_core.plugin import Kernel
from mha_core.shared import atomic_file

from ..backend import BackendUnderTest
from . import certificate, summary
from .counts import TO_REPRODUCE, Counts, died

PACKAGE = "mha_conformance"


class Reporter:
    """Counts reports, then writes the summary and, with ``--report``, the certificate.

    Raises CannotJudge, before any test runs, if the certificate cannot be written.
    """

    def __init__(self, config: pytest.Config, backend: BackendUnderTest, kernels: Iterable[Kernel]) -> None:
        self.config = config
        self.backend = backend
        self.counts = Counts()
        self.certificate_lines: list[str] = []
        self.listing = config.getoption("collectonly")
        folder = config.getoption("report")
        self.files: certificate.Files | None = None
        if folder is not None:
            self.files = certificate.files(Path(folder), backend.name, config.getoption("device"))
            self.head = certificate.head(backend, kernels, _selection(config))

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if died(report):
            report.sections.append((TO_REPRODUCE, command(self.config, self.backend, report.nodeid.partition("::")[2])))
        self.counts.add(report)

    def _nothing_judged(self, exitstatus: int) -> bool:
        """Return whether every test was skipped, which is not a success."""
        empty = not self.listing and not self.counts.judged
        return empty and exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        if self.config.getoption("details") is not None:
            self.config.option.tbstyle = "no"  # the terminal shows no tracebacks: they are in the file
        if self._nothing_judged(exitstatus):
            session.exitstatus = pytest.ExitCode.NO_TESTS_COLLECTED
        elif self.files is not None:
            self._certify(session, exitstatus)

    def _certify(self, session: pytest.Session, exitstatus: int) -> None:
        """Write the certificate, unless the run was cut short, for example by -x: such a run gives no verdict."""
        assert self.files is not None
        completed = exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED)
        if not completed or session.shouldfail or session.shouldstop or not self.counts.judged:
            self.certificate_lines = ["no report was written: the run was cut short"]
            return
        record = certificate.certificate(self.head, self.counts, passed=exitstatus == pytest.ExitCode.OK)
        try:
            certificate.write(record, self.files)
        except OSError as error:
            self.certificate_lines = [f"ERROR: {error}"]
            session.exitstatus = pytest.ExitCode.INTERNAL_ERROR
        else:
            written = (self.files.json, self.files.markdown, self.files.badge)
            self.certificate_lines = [f"report: {path}" for path in written]

    def _write_details(self) -> str:
        """Write the tracebacks of the tests that failed to the file of ``--details``; return a line that names it, or ""."""
        path, failed = self.config.getoption("details"), self.counts.failed()
        if path is None or not failed:
            return ""
        parts = [f"{name}\n{result.reproduce}\n\n{result.details}\n" for name, result in failed.items()]
        try:
            with atomic_file(Path(path)) as file:
                file.write(f"\n{'=' * 100}\n".join(parts).encode())
        except OSError as error:
            return f"ERROR: {error}"
        return f"details: {path}"

    def pytest_terminal_summary(self, terminalreporter: Any, exitstatus: int) -> None:
        if self.counts.results:
            terminalreporter.write_sep("=", f"conformance of {self.backend.name}")
            for line in (*summary.lines(self.counts), *filter(None, (self._write_details(),)), *self.certificate_lines):
                terminalreporter.write_line(line)
            for line in summary.idle_kernels(self.counts):
                terminalreporter.write_line(f"WARNING: {line}", yellow=True)
        if self._nothing_judged(exitstatus):
            terminalreporter.write_line("ERROR: nothing was judged: no selected test applies to this backend", red=True)


def _selection(config: pytest.Config) -> str:
    """Return the options and arguments that select tests."""
    chosen = [(option, config.getoption(name)) for option, name in (("-k", "keyword"), ("-m", "markexpr"))]
    words = [word for option, expression in chosen if expression for word in (option, expression)]
    words += ["--part", str(config.getoption("part"))] * (config.getoption("part") < 1)
    words += [word for one in config.getoption("deselect") or () for word in ("--deselect", one)]
    return shlex.join([*words, *(word for word in config.args if word != PACKAGE)])


def command(config: pytest.Config, backend: BackendUnderTest, name: str) -> str:
    """Return the command line that runs one test of this run again."""
    words = ["mha", "conform", backend.name]
    for option in ("device", "dtype", "plugin"):
        given = config.getoption(option) or []
        words += [word for one in ([given] if isinstance(given, str) else given) for word in (f"--{option}", one)]
    words += (
        ["--quick"] * backend.quick
        + ["--part", str(backend.part)] * (backend.part < 1)
        + ["-k", name, "--seed", str(backend.seed)]
    )
    return shlex.join(words)
