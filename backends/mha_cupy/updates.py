"""Updates of weights by optimisers: each element is read once and written once."""

from __future__ import annotations

from math import gcd, prod
from typing import Any

import cupy
import numpy

from mha_core.plugin import Call

from .launch import Launch, run
from .rowwise import dtype_defines, pack, reason_against, wide

_THREADS = 256


def supports(call: Call) -> str | None:
    return reason_against(call, *(shape for _, shape in call.shapes))  # any number of elements: the kernel counts in 64 bits


def adamw(w: Any, gradient: Any, m: Any, v: Any, **numbers: Any) -> tuple[Any, Any, Any]:
    """One step of AdamW, as ``mha_core.algebra.updates.adamw``. It writes into m and v if they are contiguous, never into w."""
    out = cupy.empty(w.shape, dtype=w.dtype)
    m, v = (x if x.flags.c_contiguous else x.copy() for x in (m, v))
    run(step(*(cupy.ascontiguousarray(x).reshape(-1) for x in (w, gradient)), *(x.reshape(-1) for x in (m, v, out)), **numbers))
    return out, m, v


def step(
    w: Any,
    gradient: Any,
    m: Any,
    v: Any,
    out: Any,
    *,
    learning_rate: float,
    beta_1: float,
    beta_2: float,
    eps: float,
    weight_decay: float,
    step: int,
    gradient_scale: Any = 1.0,
) -> Launch:
    """Return the launch for contiguous arrays of one axis. ``gradient_scale`` is a number or an array of shape ().

    Source: Loshchilov and Hutter 2019, algorithm 2, with one learning rate in place of the factors alpha and eta.
    """
    size, number = gcd(pack(prod(w.shape), w, gradient, out), pack(prod(w.shape), m, v)), wide(w.dtype)
    is_array = hasattr(gradient_scale, "shape") and not isinstance(gradient_scale, numpy.generic)
    scale = gradient_scale.astype(number).reshape(1) if is_array else None
    packs = prod(w.shape) // size
    return Launch(
        "adamw.cu",
        "adamw",
        (*dtype_defines(w.dtype), f"PACK={size}"),
        grid=-(-packs // _THREADS),
        block=_THREADS,
        args=(
            *(w, gradient, m, v, out, scale, number(1.0 if is_array else gradient_scale)),
            *map(number, (beta_1, 1 - beta_1, beta_2, 1 - beta_2, 1 - beta_1 ** (step + 1), 1 - beta_2 ** (step + 1))),
            *map(number, (1 - learning_rate * weight_decay, learning_rate, eps)),
            numpy.int64(packs),
        ),
    )
