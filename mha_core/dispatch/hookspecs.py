"""The hooks of plugins.

pluggy registers plugins and calls each hook once; no computation passes through it.
"""

from __future__ import annotations

from collections.abc import Iterable

import pluggy

from .contract import Backend, Collectives, Kernel

PROJECT = "mha_core"
hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


@hookspec
def mha_backends() -> Iterable[Backend]:
    """Yield the backends that this plugin provides. Must not import an array library."""
    raise NotImplementedError


@hookspec
def mha_kernels() -> Iterable[Kernel]:
    """Yield the kernels that this plugin provides, for its own backends or for others'."""
    raise NotImplementedError


@hookspec
def mha_collectives() -> Iterable[Collectives]:
    """Yield the engines that this plugin provides. Must not import the library that they use."""
    raise NotImplementedError
