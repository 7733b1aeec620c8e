"""Layouts of arrays in memory: views that hold the same numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..backend import BackendUnderTest, dtype_name


def copied(xp: Any, x: Any) -> Any:
    """Return a contiguous copy: ``concat`` makes an array that is not a view."""
    return xp.reshape(xp.concat([xp.reshape(x, (-1,)), xp.reshape(x, (-1,))[:0]], axis=0), x.shape)


VIEWS: dict[str, Callable[[Any, Any], Any]] = {
    "contiguous": lambda xp, x: x,
    "transposed": lambda xp, x: xp.matrix_transpose(copied(xp, xp.matrix_transpose(x))),
    "stepped": lambda xp, x: xp.stack([x, x], axis=-2)[..., ::2, :][..., 0, :],
    "sliced": lambda xp, x: xp.concat([x, x, x], axis=-1)[..., x.shape[-1] : 2 * x.shape[-1]],
    "flipped": lambda xp, x: xp.flip(copied(xp, xp.flip(x, axis=-2)), axis=-2),
}
"""Functions of a namespace and an array of at least two axes."""


def laid_out(backend: BackendUnderTest, x: Any, layout: str, *, batch: int = 0) -> Any:
    """Return an array with this layout in memory: one of ``VIEWS``, "expanded" over its batch axes, or "read-only"."""
    if x.ndim < 2:
        return x
    if layout == "expanded":
        return backend.xp.broadcast_to(x[(*(0,) * batch, ...)], x.shape) if batch and 0 not in x.shape else x
    if layout == "read-only":
        if dtype_name(x) in ("float16", "bfloat16") or 0 in x.shape:  # half precision is converted by the library
            return x
        host = backend.numpy(x)
        return backend.loaded.from_numpy(np.frombuffer(host.tobytes(), dtype=host.dtype).reshape(host.shape), backend.device)
    return VIEWS[layout](backend.xp, x)
