"""Python programs in fresh interpreters, which import what this one can and hold nothing else."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

SECONDS = 600


def run(*arguments: str, **environment: str) -> Any:
    """What ``python ARGUMENTS`` prints on its last line, as JSON. Raises AssertionError, with all it said, where it fails."""
    path = os.pathsep.join(dict.fromkeys(folder for folder in sys.path if folder))
    done = subprocess.run(
        [sys.executable, *arguments],
        env={**os.environ, **environment, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
        timeout=SECONDS,
    )
    assert done.returncode == 0, f"a process of its own failed: python {' '.join(arguments)}\n{done.stderr}"
    return json.loads(done.stdout.splitlines()[-1])
