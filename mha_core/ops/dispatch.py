"""How an operation finds its kernel: one lookup, then the kernel or the algebra."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from ..algebra.arrays import Array, device_of
from ..algebra.problem import AttentionProblem
from ..dispatch.backend import LoadedBackend
from ..dispatch.contract import Call


def run(
    backend: LoadedBackend, op: str, algebra: Callable[..., Array], arrays: Mapping[str, Array | None], **options: Any
) -> Array:
    """``algebra(xp, *arrays, **options)``, or the kernel that takes this call; a kernel is called without ``xp``."""
    compute: Callable[..., Any] = partial(algebra, backend.xp)
    name, first = next(iter(arrays.items()))
    assert first is not None
    if first.ndim == 0:  # NumPy's functions answer an array without axes with a scalar, which is no array
        one = backend.xp.reshape(first, (1,))
        return backend.xp.reshape(run(backend, op, algebra, {**arrays, name: one}, **options), ())
    if backend.has_kernels(op):
        shapes = tuple((name, tuple(x.shape)) for name, x in arrays.items() if x is not None)
        call = Call(op, shapes, first.dtype, _hashable(device_of(first)), frozenset(), tuple(options.items()))
        compute = backend.kernel(call) or compute
    return compute(*arrays.values(), **options)


def run_attention(backend: LoadedBackend, op: str, algebra: Callable[..., Any], problem: AttentionProblem) -> Any:
    """``algebra(problem)``, or the kernel that declares every feature of the problem."""
    if not backend.has_kernels(op):
        return algebra(problem)
    p = problem
    shapes = tuple((name, tuple(x.shape)) for name, x in (("query", p.query), ("key", p.key), ("value", p.value)))
    call = Call(
        op, shapes, p.query.dtype, _hashable(p.device), p.features, (("band", p.structure.band), ("packed", p.structure.packed))
    )
    return (backend.kernel(call) or algebra)(problem)


def _hashable(device: Any) -> Any:
    """A device as a ``Call`` can hold it: by its name where the library gave its devices no hash, as CuPy did."""
    return str(device) if type(device).__hash__ is None else device
