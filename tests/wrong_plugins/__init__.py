"""Plugins with one fault each, and which section of the conformance suite must find it, by which promise.

    MHA_WRONG=scores.scale_off mha conform numpy --plugin wrong_plugins

in the folder tests/ judges one of them. All of them stand in table.py; tests/test_conformance_catches.py holds the suite to it,
and docs/conformance.md shows it. This module imports no array library, as a plugin must not.
"""

import os
from importlib import import_module

from mha_core.plugin import Backend, Kernel, hookimpl

from .table import RIGHT, TABLE

PLUGINS = {plugin.id: plugin for plugin in (*TABLE, *RIGHT)}
OF_BACKENDS = ("backends", "imports")


def chosen():
    """The plugin that MHA_WRONG names."""
    return PLUGINS[os.environ["MHA_WRONG"]]


def _later(kind):
    """A function of backends.py, which imports NumPy: the plugin's own where it has one of this kind."""

    def call(*arguments):
        return import_module(f"{__name__}.backends").function(kind, chosen().name)(*arguments)

    return call


@hookimpl
def mha_kernels():
    plugin = chosen()
    if plugin.module not in OF_BACKENDS:
        load = f"{__name__}.{plugin.module}:{plugin.name}"
        yield Kernel(plugin.backend, plugin.op, plugin.name, 1, load, priority=9, handles=plugin.handles)


@hookimpl
def mha_backends():
    plugin = chosen()
    if plugin.module in OF_BACKENDS:
        kinds = ("namespace", "from_numpy", "to_numpy", "is_floating")
        yield Backend(plugin.backend, 1, (f"{__name__}.backends:Array",), **{kind: _later(kind) for kind in kinds})
