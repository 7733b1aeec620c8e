"""Activations, fused with a bias, a gate and a residual, and their gradients: each element is read once and written once.

Rows may have any stride. An array is copied first if its last axis is strided or its rows have no common stride.
"""

from __future__ import annotations

from collections.abc import Set
from typing import Any

import cupy
import numpy

from .launch import Launch, run
from .rowwise import dtype_defines, pack, rows, stride

_THREADS = 256


def gelu(x: Any, *, approximate: str) -> Any:
    return _active("gelu_tanh" if approximate == "tanh" else "gelu", x)


def relu(x: Any) -> Any:
    return _active("relu", x)


def silu(x: Any) -> Any:
    return _active("silu", x)


def _active(name: str, x: Any) -> Any:
    out = cupy.empty(x.shape, dtype=x.dtype)
    flat = x.flags.c_contiguous  # one long row: accesses are then wide whatever the length of the last axis
    run(activation(name, *((y.reshape(1, -1) if flat else rows(y)) for y in (x, out))))
    return out


def in_place(name: str, x: Any, b: Any = None, *, gate: Any = None, gate_b: Any = None, residual: Any = None) -> Any:
    """Compute f(x + b) * (gate + gate_b) + residual in place. x (n, d) is contiguous; f may be ``identity``."""
    b, gate_b = (None if p is None else rows(p) for p in (b, gate_b))
    run(activation(name, x, x, b=b, gate=gate, gate_b=gate_b, residual=residual))
    return x


def activation(
    name: str, x: Any, out: Any, *, b: Any = None, gate: Any = None, gate_b: Any = None, residual: Any = None
) -> Launch:
    """Return the launch of f(x + b) * (gate + gate_b) + residual; arguments that are None are left out.

    x, gate, residual and out (n, d); b and gate_b (1, d). out is contiguous, and may be x.
    """
    size = pack(x.shape[1], x, b, gate, gate_b, residual, out)
    args = (x, stride(x), b, gate, stride(gate), gate_b, residual, stride(residual), out)
    return _launch("activations.cu", "activate", name, x, size, args)


def _launch(source: str, kernel: str, name: str, x: Any, size: int, args: tuple[Any, ...]) -> Launch:
    """Return the launch of a kernel of which each thread computes ``size`` neighbours of x (n, d)."""
    packs = x.size // size
    return Launch(
        source,
        kernel,
        (*dtype_defines(x.dtype), f"ACTIVATION={name}", f"PACK={size}"),
        grid=-(-packs // _THREADS),
        block=_THREADS,
        args=(*args, numpy.uint32(packs), numpy.uint32(x.shape[1] // size)),
    )


def gelu_vjp(x: Any, d_out: Any, *, wanted: Set[str], approximate: str) -> tuple[Any]:
    return _gradient("gelu_tanh" if approximate == "tanh" else "gelu", x, d_out)


def relu_vjp(x: Any, d_out: Any, *, wanted: Set[str]) -> tuple[Any]:
    return _gradient("relu", x, d_out)


def silu_vjp(x: Any, d_out: Any, *, wanted: Set[str]) -> tuple[Any]:
    return _gradient("silu", x, d_out)


def _gradient(name: str, x: Any, d: Any) -> tuple[Any]:
    out = cupy.empty(x.shape, dtype=x.dtype)
    flat = x.flags.c_contiguous and d.flags.c_contiguous
    run(slope(name, *((y.reshape(1, -1) if flat else rows(y)) for y in (x, d, out))))
    return (out,)


def slope(name: str, x: Any, d: Any, out: Any) -> Launch:
    """Return the launch of f'(x) d; all (n, d). out is contiguous."""
    size = pack(x.shape[1], x, d, out)
    return _launch("activations_vjp.cu", "activate_vjp", name, x, size, (x, stride(x), d, stride(d), out))
