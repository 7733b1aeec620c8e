"""Calls of the pieces (linear, norms, activations, rotary), with NumPy's answer and a bound on the error.

Bounds are in unit roundoffs of the arrays' dtype: pieces may be computed in half precision, except the norms. The constants
leave room for two or three roundings more than the formula needs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import mha_core as mha

from ..oracle import reference
from ..oracle.attention import Floats
from ..oracle.magnitudes import activation_magnitude, linear_magnitude, norm_magnitude, rotary_magnitude
from ..oracle.tolerance import SMALLEST, UNIT_ROUNDOFF


@dataclass(frozen=True)
class PieceCall:
    """The call ``operation(*arrays, **options)``. An omitted array is None."""

    name: str
    operation: Callable[..., Any]
    exact: Callable[..., Floats]
    arrays: tuple[np.ndarray | None, ...]
    magnitude: Callable[..., Any]
    """Bound divided by u, from the same arrays: the sum of the absolute terms of the answer, times the number of roundings."""
    options: dict[str, Any] = field(default_factory=dict)

    def bound(self, exact: Floats, rounded: tuple[Floats | None, ...], dtype: str) -> Floats:
        """Return the bound on each element of the error."""
        u = UNIT_ROUNDOFF[dtype]
        both = 2.0 if dtype == "float64" else 1.0  # the reference computes in float64 too, and rounds as well
        size = np.where(np.isfinite(exact), np.abs(exact), 0)
        return both * u * (self.magnitude(*rounded) + size) + SMALLEST[dtype]


def piece_calls(rng: np.random.Generator, op: str) -> Iterator[PieceCall]:
    """Yield every kind of call of one operation; nothing for an operation that is not in ``PIECES``."""

    def normal(*shape: int) -> np.ndarray:
        return rng.normal(size=shape)

    if op == "linear":
        for shape in [(3, 5), (2, 3, 16), (7,), (0, 4), (2, 130, 64)]:
            w = normal(shape[-1], 6)
            yield PieceCall("with b", mha.linear, reference.linear, (normal(*shape), w, normal(6)), linear_magnitude)
            yield PieceCall("without b", mha.linear, reference.linear, (normal(*shape), w), linear_magnitude)
    elif op in ("layer_norm", "rms_norm"):
        operation, exact = getattr(mha, op), getattr(reference, op)
        for shape in [(3, 5), (2, 3, 16), (7,), (0, 4), (2, 130, 64)]:
            parts = [normal(shape[-1]) for _ in range(2 if op == "layer_norm" else 1)]
            x = 3 * normal(*shape) + 1
            yield PieceCall("plain", operation, exact, (x,), norm_magnitude)
            yield PieceCall("affine", operation, exact, (x, *parts), norm_magnitude)
            yield PieceCall("only the last", operation, exact, (x, *(None,) * (len(parts) - 1), parts[-1]), norm_magnitude)
            yield PieceCall("eps", operation, exact, (x, *parts), norm_magnitude, {"eps": 0.5})
    elif op in ("gelu", "relu", "silu"):
        settings: list[dict[str, Any]] = [{"approximate": "none"}, {"approximate": "tanh"}] if op == "gelu" else [{}]
        for options in settings:
            for x in (3 * normal(4, 5), normal(0, 3), normal(3, 70, 100), np.asarray([0.0, -0.0, 1e-3, 30.0, -30.0])):
                yield PieceCall(
                    " ".join(options.values()), getattr(mha, op), getattr(reference, op), (x,), activation_magnitude, options
                )
    elif op == "rotary":
        for interleaved in (True, False):
            for length, width, table in [(4, 8, (4, 4)), (3, 10, (2, 1, 3, 3)), (1, 2, (1, 1)), (5, 4, (2,))]:
                angles = 3 * normal(*table)  # of positions, of positions in each batch element, or one for all positions
                arrays = (normal(2, 3, length, width), np.cos(angles), np.sin(angles))
                name = "interleaved" if interleaved else "halves"
                yield PieceCall(name, mha.rotary, reference.rotary, arrays, rotary_magnitude, {"interleaved": interleaved})


PIECES = ("linear", "layer_norm", "rms_norm", "gelu", "relu", "silu", "rotary")
