"""The compiled plugin mha_native, which ``make test`` builds into build/native if there is a C++ compiler, for the tests of it.

That folder is on no path of other tests, whose calls would otherwise be computed by it.
"""

import functools
import importlib
import sys

import pytest
from judged_attention import normal as normal
from processes import STRICT, printed
from project import PATHS, ROOT

import mha_core as mha

BUILT = ROOT / "build" / "native"
needs_native = pytest.mark.skipif(not (BUILT / "ready").exists(), reason="no compiled plugin in build/native: make compiled")


@functools.cache
def plugin():
    """Return the module mha_native."""
    sys.path.insert(0, str(BUILT))
    try:
        return importlib.import_module("mha_native")
    finally:
        sys.path.remove(str(BUILT))


def _levels():
    """Return the levels that this processor has; the best one first."""
    if not BUILT.exists():
        return ["best"]
    plugin()
    from mha_native.level import native

    levels = []
    for name in ("avx512_amx", "avx512_bf16", "avx512", "avx2", "dotprod", "base"):
        try:
            levels.append(native.use_level(name))
        except ValueError:
            continue
    native.use_level(None)
    return levels


LEVELS = _levels()
"""Levels of vector instructions that this processor has, the best one first."""


def chosen(*arrays, **options):
    return str(mha.explain("attention", *arrays, **options)).splitlines()[0]


def in_process(code, **environment):
    """Run Python code in a process in which the plugin is installed; return what it prints."""
    return printed(STRICT, code, path=[BUILT, *PATHS], **environment).strip()
