"""A backend in use: its namespace and its converters."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from contextvars import copy_context
from dataclasses import dataclass
from numbers import Integral
from typing import Any

from .contract import Backend
from .errors import BackendUnavailable, NoDevice
from .registry import Plugin, registry


@dataclass(eq=False)
class LoadedBackend:
    """One backend whose library is imported. The hot path needs no more than this object."""

    record: Backend
    xp: Any
    features: Callable[[Sequence[Any]], frozenset[str]] | None = None

    @property
    def name(self) -> str:
        return self.record.name

    def from_numpy(self, array: Any, device: Any = None) -> Any:
        """A NumPy array in this backend's library, copied only if it must be."""
        convert = self.record.from_numpy
        return convert(array, device) if convert else self.xp.asarray(array, device=device)

    def to_numpy(self, array: Any) -> Any:
        """The reverse."""
        import numpy

        convert = self.record.to_numpy
        return convert(array) if convert else numpy.from_dlpack(array)

    def is_floating(self, dtype: Any) -> bool:
        ask = self.record.is_floating
        return ask(dtype) if ask else self.xp.isdtype(dtype, "real floating")

    def parallel(self, function: Callable[[Any], Any], items: Iterable[Any]) -> Iterable[Any]:
        """``map(function, items)``, on all cores where the library does not use them by itself."""
        ask = self.record.parallel
        if ask is None:
            return map(function, items)
        context = copy_context()  # a new thread starts with none: each part gets a copy of the caller's
        return ask(lambda item: context.copy().run(function, item), items)


_loaded: dict[str, LoadedBackend] = {}
_num_threads: int | None = None
_lock = threading.RLock()


def load(name: str) -> LoadedBackend:
    """The backend of this name, its library imported on the first call. Raises BackendUnavailable with the cause."""
    with _lock:
        record, plugin = registry().backends[name]
        if name not in _loaded or _loaded[name].record is not record:
            try:
                namespace = record.namespace()
                if _num_threads is not None and record.set_num_threads is not None:
                    record.set_num_threads(_num_threads)
            except Exception as cause:
                raise _unavailable(record, plugin, cause) from cause
            _loaded[name] = LoadedBackend(record, namespace, record.features)
        return _loaded[name]


def set_num_threads(n: int | None) -> None:
    """How many threads compute on the host, in every backend that can be told; None: as many as each takes by itself.

    For the whole process; backends that are loaded later are told too. On its own, NumPy's backend takes as many as there are
    cores in the process's affinity and its control group's limit. Attention and norms on NumPy give the same bits whatever
    the number; layers there are cut by it, and so is their rounding.

    Raises TypeError for anything but an int, ValueError below 1.

    >>> import mha_core as mha
    >>> mha.set_num_threads(1)
    >>> mha.set_num_threads(None)
    """
    global _num_threads
    if n is not None:
        if isinstance(n, bool) or not isinstance(n, Integral):
            raise TypeError(f"n is {type(n).__name__}; expected an int, the number of threads, or None")
        if n < 1:
            raise ValueError(f"n is {n}; expected at least 1 thread, or None")
        n = int(n)
    with _lock:
        _num_threads = n
        for backend in _loaded.values():
            if backend.record.set_num_threads is not None:
                backend.record.set_num_threads(n)


def _unavailable(record: Backend, plugin: Plugin, cause: Exception) -> BackendUnavailable:
    owner = f" (from {plugin.distribution} {plugin.version})" if plugin.distribution else ""
    install = "" if isinstance(cause, NoDevice) else record.install
    remedy = f"; install it with: {install}" if install else ""
    error = BackendUnavailable(f"backend {record.name!r}{owner} cannot be used: {type(cause).__name__}: {cause}{remedy}")
    error.install = install
    return error
