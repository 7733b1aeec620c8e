"""How an operation finds its kernel: one lookup, then the kernel or the algebra."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from ..algebra.arrays import Array
from ..algebra.problem import AttentionProblem
from ..dispatch.backend import LoadedBackend
from ..dispatch.contract import Call


def run(backend: LoadedBackend, op: str, algebra: Callable[..., Array], /, *args: Array | None, **options: Any) -> Array:
    """``algebra(xp, *args, **options)``, or the kernel that takes this call; a kernel is called without ``xp``."""
    compute: Callable[..., Any] = partial(algebra, backend.xp)
    if backend.has_kernels(op):
        first = args[0]
        assert first is not None
        shapes = tuple((f"{at}", tuple(x.shape)) for at, x in enumerate(args) if x is not None)
        call = Call(op, shapes, first.dtype, first.device, frozenset(), tuple(options.items()))
        compute = backend.kernel(call) or compute
    result: Array = compute(*args, **options)
    return result


def run_attention(backend: LoadedBackend, op: str, algebra: Callable[..., Any], problem: AttentionProblem) -> Any:
    """``algebra(problem)``, or the kernel that declares every feature of the problem."""
    if not backend.has_kernels(op):
        return algebra(problem)
    p = problem
    shapes = tuple((name, tuple(x.shape)) for name, x in (("query", p.query), ("key", p.key), ("value", p.value)))
    call = Call(
        op, shapes, p.query.dtype, p.query.device, p.features, (("band", p.structure.band), ("packed", p.structure.packed))
    )
    return (backend.kernel(call) or algebra)(problem)
