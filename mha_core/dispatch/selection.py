"""The choice of the backend that a call runs on.

A call with arrays runs on the backend of their type: all must agree, also with the innermost ``use_backend``. ``default.py``
chooses the backend of a call without arrays.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from ..algebra.int8 import Int8Weight
from ..autodiff.recorded import Recorded, plain_value
from . import known as known_backends
from . import registry as plugins
from .advice import cast, converted, odd_one
from .backend import LoadedBackend, load
from .context import demanding, demands
from .contract import FEATURES, STATE_FEATURES, Kernel
from .errors import BackendMismatch, UnknownBackend, did_you_mean
from .registry import registry


@dataclass(frozen=True)
class BackendInfo:
    """A row of ``mha.backends()``."""

    name: str
    distribution: str
    version: str
    state: str
    """``"registered"``; ``"broken"`` for a plugin that cannot be used; or ``"idle"``.

    A plugin is idle if it provides nothing, or a kernel that is never used: one for a backend that is not installed, for an
    unknown operation, or with an unknown feature.
    """
    reason: str = ""
    """Why it is broken or idle."""
    kernels: tuple[str, ...] = ()
    """``"operation: name"`` of each kernel, whichever plugin provides it."""
    traceback: str = field(default="", repr=False)


def backends() -> list[BackendInfo]:
    """List every registered backend, ready or not, and every broken plugin; imports plugin modules but no array library.

    >>> import mha_core as mha
    >>> [backend.state for backend in mha.backends() if backend.name == "numpy"]
    ['registered']
    """
    installed = registry()
    rows = []
    for plugin in installed.plugins:
        owner = (plugin.distribution, plugin.version)
        if plugin.error is not None:
            reason = f"{type(plugin.error).__name__}: {plugin.error}"
            rows.append(BackendInfo(plugin.name, *owner, "broken", reason, traceback=plugin.traceback))
        elif not plugin.backends and not plugin.kernels and not plugin.collectives:
            rows.append(BackendInfo(plugin.name, *owner, "idle", "its hooks yield neither a backend, a kernel nor an engine"))
        for name in sorted({kernel.backend for kernel in plugin.kernels} - set(installed.backends)):
            reason = f"it extends backend {name!r}, which no installed plugin provides"
            rows.append(BackendInfo(plugin.name, *owner, "idle", reason))
        for kernel in plugin.kernels:
            rows += [BackendInfo(plugin.name, *owner, "idle", reason) for reason in _unknown_names(kernel)]
        rows += [BackendInfo(backend.name, *owner, "registered", kernels=_kernels(backend.name)) for backend in plugin.backends]
    return rows


def _unknown_names(kernel: Kernel) -> Iterator[str]:
    """Yield a message for each operation or feature that a kernel declares and core does not know."""
    if kernel.op not in FEATURES:
        yield f"kernel {kernel.name!r} is for {kernel.op!r}; expected one of {', '.join(FEATURES)}"
        return
    known = FEATURES[kernel.op] | STATE_FEATURES
    backend = registry().backends.get(kernel.backend)
    library_adds_features = backend is not None and backend[0].features is not None
    for feature in sorted(frozenset(kernel.handles) - known):
        hint = did_you_mean(feature, sorted(known))
        names_a_class = kernel.op == "encoder_layer" and "." in feature.partition("=")[2]  # a user's own layer
        if not names_a_class and (hint or not library_adds_features):
            yield f"kernel {kernel.name!r} handles {feature!r}, but {kernel.op} has no such feature{hint}"


def _kernels(backend: str) -> tuple[str, ...]:
    every = registry().kernels.items()
    return tuple(sorted(f"{op}: {kernel.name}" for (name, op), kernels in every if name == backend for kernel in kernels))


def check_name(name: str, blame: str = "") -> str:
    """Return the name of a registered backend. Raises UnknownBackend, with the closest match and what is installed.

    ``blame`` is how the error's message begins.
    """
    if not isinstance(name, str):
        raise UnknownBackend(blame + known_backends.not_a_name(name))
    if name in registry().backends:
        return name
    others = known_backends.backends()
    broken = {plugin.name: plugin for plugin in registry().plugins if plugin.error is not None}
    if name in broken:
        message = f"no backend is named {name!r}"
    elif name in others:
        message = known_backends.how_to_install(name)
    elif advice := known_backends.device_advice(name):
        message = f"no backend is named {name!r}, which is a device: {advice}"
    elif name in known_backends.DTYPES:
        message = f"no backend is named {name!r}, which is a dtype: write dtype={name!r} after the name of a backend"
    else:
        hint = did_you_mean(name, [*registry().backends, *others]) or ";"
        message = f"no backend is named {name!r}{hint} {known_backends.listing()}"
    if plugin := broken.get(name) or next(iter(broken.values()), None):
        message += f"; {'its plugin' if plugin.name == name else 'the plugin'} {plugin.owner} is broken: {plugin.error}"
    raise UnknownBackend(blame + message)


@contextmanager
def use_backend(name: str) -> Iterator[None]:
    """Demand a backend for all calls in this context; arrays of another library then raise BackendMismatch.

    Raises UnknownBackend, or BackendUnavailable with the cause.

    >>> import mha_core as mha
    >>> with mha.use_backend("numpy"):
    ...     type(mha.sinusoidal_positions(4, 8)).__name__
    'ndarray'
    """
    load(check_name(name))
    with demanding(backend=name):
        yield


def backend_of(arrays: Mapping[str, Any]) -> LoadedBackend:
    """Return the backend that all named arrays belong to. Raises TypeError or BackendMismatch, naming the argument."""
    common: LoadedBackend | None = None
    for name, x in arrays.items():
        backend = find_backend(x)
        if backend is None:
            raise _unknown_type(name, x)
        reason = None if backend.record.refuses is None else backend.record.refuses(x)
        if reason is not None:
            raise TypeError(f"{name} {reason}")
        if common is not None and backend is not common:
            if (backend.plain or backend) is not (common.plain or common):
                raise _mismatch(arrays)
            backend = backend if common.plain is None else common  # an array that is recorded beside one that is not
        common = backend
    assert common is not None
    demand = demands.get().backend
    if demand is not None and demand != common.name:
        first = next(iter(arrays))
        raise BackendMismatch(
            f"use_backend({demand!r}) is in force, but {first} is a {type_name(arrays[first])} of backend {common.name!r}: "
            f"write {converted(load(demand), first, arrays[first])}, or leave use_backend out"
        )
    return common


def _mismatch(arrays: Mapping[str, Any]) -> BackendMismatch:
    """Return the error for arrays of several libraries."""
    owners = {name: owner for name, x in arrays.items() if (owner := find_backend(x)) is not None}
    odd, like = odd_one({name: owner.name for name, owner in owners.items()})
    of_layer = f", or move the layer: layer = layer.to({owners[odd].name!r})" if odd == "x" and len(owners) > 2 else ""
    return BackendMismatch(
        f"{odd} is a {type_name(arrays[odd])}, but {like} is a {type_name(arrays[like])}: "
        f"write {converted(owners[like], odd, arrays[odd])}{of_layer}"
    )


def check_floating(*, optional: Mapping[str, Any] | None = None, **named: Any) -> LoadedBackend:
    """Return the backend of arrays that are floating, of one library, device and dtype; an optional one may be None.

    Of an int8 weight that is the scale; its values have the same library and device.
    """
    operands = named | {name: x for name, x in (optional or {}).items() if x is not None}
    weights = {name: w for name, w in operands.items() if isinstance(w, Int8Weight)}
    arrays = {
        f"{name}.scale" if name in weights else name: weights[name].scale if name in weights else x
        for name, x in operands.items()
    }
    backend = backend_of(arrays)
    names = iter(arrays)
    first = next(names)
    like = arrays[first]
    if not backend.is_floating(like.dtype):
        wanted = cast(backend, first, like, backend.xp.float32)
        raise TypeError(f"{first} has dtype {like.dtype}; expected a floating dtype: write {wanted}")
    if backend.record.current_device is not None:
        _check_current_device(backend.name, first, like, backend.record.current_device())
    for name in names:
        x = arrays[name]
        if x.dtype != like.dtype:
            odd, right = odd_one({each: y.dtype for each, y in arrays.items()})
            wanted = cast(backend, odd, arrays[odd], arrays[right].dtype)
            raise TypeError(f"{odd} has dtype {arrays[odd].dtype}, but {right} has {arrays[right].dtype}: write {wanted}")
        _compare_devices(name, x, first, like)
    for name, w in weights.items():
        check_same_device(like, [(f"{name}.values", w.values)], first=first)
        if w.values.dtype != backend.xp.int8:
            raise TypeError(f"{name}.values has dtype {w.values.dtype}; expected int8: write quantize_weight({name})")
    return backend


def _compare_devices(name: str, x: Any, first: str, like: Any) -> None:
    """Raise BackendMismatch if two arrays are on different devices."""
    here, there = _device(x), _device(like)
    if here != there and here is not None and there is not None:
        raise BackendMismatch(
            f"{name} is on device {here}, but {first} is on {there}: move it there first, since nothing is copied silently"
        )


def _check_current_device(backend: str, name: str, x: Any, current: Any) -> None:
    """Raise BackendMismatch if an array is not on the device that its library computes on."""
    here = _device(x)
    if here != current and here is not None:
        raise BackendMismatch(
            f"{name} is on device {here}, but {backend} computes on its current device, {current}: "
            f"make the device of {name} the current one first"
        )


def check_same_device(like: Any, named: Iterable[tuple[str, Any]], *, first: str = "query") -> None:
    """Check that the arrays inside masks, biases and options have the library and the device of ``like``, the query."""
    for name, x in named:
        backend_of({first: like, name: x})
        _compare_devices(name, x, first, like)


def _device(x: Any) -> Any:
    """Return the device of an array; None for one without, such as a tracer, which stands for arrays on any device."""
    return getattr(x, "device", None)


def find_backend(x: Any) -> LoadedBackend | None:
    """Return the backend that an array belongs to; None for anything else. The first call for a type loads the library."""
    loaded: LoadedBackend | None = plugins.by_type.get(type(x))
    return loaded if loaded is not None else find_backend_of_type(type(x), x)


def find_backend_of_type(kind: type, x: Any = None) -> LoadedBackend | None:
    """Return the backend that arrays of a type belong to; without such an array ``x``, only backends that name their types."""
    if issubclass(kind, Recorded):
        recorded: LoadedBackend = kind.backend
        return recorded
    by_type = plugins.by_type  # before looking: what a change makes stale then goes into a dictionary that nobody reads
    known = [backend for backend, _ in registry().backends.values()]
    named = (backend for cls in kind.__mro__ for backend in known if _qualified(cls) in backend.types)  # nearest class first
    asked = (backend for backend in known if any(callable(belongs) and belongs(x) for belongs in backend.types))
    owner = next(chain(named, asked), None)
    if owner is None:
        return None
    by_type[kind] = loaded = load(owner.name)
    plugins.known_modules.add(kind.__module__)
    return loaded


def loads_backend(x: Any) -> bool:
    """Return whether an array belongs to a backend, loading it; ``find_backend_of_type`` for compilers that follow Python code.

    They run the ``__getattr__`` of a module as it is, which they could not follow.
    """
    cls = type(x)
    known: bool = getattr(sys.modules[__name__], _qualified(cls).replace(".", "/"))
    if known:
        plugins.known_modules.add(cls.__module__)  # it is known already, but not to a compiler that follows this line
    return known


def __getattr__(name: str) -> bool:
    module, colon, kind = name.replace("/", ".").partition(":")
    if not colon:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    cls = getattr(sys.modules.get(module), kind, None)
    return isinstance(cls, type) and find_backend_of_type(cls) is not None


def _unknown_type(name: str, x: Any) -> TypeError:
    kind = type_name(x)
    for library in known_backends.backends():
        if kind.startswith(library) and library not in registry().backends:
            return TypeError(f"{name} is {kind}; {known_backends.how_to_install(library)}")
    installed = ", ".join(known_backends.installed())
    return TypeError(
        f"{name} is {kind}; expected an array of an installed backend ({installed}), such as numpy.asarray({name})"
    )


def _qualified(cls: type) -> str:
    return f"{cls.__module__}:{cls.__qualname__}"


def type_name(x: Any) -> str:
    """Return the type of a value as messages name it; that of a recorded array is its library's."""
    cls = type(plain_value(x))
    return cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"


def in_host_memory(x: Any) -> bool:
    """Return whether an array is in host memory, by DLPack; False for one without memory, as on torch's meta device."""
    ask = getattr(x, "__dlpack_device__", None)
    try:
        return ask is not None and int(ask()[0]) == 1  # kDLCPU
    except (BufferError, ValueError):
        return False
