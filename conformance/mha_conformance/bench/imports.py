"""Import time: a fresh interpreter that imports a module and exits.

The whole process is timed; nothing is subtracted.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .timing import Work


@dataclass(frozen=True)
class Import:
    """``import mha_core`` in a new process."""

    first_use: bool = False
    """True to load the backend's library too, as the first call on it would."""
    limit = None  # the machine sets no limit: loading less is always possible

    def small(self) -> Import:
        """Return this problem: it is short already."""
        return self

    def judge(self) -> Callable[[Any], None]:
        """Return a check of the exit status; if the import fails, the call itself has raised already."""

        def check(answer: Any) -> None:
            assert answer == 0, f"the interpreter ended with status {answer}"

        return check

    def ours(self, backend: str) -> Work:
        """Return the import of mha_core, and with `first_use` that of the backend's library."""
        if not self.first_use:
            return _running("import mha_core")
        return _running(f"import mha_core; from mha_core.dispatch.backend import load; load({backend!r})")

    def plain(self) -> Work:
        """Return ``import numpy``."""
        return _running("import numpy")


def _running(code: str) -> Work:
    command = [sys.executable, "-P", "-c", code]  # -P: import what is installed, not what is in the current folder
    # the first call, which is not timed, writes the bytecode that an installer would have written: without it the time doubles
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return Work(lambda: subprocess.run(command, check=True, env=environment), lambda done: done.returncode)
