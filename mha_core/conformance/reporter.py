"""What a run says at its end, and the certificate that it leaves: a pytest plugin of the process that hears of all tests."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from ..dispatch.contract import Kernel
from . import certificate, summary
from .subject import Subject
from .tally import TO_REPRODUCE, Tally, died

PACKAGE = "mha_core.conformance"


class Reporter:
    """Counts what comes in, then writes the summary and, where ``--report`` asks for it, the certificate.

    Raises CannotJudge where the certificate could not be written: before anything runs.
    """

    def __init__(self, config: pytest.Config, subject: Subject, kernels: Iterable[Kernel]) -> None:
        self.config = config
        self.subject = subject
        self.tally = Tally()
        self.said: list[str] = []  # of the certificate
        self.listing = config.getoption("collectonly")
        folder = config.getoption("report")
        self.files: certificate.Files | None = None
        if folder is not None:
            self.files = certificate.files(Path(folder), subject.name, config.getoption("device"))
            self.head = certificate.head(subject, kernels, _selection(config))

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if died(report):
            report.sections.append((TO_REPRODUCE, command(self.config, self.subject, report.nodeid.partition("::")[2])))
        self.tally.add(report)

    def _nothing_judged(self, exitstatus: int) -> bool:
        """A run in which every test was skipped is no success."""
        empty = not self.listing and not self.tally.judged
        return empty and exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        if self._nothing_judged(exitstatus):
            session.exitstatus = pytest.ExitCode.NO_TESTS_COLLECTED
        elif self.files is not None:
            self._certify(session, exitstatus)

    def _certify(self, session: pytest.Session, exitstatus: int) -> None:
        """A run that was cut short, by -x too, is no verdict and leaves nothing."""
        assert self.files is not None
        to_its_end = exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED)
        if not to_its_end or session.shouldfail or session.shouldstop or not self.tally.judged:
            self.said = ["no report was written: the run did not come to its end"]
            return
        found = certificate.certificate(self.head, self.tally, passed=exitstatus == pytest.ExitCode.OK)
        try:
            certificate.write(found, self.files)
        except OSError as error:
            self.said = [f"ERROR: {error}"]
            session.exitstatus = pytest.ExitCode.INTERNAL_ERROR
        else:
            self.said = [f"report: {self.files.json}", f"report: {self.files.markdown}"]

    def pytest_terminal_summary(self, terminalreporter: Any, exitstatus: int) -> None:
        if self.tally.fates:
            terminalreporter.write_sep("=", f"conformance of {self.subject.name}")
            for line in (*summary.lines(self.tally), *self.said):
                terminalreporter.write_line(line)
        if self._nothing_judged(exitstatus):
            terminalreporter.write_line(
                "ERROR: nothing was judged: no test that was selected applies to this backend", red=True
            )


def _selection(config: pytest.Config) -> str:
    """The words of the command that chose among the tests."""
    chosen = [(option, config.getoption(name)) for option, name in (("-k", "keyword"), ("-m", "markexpr"))]
    words = [word for option, expression in chosen if expression for word in (option, expression)]
    words += [word for one in config.getoption("deselect") or () for word in ("--deselect", one)]
    return shlex.join([*words, *(word for word in config.args if word != PACKAGE)])


def command(config: pytest.Config, subject: Subject, name: str) -> str:
    """The line that runs one test of this run again, by its name."""
    words = ["mha", "conform", subject.name]
    for option in ("device", "dtype", "plugin"):
        given = config.getoption(option) or []
        words += [word for one in ([given] if isinstance(given, str) else given) for word in (f"--{option}", one)]
    words += ["--quick"] * subject.quick + ["-k", name, "--seed", str(subject.seed)]
    return shlex.join(words)
