"""Kernels of other distributions than a backend's own: a process can compute without them, to show what they bring."""

from __future__ import annotations

from typing import Any

from .timing import Work


def distributions(backend: str, op: str) -> list[str]:
    """Return the installed distributions, besides the backend's own, with kernels for an operation on this backend."""
    from mha_core.shared import registry

    installed = registry()
    own, kernels = installed.backends[backend][1].source, installed.kernels.get((backend, op), ())
    sources = {plugin.source for plugin in installed.plugins if any(kernel in kernels for kernel in plugin.kernels)}
    return sorted(sources - {own})


def leave_out(distribution: str) -> None:
    """Remove the plugins of a distribution from this process, if it has any."""
    from mha_core.plugin import unregister
    from mha_core.shared import registry

    for plugin in registry().plugins:
        if plugin.source == distribution and plugin.error is None:
            unregister(plugin.module)


def without(problem: Any, backend: str, distribution: str) -> Work:
    """Return the work of a problem on a backend, in a process of its own, without a distribution; "" leaves out nothing."""
    leave_out(distribution)
    work: Work = problem.ours(backend)
    return work
