"""Activations and their gradients where torch records none: on the CPU in chunks, whose copies stay in the cache."""

from __future__ import annotations

import math
from collections.abc import Callable, Set
from typing import Any

import torch
from torch import Tensor

from mha_core.plugin import Call

from . import functional

_ELEMENTS = 1 << 18  # in a chunk on the CPU
_ATEN = torch.ops.aten


def supports(call: Call) -> str | None:
    """Return why gradients are not supported, or None."""
    return None if call.dtype in (torch.float32, torch.float64) else f"computes in float32 or float64, not {call.dtype}"


def supports_gelu(call: Call) -> str | None:
    """Return why ``gelu`` is not supported, or not faster than torch's function, or None."""
    if call.device.type != "cpu":
        return f"is for the CPU, not {call.device.type}"
    return functional.supports(call)


def gelu(x: Tensor, *, approximate: str) -> Tensor:
    """gelu(x), clamped as in functional.py; inf is put back into chunks that contain it."""

    def chunk(x: Tensor, *, out: Tensor) -> None:
        _ATEN.gelu.out(x.clamp(min=-40), approximate=approximate, out=out)
        if not out.sum().isfinite():
            out.masked_fill_(x == math.inf, math.inf)

    return _by_chunks(chunk, x)


def gelu_vjp(x: Tensor, d_out: Tensor, *, wanted: Set[str], approximate: str) -> tuple[Tensor]:
    """d times the slope, which is 0 or 1 beyond 40. torch returns NaN for the slope at infinity, so x is clamped."""

    def chunk(x: Tensor, d: Tensor, *, out: Tensor) -> None:
        _ATEN.gelu_backward.grad_input(d, x.clamp(-40, 40), approximate=approximate, grad_input=out)

    return (_by_chunks(chunk, x, d_out),)


def silu_vjp(x: Tensor, d_out: Tensor, *, wanted: Set[str]) -> tuple[Tensor]:
    """d times the slope, clamped like that of gelu."""

    def chunk(x: Tensor, d: Tensor, *, out: Tensor) -> None:
        _ATEN.silu_backward.grad_input(d, x.clamp(-1e4, 1e4), grad_input=out)

    return (_by_chunks(chunk, x, d_out),)


def relu_vjp(x: Tensor, d_out: Tensor, *, wanted: Set[str]) -> tuple[Tensor]:
    """d where x > 0, and 0 at 0; NaN stays NaN."""

    def chunk(x: Tensor, d: Tensor, *, out: Tensor) -> None:
        _ATEN.threshold_backward.grad_input(d, x, 0, grad_input=out)
        if not x.is_cpu or not x.sum().isfinite():  # where x is NaN, torch returns d
            torch.where(x.isnan(), x, out, out=out)

    return (_by_chunks(chunk, x, d_out),)


def _by_chunks(function: Callable[..., Any], *arrays: Tensor) -> Tensor:
    """Return what ``function(*chunks, out=chunk)`` writes for chunks of arrays of one shape."""
    x = arrays[0]
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    size = _ELEMENTS if x.is_cpu else max(1, x.numel())
    for out, *chunks in zip(*(torch.split(z.reshape(-1), size) for z in (y, *arrays)), strict=True):
        function(*chunks, out=out)
    return y
