"""A backend, ours or anyone's, as a contender uses it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .contender import Work

if TYPE_CHECKING:
    from mha_core.dispatch.backend import LoadedBackend


def loaded(name: str) -> LoadedBackend:
    """Raises UnknownBackend and BackendUnavailable."""
    from mha_core.dispatch.backend import load
    from mha_core.dispatch.selection import check_name

    return load(check_name(name))


def work(backend: LoadedBackend, call: Callable[[], Any]) -> Work:
    """A call that gives an array of this backend."""
    return Work(call, backend.to_numpy, backend.record.synchronize)
