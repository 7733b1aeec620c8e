"""A backend of ours or of anyone's, as a contender uses it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .contender import Work


@dataclass(frozen=True)
class Loaded:
    """What a contender asks of a backend."""

    from_numpy: Callable[[Any], Any]
    to_numpy: Callable[[Any], Any]
    synchronize: Callable[[], None] | None

    def work(self, call: Callable[[], Any]) -> Work:
        wait = {} if self.synchronize is None else {"wait": self.synchronize}
        return Work(call, self.to_numpy, **wait)


def loaded(name: str) -> Loaded:
    """Raises UnknownBackend and BackendUnavailable."""
    from mha_core.dispatch.backend import load
    from mha_core.dispatch.selection import check_name

    backend = load(check_name(name))
    return Loaded(backend.from_numpy, backend.to_numpy, backend.record.synchronize)
