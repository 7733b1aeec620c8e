"""Gradients of the pieces as problems of a covering design."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import mha_core as mha

from ..oracle import piece_gradients
from ..oracle.attention import Floats
from ..oracle.attention_gradients import Bounded
from . import piece_axes
from .covering import Row
from .piece_axes import ROWS, piece_problem
from .pieces import PIECES
from .problem import Problem

DIFFERENTIABLE = (*PIECES, "embedding")
"""The pieces whose gradients are operations of their own, named ``linear_vjp`` and so on."""
NAMES = {
    "linear": ("x", "w", "b"),
    "layer_norm": ("x", "weight", "bias"),
    "rms_norm": ("x", "weight"),
    "rotary": ("x", "cos", "sin"),
    "embedding": ("ids", "table"),
    "dropout": ("x", "keep"),
    **dict.fromkeys(("gelu", "relu", "silu"), ("x",)),
}
"""The arguments of each piece."""


@dataclass
class PieceGradientProblem(Problem):
    """A call of ``mha.vjp`` with a piece, and its pullback of ``d``. The floating arrays have the names of the arguments."""

    op: str = ""
    options: dict[str, Any] = field(default_factory=dict)

    first = "d"

    def call(self, arrays: Mapping[str, Any]) -> dict[str, Any]:
        given = tuple(arrays.get(name) for name in NAMES[self.op])
        _, pullback = mha.vjp(getattr(mha, self.op), *given, **self.options)
        found = dict(zip(NAMES[self.op], pullback(arrays["d"]), strict=True))
        wanted = {name.partition(" d_")[2] for name in self.exact(self.floats)}
        more = sorted(name for name, x in found.items() if x is not None and name not in wanted)
        assert not more, f"{self.op} returned gradients of {', '.join(more)}, which have none"
        return {f"{self.op}_vjp d_{name}": x for name, x in found.items() if x is not None}

    def exact(self, floats: Mapping[str, Floats]) -> dict[str, Floats]:
        return {name: x for name, (x, _) in self.expected(floats, "float64", rounds_weights=False).items()}

    def expected(self, floats: Mapping[str, Floats], dtype: str, *, rounds_weights: bool) -> dict[str, Bounded]:
        given = ({**floats, **self.others}.get(name) for name in NAMES[self.op])
        found = piece_gradients.GRADIENTS[self.op](floats["d"], *given, **self.options)
        return {f"{self.op}_vjp d_{name}": x for name, x in piece_gradients.bounded(found, dtype).items()}

    def layout(self, name: str) -> tuple[str, int]:
        first = name in ("d", "x") or name in self.others
        return self.row["layout"] if first else self.row.get("layout of w", "contiguous"), 0


def axes_of_piece_gradients(op: str) -> dict[str, list[Any]]:
    """Return the axes of the calls of an operation, with their values; ``towards`` is the size of d."""
    if op == "embedding":
        axes = piece_axes.axes_of_piece("relu") | {"width": [1, 2, 15, 64, 257], "vocabulary": [1, 2, 17, 1000]}
    else:
        axes = piece_axes.axes_of_piece(op)
    axes.pop("infinite", None)
    return axes | {"towards": [1.0, 2.0**-8]}


def piece_gradient_problem(op: str, row: Row, rng: np.random.Generator) -> PieceGradientProblem:
    """Draw a call whose axes have the values of ``row``."""
    if op == "embedding":
        ids = rng.integers(0, row["vocabulary"], size=ROWS[row["rows"]])
        table = rng.normal(size=(row["vocabulary"], row["width"]))
        d = rng.normal(size=(*ids.shape, row["width"])) * row["towards"]
        return PieceGradientProblem(row, {"d": d, "table": table}, {"ids": ids}, op=op)
    made = piece_problem(op, {**row, "infinite": False}, rng)
    piece = made.piece
    floats = {name: x for name, x in zip(NAMES[op], piece.arrays, strict=False) if x is not None}
    floats["d"] = rng.normal(size=piece.exact(*piece.arrays, **piece.options).shape) * row["towards"]
    return PieceGradientProblem(row, floats, op=op, options=piece.options)
