"""Plugins with one fault each, and which section of the conformance suite must find it, by which promise.

    MHA_WRONG=scores.scale_off mha conform numpy --plugin wrong_plugins

in the folder tests/ judges one of them. All of them stand in table.py; tests/test_conformance_catches.py holds the suite to it,
and docs/conformance.md shows it.
"""

import os

from mha_core.plugin import Backend, Kernel, hookimpl

from .table import RIGHT, TABLE

PLUGINS = {plugin.id: plugin for plugin in (*TABLE, *RIGHT)}


def chosen():
    """The plugin that MHA_WRONG names."""
    return PLUGINS[os.environ["MHA_WRONG"]]


@hookimpl
def mha_kernels():
    plugin = chosen()
    if plugin.module != "backends":
        load = f"{__name__}.{plugin.module}:{plugin.name}"
        yield Kernel(plugin.backend, plugin.op, plugin.name, 1, load, priority=9, handles=plugin.handles)


@hookimpl
def mha_backends():
    plugin = chosen()
    if plugin.module == "backends":
        from .backends import FROM_NUMPY, NAMESPACES, Namespace, from_numpy, to_numpy

        yield Backend(
            name=plugin.backend,
            api=1,
            types=(f"{__name__}.backends:Array",),
            namespace=NAMESPACES.get(plugin.name, Namespace),
            from_numpy=FROM_NUMPY.get(plugin.name, from_numpy),
            to_numpy=to_numpy,
        )
