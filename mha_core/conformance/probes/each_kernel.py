"""The command of probes that measure every kernel of one operation, and the algebra, in a new process."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable
from importlib import import_module
from typing import Any

from ...dispatch.context import ALGEBRA
from ...dispatch.registry import register, registry
from ..backend import BackendUnderTest
from ..find import find

Measured = Callable[[BackendUnderTest, str, str, str], dict[str, Any] | None]
"""Function of the backend, the dtype, the name of a kernel and that of a case; returns what was found."""


def report(op: str, cases: Iterable[str], measured: Measured, *, prog: str, about: str, arguments: list[str] | None) -> None:
    """Print as JSON what ``measured`` returns for each kernel of the operation and each case."""
    parser = argparse.ArgumentParser(prog=prog, description=about.partition("\n")[0])
    parser.add_argument("backend")
    parser.add_argument("dtype")
    parser.add_argument("device", nargs="?")
    parser.add_argument("--case", choices=list(cases), action="append")
    parser.add_argument("--plugin", action="append", default=[])
    given = parser.parse_args(arguments)
    for name in given.plugin:
        register(import_module(name))
    backend = find(given.backend, given.device, [given.dtype])
    kernels = [kernel.name for kernel in registry().kernels.get((backend.name, op), ())]
    found = {
        kernel: {case: measured(backend, given.dtype, kernel, case) for case in given.case or cases}
        for kernel in (*kernels, ALGEBRA)
    }
    print(json.dumps(found))
