"""The compiled plugin mha-native as a contender beside the backend without it: ``numpy+native``, ``torch+native-avx2``.

It and the plugin for JAX are those that are installed, or that make has built in this checkout.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mha_conformance.bench.plugins import leave_out
from mha_conformance.bench.timing import Work

LEVELS = {"native": "", "native-avx2": "avx2"}
"""Words that may follow a backend's name and "+", and the level of vector instructions that each is held down to."""
BUILT = Path(__file__).parents[2] / "build" / "native"
BACKENDS = BUILT.with_name("backends")


def work(ours: Callable[[Any, str], Work], problem: Any, name: str) -> Work:
    """Return the work of a contender, in a process of its own: with the plugin if its name says so, otherwise without it."""
    backend, _, level = name.partition("+")
    if level:
        os.environ["MHA_NATIVE_LEVEL"] = LEVELS[level]
        _register()
    else:
        leave_out("mha-native")
    _find(backend)
    return ours(problem, backend)


def _register() -> None:
    from mha_core.dispatch.registry import register, registry

    if not _is_installed() and BUILT.is_dir():
        sys.path.insert(0, str(BUILT))
        importlib.invalidate_caches()
    if not _is_installed():
        raise ModuleNotFoundError("mha-native is not installed: run make compiled", name="mha_native")
    module = importlib.import_module("mha_native")
    if not any(plugin.module is module for plugin in registry().plugins):
        register(module)


def _find(backend: str) -> None:
    """Register the backend's plugin from the folder in which make installs some, unless it is installed elsewhere."""
    import mha_core as mha
    from mha_core.dispatch.registry import register

    if all(row.name != backend for row in mha.backends()) and (BACKENDS / f"mha_{backend}").is_dir():
        sys.path.append(str(BACKENDS))
        register(importlib.import_module(f"mha_{backend}"))


def _is_installed() -> bool:
    spec = importlib.util.find_spec("mha_native")
    return spec is not None and spec.origin is not None  # a checkout's folder backends/mha_native looks like a package
