"""How long a fresh interpreter takes to import a module and end: whole processes, nothing subtracted."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .contender import Work


@dataclass(frozen=True)
class Import:
    """``import mha_core``, whatever the backend."""

    limit = None  # of an import there is none but to load less

    def judge(self) -> Callable[[Any], None]:
        """An interpreter whose import fails has raised already."""

        def check(answer: Any) -> None:
            assert answer == 0, f"the interpreter ended with status {answer}"

        return check


def ours(problem: Import, backend: str) -> Work:
    return _importing("mha_core")


def numpy(problem: Import) -> Work:
    return _importing("numpy")


def _importing(module: str) -> Work:
    command = [sys.executable, "-P", "-c", f"import {module}"]  # -P: the module that is installed, not one of this folder
    # the first, which is not timed, leaves the bytecode that an installer would have left: without it the time doubles
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return Work(lambda: subprocess.run(command, check=True, env=environment), lambda done: done.returncode)
