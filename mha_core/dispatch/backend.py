"""Loaded backends: the namespace of an array library, and conversions to and from NumPy."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from contextvars import copy_context
from dataclasses import dataclass, replace
from functools import cached_property, partial
from numbers import Integral
from typing import Any

from ..autodiff.recorded import RecordedNamespace
from . import known
from . import registry as plugins
from .contract import Backend
from .errors import BackendUnavailable, NoDevice, UnknownDevice
from .registry import Plugin, registry


@dataclass(eq=False)
class LoadedBackend:
    """A backend whose library is imported."""

    record: Backend
    xp: Any
    plain: LoadedBackend | None = None
    """For a backend of recorded arrays: the backend of the arrays that they hold."""

    @property
    def name(self) -> str:
        return self.record.name

    def __reduce__(self) -> Any:
        return load, (self.name,)  # another process loads its own

    @cached_property
    def recording(self) -> LoadedBackend:
        """The backend of this one's arrays whose gradient is recorded: the algebra runs on them, and no kernel does."""
        space = RecordedNamespace(self.xp, self.record.version)
        changes: dict[str, Any] = dict.fromkeys(("refuses", "shields", "transforms", "parallel"))
        record = replace(self.record, features=lambda arrays: frozenset({"recorded"}), **changes)
        space.kind.backend = LoadedBackend(record, space, self)
        return space.kind.backend

    def features(self, arrays: Sequence[Any]) -> frozenset[str]:
        """Return the features that arrays, or the state of the library, require of a kernel. An array may be None."""
        features = self.record.features
        return frozenset() if features is None else features(arrays)

    def shielded(self, features: frozenset[str]) -> tuple[frozenset[str], Callable[[Callable[..., Any]], Callable[..., Any]]]:
        """Return the features that a kernel must declare, and a function that shields another one from the others."""
        shields = self.record.shields or {}

        def shield(function: Callable[..., Any]) -> Callable[..., Any]:
            for name in sorted(features.intersection(shields)):
                function = shields[name](function)
            return function

        return features.difference(shields), shield

    def placeholder(self, shape: tuple[int, ...], dtype: Any, device: Any) -> Any:
        """Return zeros of this shape that occupy the memory of one element."""
        return self.xp.broadcast_to(self.xp.zeros((), dtype=dtype, device=device), shape)

    @cached_property
    def quiet(self) -> Callable[[], AbstractContextManager[Any]]:
        """What makes a context without warnings of overflow and inf - inf, which NumPy gives; nullcontext for others."""
        errstate = getattr(self.xp, "errstate", None)
        return nullcontext if errstate is None else partial(errstate, all="ignore")

    @cached_property
    def _keeps_nan(self) -> Callable[[Any], Any]:
        """A reduction that is NaN if an element is: the sum, or the maximum where a sum may warn.

        NumPy says that its maximum keeps NaN; XLA's leaves it out of arrays of some thousand elements.
        """
        keeps: Callable[[Any], Any] = self.xp.sum if self.quiet is nullcontext else self.xp.max
        return keeps

    def has_nan(self, x: Any) -> bool:
        """Return whether an array with elements contains NaN; with a sum, also whether it contains both infinities."""
        reduced = self._keeps_nan(x)
        return bool(reduced != reduced)

    def check_device(self, device: Any) -> None:
        """Raise UnknownDevice, with what to write instead, for a device on which no array can be made; None is any device."""
        if device is None:
            return
        try:
            self.placeholder((), self.xp.float32, device)
        except Exception as error:  # libraries raise different errors for a device that does not exist
            what = f"backend {self.name!r} has no device {str(device)!r}: "
            unknown = UnknownDevice(what + (known.device_advice(device, self.name) or str(error)))
            unknown.in_command = what + (known.device_advice(device, self.name, in_command=True) or str(error))
            raise unknown from error

    def from_numpy(self, array: Any, device: Any = None) -> Any:
        """Convert a NumPy array to this backend's library, copying only if needed."""
        convert = self.record.from_numpy
        return convert(array, device) if convert else self.xp.asarray(array, device=device)

    def to_numpy(self, array: Any) -> Any:
        """Convert an array of this backend's library to NumPy."""
        import numpy

        convert = self.record.to_numpy
        return convert(array) if convert else numpy.from_dlpack(array)

    def is_floating(self, dtype: Any) -> bool:
        is_floating = self.record.is_floating
        return is_floating(dtype) if is_floating else self.xp.isdtype(dtype, "real floating")

    def parallel(self, function: Callable[[Any], Any], items: Iterable[Any]) -> Iterable[Any]:
        """Return ``map(function, items)``, computed on all cores if the library does not use them by itself."""
        parallel = self.record.parallel
        if parallel is None:
            return map(function, items)
        context = copy_context()  # a new thread has an empty context; each item gets a copy of the caller's
        return parallel(lambda item: context.copy().run(function, item), items)


_loaded: dict[str, LoadedBackend] = {}
_num_threads: int | None = None
_lock = threading.RLock()


def load(name: str, blame: str = "") -> LoadedBackend:
    """Return the backend of this name; the first call imports its library. Raises BackendUnavailable with the cause.

    ``blame`` is how the error's message begins.
    """
    with _lock:
        record, plugin = registry().backends[name]
        if name not in _loaded or _loaded[name].record is not record:
            try:
                namespace = record.namespace()
                if _num_threads is not None and record.set_num_threads is not None:
                    record.set_num_threads(_num_threads)
                if record.record_calls is not None:
                    record.record_calls(plugins.calls)
            except KeyboardInterrupt:
                raise
            except BaseException as cause:  # also one that would end the process
                raise _unavailable(record, plugin, cause, blame) from cause
            _loaded[name] = LoadedBackend(record, namespace)
        return _loaded[name]


_MOST_THREADS = 4096


def set_num_threads(n: int | None) -> None:
    """Set how many threads backends use on the host; None lets each backend choose.

    The number applies to the whole process, and to backends that are loaded later. By default the NumPy backend uses as many
    threads as the process's affinity, its control group and OMP_NUM_THREADS allow. Attention and norms on NumPy give the same
    bits for any number; layers split their work by it, so their rounding depends on it.

    Raises TypeError for anything but an int, ValueError below 1 and above 4096.

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
        if n > _MOST_THREADS:
            raise ValueError(f"n is {n}; expected at most {_MOST_THREADS} threads")
        n = int(n)
    with _lock:
        _num_threads = n
        for backend in _loaded.values():
            if backend.record.set_num_threads is not None:
                backend.record.set_num_threads(n)


def _unavailable(record: Backend, plugin: Plugin, cause: BaseException, blame: str) -> BackendUnavailable:
    owner = f" (from {plugin.distribution} {plugin.version})" if plugin.distribution else ""
    install = "" if isinstance(cause, NoDevice) else record.install
    remedy = f"; install it with: {install}" if install else ""
    reason = f"{type(cause).__name__}: {cause}"
    error = BackendUnavailable(f"{blame}backend {record.name!r}{owner} cannot be used: {reason}{remedy}")
    error.install = install
    return error
