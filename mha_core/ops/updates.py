"""The updates of optimisers as operations, so that kernels may compute them."""

from __future__ import annotations

from functools import partial
from typing import Any

from ..algebra import updates as algebra
from ..algebra.arrays import Array
from ..dispatch.selection import check_floating
from .composite import composite
from .elementary import Examined


def _named(w: Array, gradient: Array, m: Array, v: Array, **numbers: Any) -> dict[str, Array]:
    return {"w": w, "gradient": gradient, "m": m, "v": v}


def _examine(w: Array, gradient: Array, m: Array, v: Array, **numbers: Any) -> Examined:
    backend = check_floating(w=w, gradient=gradient)
    return Examined(backend, partial(algebra.adamw, backend.xp), None, like=("w", "m", "v"))


adamw = composite("adamw", _named, _examine, smaller_operations=False, planned_by_options=False)
"""adamw(w, gradient, m, v, **numbers) -> (w, m, v), as ``algebra.updates.adamw``; a kernel may write into m and v."""
