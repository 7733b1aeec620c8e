"""How long a fresh interpreter takes to import a module and end: whole processes, nothing subtracted."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .work import Work


@dataclass(frozen=True)
class Import:
    """``import mha_core``. first_use: and the library of the backend, as the first call on it would."""

    first_use: bool = False
    limit = None  # of an import there is none but to load less

    def small(self) -> Import:
        return self

    def judge(self) -> Callable[[Any], None]:
        """An interpreter whose import fails has raised already."""

        def check(answer: Any) -> None:
            assert answer == 0, f"the interpreter ended with status {answer}"

        return check

    def ours(self, backend: str) -> Work:
        if not self.first_use:
            return _running("import mha_core")
        return _running(f"import mha_core; from mha_core.dispatch.backend import load; load({backend!r})")

    def plain(self) -> Work:
        return _running("import numpy")


def _running(code: str) -> Work:
    command = [sys.executable, "-P", "-c", code]  # -P: the module that is installed, not one of this folder
    # the first, which is not timed, leaves the bytecode that an installer would have left: without it the time doubles
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return Work(lambda: subprocess.run(command, check=True, env=environment), lambda done: done.returncode)
