"""Layouts of arrays in memory: views that hold the same numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mha_core.shared import dtype_name

from ..backend import BackendUnderTest


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


NUMPY_VIEWS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "no axes": lambda x: x[0, 0, 0, ...],
    "one axis": lambda x: x[0, 0],
    "empty": lambda x: x[:0, 0],
    "empty inside": lambda x: x[:, :0],
    "contiguous": lambda x: x,
    "in Fortran order": np.asfortranarray,
    "stepped": lambda x: x[:, ::2, 1::2],
    "flipped": lambda x: x[::-1, :, ::-1],
    "flipped on one axis": lambda x: x[0, 0, ::-1],
    "stepped backwards": lambda x: x[..., ::-2],
    "expanded": lambda x: np.broadcast_to(x[:1], x.shape),
    "one row": lambda x: x[1:2, 2:3],
    "read-only": lambda x: np.frombuffer(x.tobytes(), dtype=x.dtype).reshape(x.shape),
}
"""Views of an array of shape (2, 3, 8) in NumPy."""


def _unaligned(x: np.ndarray) -> np.ndarray:
    """Return a copy whose numbers begin one byte behind a boundary."""
    return np.frombuffer(bytearray(b"\0" + x.tobytes()), dtype=x.dtype, offset=1).reshape(x.shape)


_ON_THE_HOST: dict[str, Callable[[np.ndarray], np.ndarray]] = {"read-only": NUMPY_VIEWS["read-only"], "unaligned": _unaligned}
"""Layouts that only NumPy can make; the library may take the memory over, or copy it."""
WRITABLE = frozenset({*VIEWS, "unaligned"})
"""Layouts in which no two elements share memory, which can be written to."""


def laid_out(backend: BackendUnderTest, x: Any, layout: str, axes: Sequence[int] = ()) -> Any:
    """Return an array with this layout in memory: one of ``VIEWS``, "read-only", "unaligned", or "expanded" along ``axes``."""
    if x.ndim == 0 or (layout in VIEWS and not backend.has_views):
        return x
    if layout == "expanded":
        first = tuple(slice(0, 1) if axis in axes else slice(None) for axis in range(x.ndim))
        return backend.xp.broadcast_to(x[first], x.shape) if axes and 0 not in x.shape else x
    if layout in _ON_THE_HOST:
        if dtype_name(x.dtype) in ("float16", "bfloat16") or 0 in x.shape:  # half precision is converted by the library
            return x
        return backend.loaded.from_numpy(_ON_THE_HOST[layout](backend.numpy(x)), backend.device)
    if x.ndim == 1:
        return VIEWS[layout](backend.xp, x[:, None])[:, 0]
    return VIEWS[layout](backend.xp, x)
