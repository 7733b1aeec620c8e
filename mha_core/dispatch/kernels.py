"""The choice of a kernel for a call, with the reasons against the others."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from . import registry as plugins
from .context import ALGEBRA, Demands, demanding, demands
from .contract import OPERATIONS, Backend, Call, Kernel
from .errors import KernelUnsupported, KernelWarning, UnknownKernel, did_you_mean
from .known import absent_kernels
from .registry import registry


@dataclass(frozen=True)
class Decision:
    """The kernel that was chosen for a call, None for the algebra, and the reasons against the others."""

    kernel: Kernel | None
    rejected: tuple[tuple[Kernel, str], ...] = ()
    run: Callable[..., Any] | None = None
    prepared: Callable[..., Any] | None = None
    """``Kernel.prepare``, loaded."""


def describe(op: str, arrays: Mapping[str, Any], *, features: frozenset[str], options: Mapping[str, Any]) -> Call:
    """Return the record by which kernels are chosen; None among the given arrays stands for no array."""
    first = next(iter(arrays.values()))
    shapes = tuple((name, tuple(x.shape)) for name, x in arrays.items() if x is not None)
    device = getattr(first, "device", None)  # a tracer has none
    if type(device).__hash__ is None:  # a ``Call`` has a hash, so it names such a device
        device = str(device)
    return Call(op, shapes, first.dtype, device, features, tuple(options.items()))


def decide(backend: str, call: Call, demand: Demands | None = None, *, composite: bool = False) -> Decision:
    """Choose the first kernel, by priority, that declares every feature of the call and supports it.

    ``composite``: the operation is made of smaller ones, which its kernel would compute itself. Raises KernelUnsupported if
    ``use_kernel`` names a kernel that cannot compute the call.
    """
    demand = demands.get() if demand is None else demand
    wanted = ALGEBRA if demand.algebra_only else dict(demand.kernels).get(call.op)  # by the innermost ``use_kernel``
    rejected: list[tuple[Kernel, str]] = []
    for kernel in registry().kernels.get((backend, call.op), ()):
        reason = _passed_over(kernel, demand, wanted, composite) or _unfit(kernel, call)
        if reason is None:
            try:
                return Decision(kernel, tuple(rejected), *_load(kernel))
            except BaseException as error:  # a broken module does not stop the others, but the user is warned
                reason = _broken(kernel, "cannot be loaded", error)
        rejected.append((kernel, reason))
    if wanted not in (None, ALGEBRA):
        raise _unsupported(backend, call, str(wanted), rejected)
    return Decision(None, tuple(rejected))


def _passed_over(kernel: Kernel, demand: Demands, wanted: str | None, composite: bool) -> str | None:
    """Return why a kernel is not considered; None if it is."""
    if wanted is not None:
        return None if kernel.name == wanted else f"use_kernel asks for {wanted!r}"
    if opt_in := opt_in_of(kernel):
        reason = f": {opt_in}" if isinstance(opt_in, str) else ""
        return f"is chosen only by use_kernel({kernel.op!r}, {kernel.name!r}){reason}"
    if composite and demand.kernels:
        return f"use_kernel is in force for {demand.kernels[-1][0]!r}, which it may compute itself"
    return None


def opt_in_of(kernel: Kernel) -> bool | str:
    """Return whether, or why, only ``use_kernel`` chooses a kernel."""
    if not callable(kernel.opt_in):
        return kernel.opt_in
    try:
        return kernel.opt_in()
    except BaseException as error:
        return _broken(kernel, "cannot say whether it may be chosen", error)


def _unfit(kernel: Kernel, call: Call) -> str | None:
    missing = sorted(call.features - kernel.handles)
    if missing:
        return f"does not handle {', '.join(missing)}"
    if kernel.supports is None:
        return None
    try:
        reason = imported(kernel.supports)(call)
        if reason is None or (isinstance(reason, str) and reason):
            return reason
        raise TypeError(f"supports returned {reason!r}; expected None, or the reason why it cannot compute the call")
    except BaseException as error:
        return _broken(kernel, "cannot say whether it supports the call", error)


def _broken(kernel: Kernel, what: str, error: BaseException) -> str:
    """Warn of a kernel that raised any error, also one that would end the process, and return the reason."""
    if isinstance(error, KeyboardInterrupt):  # it is the user's
        raise error
    reason = f"{what}: {type(error).__name__}: {error}"
    owner = registry().owner(kernel)
    warnings.warn(f"kernel {kernel.name!r} for {kernel.op} on {kernel.backend} ({owner}) {reason}", KernelWarning, stacklevel=2)
    return reason


def _load(kernel: Kernel) -> tuple[Callable[..., Any], Callable[..., Any] | None]:
    return imported(kernel.load), None if kernel.prepare is None else imported(kernel.prepare)


def imported(function: str | Callable[..., Any]) -> Callable[..., Any]:
    """Return the function that ``"module:function"`` names, or a function unchanged."""
    return _import(function, plugins.generation) if isinstance(function, str) else function


@lru_cache  # a call that is planned each time makes three lookups, which took 1.5 of its 4 us
def _import(name: str, generation: int) -> Callable[..., Any]:
    module, _, function = name.partition(":")
    attribute: Callable[..., Any] = getattr(importlib.import_module(module), function)
    return attribute


def _unsupported(backend: str, call: Call, wanted: str, rejected: Iterable[tuple[Kernel, str]]) -> KernelUnsupported:
    for kernel, reason in rejected:
        if kernel.name == wanted:
            return KernelUnsupported(
                f"use_kernel asks for {wanted!r} for {call.op} on {backend}, which cannot compute this call: it {reason}; "
                f"leave use_kernel out, or write use_kernel({call.op!r}, {ALGEBRA!r})"
            )
    owners = sorted({kernel.backend for kernel in kernels_of(call.op) if kernel.name == wanted})
    return KernelUnsupported(
        f"use_kernel asks for {wanted!r} for {call.op}, a kernel of {', '.join(owners)}, but the arrays are {backend}'s"
    )


def kernels_of(op: str) -> Iterator[Kernel]:
    """Yield every registered kernel of an operation, on any backend."""
    for (_, name), kernels in registry().kernels.items():
        if name == op:
            yield from kernels


def missing_kernels(backend: Backend, op: str) -> Iterator[tuple[str, str]]:
    """Yield the name of each kernel of an operation that is not installed, and how to install it."""
    present = {kernel.name for kernel in registry().kernels.get((backend.name, op), ())}
    for name, command in (absent_kernels(backend.name, op) | dict((backend.elsewhere or {}).get(op, {}))).items():
        if name not in present:
            yield name, f"is not installed: {command}"


def broken_kernels(backend: str) -> dict[str, str]:
    """Load all kernels of a backend; return the reason for each that cannot be loaded, by "operation: name"."""
    reasons = {}
    for (name, op), kernels in registry().kernels.items():
        for kernel in kernels if name == backend else ():
            try:
                for function in (kernel.load, kernel.prepare, kernel.supports):
                    if function is not None:
                        imported(function)
            except BaseException as error:
                if isinstance(error, KeyboardInterrupt):
                    raise
                reasons[f"{op}: {kernel.name}"] = f"cannot be loaded: {type(error).__name__}: {error}"
    return reasons


@contextmanager
def use_kernel(op: str, name: str) -> Iterator[None]:
    """Demand a kernel for all calls of one operation in this context; ``"algebra"`` demands none.

    A call that the kernel cannot compute raises KernelUnsupported with the reason. Raises UnknownKernel for a name that no
    plugin provides.

    >>> import numpy as np, mha_core as mha
    >>> with mha.use_kernel("gelu", "algebra"):
    ...     mha.gelu(np.asarray([0.0]))
    array([0.])
    """
    known = {kernel.name: kernel for kernel in kernels_of(op)}
    if op not in OPERATIONS or (name != ALGEBRA and name not in known):
        raise UnknownKernel(_unknown(op, name, [*known, ALGEBRA]))
    kept = tuple(pair for pair in demands.get().kernels if pair[0] != op)
    with demanding(kernels=(*kept, (op, name))):
        yield


def _unknown(op: str, name: str, known: list[str]) -> str:
    if op not in OPERATIONS:
        hint = did_you_mean(op, OPERATIONS)
        return f"no operation that kernels compute is named {op!r}; expected one of {', '.join(OPERATIONS)}{hint}"
    for backend, _ in registry().backends.values():
        for missing, reason in missing_kernels(backend, op):
            if missing == name:
                return f"kernel {name!r} for {op!r} {reason}"
    return f"no kernel for {op!r} is named {name!r}; there are {', '.join(known)}{did_you_mean(name, known)}"
