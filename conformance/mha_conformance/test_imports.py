"""Importing a plugin, or listing the backends, imports no array library; the first use of a backend imports it.

Measured in new processes, since this one has imported everything.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest

from mha_core.shared import registry

from .backend import BackendUnderTest
from .probes.python_process import run_python

# prints the modules imported by the plugin, by listing the backends, and by the first use of the backend
PROGRAM = """
import importlib, json, sys
import mha_core
from mha_core.dispatch.backend import load
from mha_core.dispatch.registry import register
stages = [set(sys.modules)]
name, plugin, *modules = sys.argv[1:]
importlib.import_module(plugin)
stages.append(set(sys.modules))
for module in modules:
    register(importlib.import_module(module))
assert name in {backend.name for backend in mha_core.backends()}
stages.append(set(sys.modules))
load(name)
stages.append(set(sys.modules))
print(json.dumps([sorted(after - before) for before, after in zip(stages, stages[1:])]))
"""


def plugin_of(backend: BackendUnderTest) -> Any:
    """Return the plugin's module."""
    plugin = registry().backends[backend.name][1].module
    if not hasattr(plugin, "__file__"):
        pytest.skip("the plugin is not a module, but an object that was registered by hand")
    return plugin


@pytest.fixture(scope="module")
def imported(backend: BackendUnderTest) -> list[set[str]]:
    """Modules imported by the plugin's module, by listing the backends, and by the first use of the backend."""
    loaded = run_python("-c", PROGRAM, backend.name, plugin_of(backend).__name__, *backend.plugins)
    return [{_package(name, backend) for name in names} for names in loaded]


def library_of(backend: BackendUnderTest) -> set[str]:
    """Return the packages that the backend's arrays and functions come from."""
    array = backend.array(np.zeros(1))
    modules = {getattr(backend.xp, "__name__", ""), *(cls.__module__ for cls in type(array).__mro__)}
    names = {_package(name, backend) for name in (*modules, *_named_types(backend.name))}
    return names - set(sys.stdlib_module_names) - {"", plugin_of(backend).__name__}


def _named_types(backend: str) -> set[str]:
    return {kind.partition(":")[0] for kind in registry().backends[backend][0].types if isinstance(kind, str)}


def _package(name: str, backend: BackendUnderTest) -> str:
    """Return the top-level package of a module; the module itself if it is the plugin's, which may define an array type."""
    top = name.partition(".")[0]
    return name if top == plugin_of(backend).__name__.partition(".")[0] else top


def test_importing_the_plugin_imports_no_array_library(backend: BackendUnderTest, imported: list[set[str]]) -> None:
    """It imports neither its own library nor that of another backend, such as NumPy."""
    every = library_of(backend).union(*(_named_types(name) for name in registry().backends if name != backend.name))
    assert not imported[0] & every, f"importing the plugin imports {imported[0] & every}: import it inside namespace()"


def test_listing_the_backends_does_not_import_its_library(backend: BackendUnderTest, imported: list[set[str]]) -> None:
    assert not imported[1] & library_of(backend), f"mha.backends() imports {imported[1] & library_of(backend)}"


def test_its_library_comes_with_the_first_use(backend: BackendUnderTest, imported: list[set[str]]) -> None:
    """If this fails, the two tests above look for the wrong names."""
    own = _package(type(backend.array(np.zeros(1))).__module__, backend)
    assert own == plugin_of(backend).__name__ or any(own in names for names in imported), f"nothing imported {own}"
