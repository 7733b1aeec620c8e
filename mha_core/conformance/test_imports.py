"""Importing a plugin imports no array library: that happens when the backend is first used, and never for a list of backends.

In fresh interpreters, since this one has imported everything.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest

from ..dispatch.registry import registry
from . import fresh
from .subject import Subject

# what is imported by the plugin, by listing the backends, and by the backend's first use
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


def plugin_of(subject: Subject) -> Any:
    plugin = registry().backends[subject.name][1].module
    if not hasattr(plugin, "__file__"):
        pytest.skip("the plugin is no module, but an object that was registered by hand")
    return plugin


@pytest.fixture(scope="module")
def imported(subject: Subject) -> list[set[str]]:
    """The modules that came with the plugin's module, with the list of backends, and with the backend's first use."""
    found = fresh.run("-c", PROGRAM, subject.name, plugin_of(subject).__name__, *subject.plugins)
    return [{_package(name, subject) for name in names} for names in found]


def library_of(subject: Subject) -> set[str]:
    """The packages that the backend's arrays and functions come from."""
    array = subject.array(np.zeros(1))
    modules = {getattr(subject.xp, "__name__", ""), *(cls.__module__ for cls in type(array).__mro__)}
    names = {_package(name, subject) for name in (*modules, *_named_types(subject.name))}
    return names - set(sys.stdlib_module_names) - {"", plugin_of(subject).__name__}


def _named_types(backend: str) -> set[str]:
    return {kind.partition(":")[0] for kind in registry().backends[backend][0].types if isinstance(kind, str)}


def _package(name: str, subject: Subject) -> str:
    """At the top; the module itself where it is the plugin's own, for an array type may be the work of its author."""
    top = name.partition(".")[0]
    return name if top == plugin_of(subject).__name__.partition(".")[0] else top


def test_importing_the_plugin_imports_no_array_library(subject: Subject, imported: list[set[str]]) -> None:
    """Nor that of another backend, such as NumPy."""
    every = library_of(subject).union(*(_named_types(name) for name in registry().backends if name != subject.name))
    assert not imported[0] & every, f"importing the plugin imports {imported[0] & every}: import it inside namespace()"


def test_listing_the_backends_does_not_import_its_library(subject: Subject, imported: list[set[str]]) -> None:
    assert not imported[1] & library_of(subject), f"mha.backends() imports {imported[1] & library_of(subject)}"


def test_its_library_comes_with_the_first_use(subject: Subject, imported: list[set[str]]) -> None:
    """Else the two tests above looked for the wrong names."""
    own = _package(type(subject.array(np.zeros(1))).__module__, subject)
    assert own == plugin_of(subject).__name__ or any(own in names for names in imported), f"nothing imported {own}"
