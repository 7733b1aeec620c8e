"""``mha conform``: run the conformance suite with pytest in a separate process."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from mha_core import MhaError

from ..bench.machine import cores

NOTHING_RUN = 5  # pytest's exit status if no test was run
_SETTINGS = Path(__file__).parents[1] / "pytest.ini"
_ENVIRONMENT = {
    "OMP_WAIT_POLICY": "PASSIVE",
    "OPENBLAS_THREAD_TIMEOUT": "4",
    "MALLOC_MMAP_THRESHOLD_": str(2**25),
    "MALLOC_TRIM_THRESHOLD_": str(2**28),
}
"""Variables of the process that judges, where the user has not set them: idle threads of OpenMP and OpenBLAS sleep, and glibc
uses freed memory again. Memory from the system is cleared, which would hide a kernel that reads what it has not written.
"""
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
"""Variables that are set likewise where several processes share the cores."""


def conform(backend: str, options: Mapping[str, Any], *, processes: int | None = None) -> int:
    """Test a backend and return pytest's exit status, which is 0 only if tests were run and all of them passed.

    options: those of pytest and the suite's plugin. A list repeats its option, True gives it without a value, and None and
    False leave it out.

    Raises MhaError if several processes are asked for and pytest-xdist is not installed.
    """
    environment = dict(_ENVIRONMENT)
    if processes is not None:
        if find_spec("xdist") is None:
            raise MhaError("--processes needs pytest-xdist: pip install pytest-xdist")
        options = {**options, "-n": processes, "--dist": "worksteal"}
        environment |= dict.fromkeys(_THREADS, str(max(1, cores() // processes)))
    arguments = ["-p", "mha_conformance.plugin", "--pyargs", "mha_conformance", "--backend", backend]
    arguments += ["--details", f"conform-{backend}.txt", "--tb=short", "-rN"]
    for option, value in options.items():
        given = [x for x in (value if isinstance(value, list) else [value]) if x is not None and x is not False]
        arguments += [word for x in given for word in ([option] if x is True else [option, str(x)])]
    # ignore pytest.ini and conftest.py of the current folder and PYTEST_ADDOPTS, and leave no cache there
    isolated = ["-c", str(_SETTINGS), "--rootdir", str(Path.cwd()), "--noconftest", "-p", "no:cacheprovider"]
    environment |= {name: value for name, value in os.environ.items() if name != "PYTEST_ADDOPTS"}
    return subprocess.run([sys.executable, "-m", "pytest", *arguments, *isolated], env=environment, check=False).returncode
