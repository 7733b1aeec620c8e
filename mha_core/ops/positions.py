"""Positions: sinusoids and rotary embedding."""

from __future__ import annotations

from typing import Any

from ..algebra import positions as algebra
from ..algebra.arrays import Array
from ..algebra.grid import check_broadcast
from ..dispatch.default import backend_without_arrays
from . import check
from .elementary import elementary
from .operation import Step


def sinusoidal_positions(
    length: int, d_model: int, *, backend: str | None = None, dtype: Any = None, device: Any = None
) -> Array:
    """PE(pos, 2i) = sin(pos / 10000^(2i / d_model)) and PE(pos, 2i + 1) = cos of the same: (length, d_model).

    ``dtype`` is the backend's or its name, float32 by default. Source: Vaswani et al. 2017, section 3.5.
    Raises ValueError for negative sizes.

    >>> import mha_core as mha
    >>> mha.sinusoidal_positions(2, 4).round(2)
    array([[0.  , 1.  , 0.  , 1.  ],
           [0.84, 0.54, 0.01, 1.  ]], dtype=float32)
    """
    return _sinusoidal_positions(length, d_model, backend=backend, dtype=dtype, device=device)


@Step
def _sinusoidal_positions(length: int, d_model: int, *, backend: str | None, dtype: Any, device: Any) -> Array:
    length = check.integer("length", length, 0)
    d_model = check.integer("d_model", d_model, 0)
    loaded = backend_without_arrays(backend, device)
    wanted = check.floating(loaded, dtype)
    return algebra.sinusoidal_positions(loaded.xp, length, d_model, dtype=wanted, device=device)


def rotary_tables(
    length: int, dim: int, *, base: float = 10000.0, backend: str | None = None, dtype: Any = None, device: Any = None
) -> tuple[Array, Array]:
    """cos and sin for ``rotary`` at positions 0 to length - 1: cos and sin of pos * base^(-2i / dim), each (length, dim / 2).

    Rows for other positions: ``embedding(position_ids, cos)``. Source: Su et al. 2021, section 3.2.2.
    Raises ValueError for negative sizes, and for a ``dim`` that is odd.

    >>> import mha_core as mha
    >>> cos, sin = mha.rotary_tables(3, 4)
    >>> cos.shape
    (3, 2)
    """
    return _rotary_tables(length, dim, base=base, backend=backend, dtype=dtype, device=device)


@Step
def _rotary_tables(length: int, dim: int, *, base: float, backend: str | None, dtype: Any, device: Any) -> tuple[Array, Array]:
    length = check.integer("length", length, 0)
    dim = check.integer("dim", dim, 0)
    if dim % 2:
        raise ValueError(f"dim is {dim}; expected an even number, since features are rotated in pairs")
    loaded = backend_without_arrays(backend, device)
    wanted, base = check.floating(loaded, dtype), check.number("base", base, above_zero=True)
    return algebra.rotary_tables(loaded.xp, length, dim, base, dtype=wanted, device=device)


def rotary(x: Array, cos: Array, sin: Array, *, interleaved: bool) -> Array:
    """Rotate pairs of features by angles that grow with the position, so that q . k depends on distances only.

    Source: Su et al. 2021, equation 34.

    Parameters
    ----------
    x : array (..., L, head_dim)
    cos, sin : arrays, broadcast to (..., L, r / 2), with r <= head_dim
        Features beyond r pass through.
    interleaved : bool
        Whether pairs are neighbours (GPT-J), or a feature and its counterpart in the second half of r (GPT-NeoX).

    Returns
    -------
    array (..., L, head_dim)

    Raises
    ------
    ValueError
        For tables that do not fit.

    Examples
    --------
    >>> import numpy as np, mha_core as mha
    >>> quarter_turn = np.zeros((1, 1)), np.ones((1, 1))
    >>> mha.rotary(np.asarray([[1.0, 0.0, 7.0]]), *quarter_turn, interleaved=True)
    array([[0., 1., 7.]])
    """
    return _rotary(x, cos, sin, interleaved=bool(interleaved))


def _check_rotary(x: Array, cos: Array, sin: Array) -> None:
    check.ndim("x", x, 2, "(..., length, head_dim)")
    half = cos.shape[-1] if cos.ndim else 0
    if 2 * half > x.shape[-1]:
        raise ValueError(f"cos has {half} angles, for {2 * half} features, but x has {x.shape[-1]}")
    for name, table in (("cos", cos), ("sin", sin)):
        check_broadcast(name, table.shape, (*x.shape[:-1], half), "(..., L, r / 2)")
    if sin.shape[-1:] != cos.shape[-1:]:
        raise ValueError(
            f"sin has shape {tuple(sin.shape)}, but cos has {tuple(cos.shape)}: expected the same number of angles"
        )


_rotary = elementary("rotary", ("x", "cos", "sin"), algebra.rotary, vjp=algebra.rotary_vjp, validate=_check_rotary)
