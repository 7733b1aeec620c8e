"""Gradients of the pieces as problems of a covering design."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

import mha_core as mha

from ..oracle import piece_gradients
from ..oracle.attention import Floats
from ..oracle.attention_gradients import Bounded
from .attention_axes import LAYOUTS
from .attention_problem import repeated
from .kinds import Row, between
from .pieces import NAMES, PIECES, WITHOUT_GRADIENTS, PieceProblem, axes_of_piece, piece_problem

DIFFERENTIABLE = (*(op for op in PIECES if op not in WITHOUT_GRADIENTS), "embedding")
"""The pieces whose gradients are operations of their own, named ``linear_vjp`` and so on."""


class PieceGradientProblem(PieceProblem):
    """A call of ``mha.vjp`` with a piece, and its pullback of ``d``."""

    first = "d"

    def call(self, arrays: Mapping[str, Any]) -> dict[str, Any]:
        out, pullback = mha.vjp(getattr(mha, self.op), *self.arguments(arrays), **self.options)
        if self.row.get("pulls") == "after another":
            pullback(arrays["d"] * -2)
        gradients = dict(zip(NAMES[self.op], pullback(arrays["d"]), strict=True))
        wanted = self.floats.keys() - {"d", "cos", "sin"}
        more = sorted(name for name, x in gradients.items() if x is not None and name not in wanted)
        assert not more, f"{self.op} returned gradients of {', '.join(more)}, which have none"
        value = {self.op: out} if self.op in piece_gradients.VALUES else {}  # kernels of the others are judged by themselves
        return value | {f"{self.op}_vjp d_{name}": x for name, x in gradients.items() if x is not None}

    def exact(self, floats: Mapping[str, Floats]) -> dict[str, Floats]:
        return {name: x for name, (x, _) in self.expected(floats, "float64", rounds_weights=False).items()}

    def expected(self, floats: Mapping[str, Floats], dtype: str, *, rounds_weights: bool) -> dict[str, Bounded]:
        arguments, value = self.arguments(floats), piece_gradients.VALUES.get(self.op)
        gradients = piece_gradients.GRADIENTS[self.op](floats["d"], *arguments, **self.options)
        exact = {f"{self.op}_vjp d_{name}": x for name, x in gradients.items()}
        return piece_gradients.bounded(exact | ({self.op: value(*arguments, **self.options)} if value else {}), dtype)


def axes_of_piece_gradients(op: str) -> dict[str, list[Any]]:
    """Return the axes of the calls of an operation, with their values; ``towards`` is the size of d."""
    axes = axes_of_piece("relu" if op == "embedding" else op)
    axes.pop("NaN", None)
    if op == "embedding":
        del axes["infinite"]
        axes |= {"vocabulary": [1, 2, between(3, 40), between(41, 3000)], "ids": ["from the start", "from both ends"]}
    return axes | {"towards": [1.0, 2.0**-8], "layout of d": [*LAYOUTS, -1], "pulls": ["once", "after another"]}


def piece_gradient_problem(op: str, row: Row, rng: np.random.Generator) -> PieceGradientProblem:
    """Draw a call whose axes have the values of ``row``."""
    if op == "embedding":
        least = -row["vocabulary"] if row["ids"] == "from both ends" else 0
        ids = np.asarray(rng.integers(least, row["vocabulary"], size=row["rows"]))
        floats = {"table": rng.normal(size=(row["vocabulary"], row["width"]))}
        shape, others, options = (*ids.shape, row["width"]), {"ids": ids}, {}
    else:
        piece = piece_problem(op, row, rng)
        floats, others, options = piece.floats, {}, piece.options
        shape = (*floats["x"].shape[:-1], floats["w"].shape[-1]) if op == "linear" else floats["x"].shape
    floats["d"] = rng.normal(size=shape) * row["towards"]
    problem = PieceGradientProblem(row, floats, others, op=op, options=options)
    floats["d"] = repeated(floats["d"], problem.layout("d")[1])
    return problem
