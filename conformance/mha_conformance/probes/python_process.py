"""Run Python programs in new processes that can import the same modules as this one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

TIMEOUT = 600  # seconds


def run_python(*arguments: str, **environment: str) -> Any:
    """Run ``python ARGUMENTS`` and return the last line of its output, read as JSON.

    Raises AssertionError, with the program's standard error, if it fails.
    """
    path = os.pathsep.join(dict.fromkeys(folder for folder in sys.path if folder))
    done = subprocess.run(
        [sys.executable, *arguments],
        env={**os.environ, **environment, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT,
    )
    if done.returncode:
        raise RuntimeError(f"a new process failed: python {' '.join(arguments)}\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])
