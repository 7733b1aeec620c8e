"""Plugins with one fault each. The conformance suite must find every fault, in a given section and by a given promise.

    MHA_WRONG=scores.scale_off mha conform numpy --plugin wrong_plugins

judges one of them, if run in tests/support. table.py and by_name.py list them, tests/conformance/test_catches.py runs them, and
docs/wrong-plugins.md shows those of table.py. Like any plugin, this module must not import an array library.
"""

import os
from importlib import import_module

from mha_core.plugin import Backend, Kernel, hookimpl

from .by_name import BY_NAME
from .table import RIGHT, TABLE

PLUGINS = {plugin.id: plugin for plugin in (*TABLE, *RIGHT, *BY_NAME)}
OF_BACKENDS = ("backends", "imports")


def chosen():
    """Return the plugin that MHA_WRONG names."""
    return PLUGINS[os.environ["MHA_WRONG"]]


def _later(kind):
    """Return a function that imports backends.py, and NumPy with it, when it is called."""

    def call(*arguments):
        return import_module(f"{__name__}.backends").function(kind, chosen().name)(*arguments)

    return call


@hookimpl
def mha_kernels():
    plugin = chosen()
    if plugin.module not in OF_BACKENDS:
        fields = {"load": f"{__name__}.{plugin.module}:{plugin.name}", **plugin.kernel}
        yield Kernel(plugin.backend, plugin.op, plugin.name, 1, handles=plugin.handles, **fields)


@hookimpl
def mha_backends():
    plugin = chosen()
    if plugin.module in OF_BACKENDS:
        kinds = ("namespace", "from_numpy", "to_numpy", "is_floating", "parallel", "write")
        yield Backend(plugin.backend, 1, (f"{__name__}.backends:Array",), **{kind: _later(kind) for kind in kinds})
