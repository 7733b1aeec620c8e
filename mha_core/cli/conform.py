"""``mha conform``: the conformance suite by pytest, in a process of its own, away from the settings of whoever runs it."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from ..dispatch.errors import MhaError

NOTHING_RUN = 5  # pytest's exit status where no test was run
_SETTINGS = Path(__file__).parent.parent / "conformance" / "pytest.ini"


class NoPytest(MhaError, ImportError):
    """The suite needs pytest."""


def conform(
    backend: str,
    *,
    device: str | None = None,
    dtypes: Sequence[str] = (),
    plugins: Sequence[str] = (),
    expression: str | None = None,
    quick: bool = False,
    seed: int = 0,
    report: Path | None = None,
) -> int:
    """Judge a backend and return pytest's exit status: 0 only where tests were run and all of them passed.

    report: the folder for the certificate.

    Raises NoPytest.
    """
    if importlib.util.find_spec("pytest") is None:
        raise NoPytest("mha conform needs pytest: pip install 'mha-core[conformance]'")
    arguments = ["-p", "mha_core.conformance.plugin", "--pyargs", "mha_core.conformance", "--backend", backend]
    arguments += [] if device is None else ["--device", device]
    arguments += [word for dtype in dtypes for word in ("--dtype", dtype)]
    arguments += [word for module in plugins for word in ("--plugin", module)]
    arguments += [] if expression is None else ["-k", expression]
    arguments += ["--quick"] * quick + ["--seed", str(seed)]
    arguments += [] if report is None else ["--report", str(report)]
    # a pytest.ini, conftest.py or PYTEST_ADDOPTS of the folder one happens to stand in has no say, and nothing is left there
    alone = ["-c", str(_SETTINGS), "--rootdir", str(Path.cwd()), "--noconftest", "-p", "no:cacheprovider"]
    environment = {name: value for name, value in os.environ.items() if name != "PYTEST_ADDOPTS"}
    return subprocess.run([sys.executable, "-m", "pytest", *arguments, *alone], env=environment, check=False).returncode
