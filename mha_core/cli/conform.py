"""``mha conform``: run the conformance suite with pytest in a separate process."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from ..dispatch.errors import MhaError

NOTHING_RUN = 5  # pytest's exit status if no test was run
_SETTINGS = Path(__file__).parent.parent / "conformance" / "pytest.ini"


class NoPytest(MhaError, ImportError):
    """pytest is not installed."""


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
    """Test a backend and return pytest's exit status, which is 0 only if tests were run and all of them passed.

    With ``report``, a certificate is written to that folder. Raises NoPytest.
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
    # ignore pytest.ini and conftest.py of the current folder and PYTEST_ADDOPTS, and leave no cache there
    isolated = ["-c", str(_SETTINGS), "--rootdir", str(Path.cwd()), "--noconftest", "-p", "no:cacheprovider"]
    environment = {name: value for name, value in os.environ.items() if name != "PYTEST_ADDOPTS"}
    return subprocess.run([sys.executable, "-m", "pytest", *arguments, *isolated], env=environment, check=False).returncode
