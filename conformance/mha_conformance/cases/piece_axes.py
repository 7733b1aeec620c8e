"""The axes of the pieces (linear, norms, activations, rotary), and calls from the rows of a covering design."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

import mha_core as mha

from ..oracle import reference
from ..oracle.attention import Floats
from ..oracle.magnitudes import activation_magnitude, linear_magnitude, norm_magnitude, rotary_magnitude
from .covering import Row
from .pieces import PieceCall
from .problem import Bounded, Problem

WIDTHS = (1, 2, 3, *(edge + by for edge in (16, 64, 256, 1024, 4096) for by in (-1, 0, 1)))
ROWS: dict[str, tuple[int, ...]] = {
    "one axis": (),
    "none": (0,),
    "one": (1,),
    "few": (3,),
    "many": (1030,),
    "two axes": (2, 65),
    "three axes": (2, 1, 3),
    "an empty axis": (2, 0, 3),
}
LAYOUTS = ("contiguous", "transposed", "stepped", "sliced", "flipped", "read-only", "unaligned")
MOST_NUMBERS = 2**19


def axes_of_piece(op: str) -> dict[str, list[Any]]:
    """Return the axes of the calls of an operation, with their values."""
    axes: dict[str, list[Any]] = {"rows": list(ROWS), "layout": list(LAYOUTS), "spread": [1.0, 30.0, 1e-3]}
    if op == "rotary":
        return axes | {
            "width": [2, 4, 10, 64, 128, 130, 256],
            "half": ["all", "some", "one pair"],
            "tables": ["of positions", "of each element", "of one row", "of one axis"],
            "interleaved": [True, False],
        }
    axes["width"] = list(WIDTHS)
    if op == "linear":
        return axes | {"outputs": [1, 2, 17, 64, 257, 1025], "b": [True, False], "layout of w": list(LAYOUTS)}
    if op in ("layer_norm", "rms_norm"):
        parts = ["none", "weight", "bias", "both"] if op == "layer_norm" else ["none", "weight"]
        return axes | {"parts": parts, "eps": [1e-5, 0.5, 1e-9], "mean": [0.0, 5.0]}
    axes["infinite"] = [False, True]
    return axes | ({"approximate": ["none", "tanh"]} if op == "gelu" else {})


def possible(row: Row, *, share: float = 1.0) -> bool:
    """Return whether a call can have all of these values; axes that have no value yet do not count.

    share: of the size that is allowed.
    """
    width = row.get("width", 1)
    if "half" in row and row["half"] == "some" and row.get("width", 4) < 4:
        return False
    rows = max(1, math.prod(ROWS[row.get("rows", "one")]))
    return max(rows * width, width * row.get("outputs", 1), rows * row.get("outputs", 1)) <= share * MOST_NUMBERS


@dataclass
class PieceProblem(Problem):
    """A call of a piece; its result is named after the operation."""

    op: str = ""
    piece: PieceCall = None  # type: ignore[assignment]

    first = "argument 0"

    def call(self, arrays: Mapping[str, Any]) -> dict[str, Any]:
        return {self.op: self.piece.operation(*self._arguments(arrays), **self.piece.options)}

    def exact(self, floats: Mapping[str, Floats]) -> dict[str, Floats]:
        return {self.op: self.piece.exact(*self._arguments(floats), **self.piece.options)}

    def expected(self, floats: Mapping[str, Floats], dtype: str, *, rounds_weights: bool) -> dict[str, Bounded]:
        exact = self.exact(floats)[self.op]
        return {self.op: (exact, self.piece.bound(exact, self._arguments(floats), dtype))}

    def layout(self, name: str) -> tuple[str, int]:
        return self.row.get("layout of w", "contiguous") if name != self.first else self.row["layout"], 0

    def _arguments(self, arrays: Mapping[str, Any]) -> tuple[Any, ...]:
        return tuple(arrays.get(f"argument {at}") for at in range(len(self.piece.arrays)))


def piece_problem(op: str, row: Row, rng: np.random.Generator) -> PieceProblem:
    """Draw a call whose axes have the values of ``row``."""
    piece = _piece_call(op, row, rng)
    given = {f"argument {at}": x for at, x in enumerate(piece.arrays) if x is not None}
    return PieceProblem(row, given, op=op, piece=piece)


def _piece_call(op: str, row: Row, rng: np.random.Generator) -> PieceCall:
    width, rows = row["width"], ROWS[row["rows"]]

    def normal(*shape: int) -> np.ndarray:
        return rng.normal(size=shape)

    x = normal(*rows, width) * row["spread"]
    operation, exact = getattr(mha, op), getattr(reference, op)
    if op == "linear":
        b = normal(row["outputs"]) if row["b"] else None
        return PieceCall("", operation, exact, (x, normal(width, row["outputs"]), b), linear_magnitude)
    if op in ("layer_norm", "rms_norm"):
        weight = normal(width) if row["parts"] in ("weight", "both") else None
        bias = normal(width) if row["parts"] in ("bias", "both") else None
        parts = (weight,) if op == "rms_norm" else (weight, bias)
        magnitude = partial(norm_magnitude, eps=row["eps"])
        return PieceCall("", operation, exact, (x + row["mean"], *parts), magnitude, {"eps": row["eps"]})
    if op == "rotary":
        x = normal(*rows[:-1], *(rows[-1:] or (4,)), width) * row["spread"]
        half = {"all": width // 2, "some": width // 4, "one pair": 1}[row["half"]]
        lead = {"of each element": x.shape[:-1], "of one row": (1,), "of one axis": ()}.get(row["tables"], x.shape[-2:-1])
        angles = 3 * normal(*lead, half)
        tables = np.cos(angles), np.sin(angles)
        return PieceCall("", operation, exact, (x, *tables), rotary_magnitude, {"interleaved": row["interleaved"]})
    if op == "relu":  # it has no derivative at 0
        x = np.where(np.abs(x) < 1e-3 * row["spread"], row["spread"], x)
    if row["infinite"] and x.size:
        x.flat[:: max(1, x.size // 7)] = np.resize([np.inf, np.nan, -3e4, 0.0, -0.0], len(x.flat[:: max(1, x.size // 7)]))
    options = {"approximate": row["approximate"]} if op == "gelu" else {}
    return PieceCall("", operation, exact, (x,), activation_magnitude, options)
