"""Updates of weights by optimisers: their axes, and problems from rows of these."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from mha_core.shared import adamw

from ..oracle.attention import Floats
from ..oracle.updates import adamw_update
from . import pieces
from .attention_axes import LAYOUTS
from .kinds import Row, below_one, between, real
from .problem import Bounded, Problem

SETTINGS: dict[str, list[Any]] = {
    "learning_rate": [0.0, real(1e-6, 1e-2), real(1e-2, 1)],
    "beta_1": [0.0, below_one(0.01, 0.7)],
    "beta_2": [0.0, below_one(1e-4, 0.7)],
    "eps": [real(1e-12, 1e-6), real(1e-6, 1)],
    "weight_decay": [0.0, real(1e-4, 0.5)],
    "step": [0, between(1, 100), between(101, 10**6)],
    "gradient_scale": [1.0, real(1e-3, 10)],
}
AXES: dict[str, list[Any]] = {
    "room": list(pieces.ROOMS),
    "rows": list(pieces.ROWS),
    "width": list(pieces.WIDTHS),
    "spread": [real(0.3, 3), real(3, 100), real(1e-4, 0.1)],
    "layout": [*LAYOUTS],
    "layout of d": [*LAYOUTS],
    "state": ["some", "zero"],
    **SETTINGS,
}
_RESULTS = ("adamw w", "adamw m", "adamw v")


class UpdateProblem(Problem):
    """A step of AdamW; its results are the new w, m and v. m and v, which it may write to, are copied before."""

    first = "w"
    wide_results = frozenset({"adamw m", "adamw v"})

    @property
    def settings(self) -> dict[str, Any]:
        return {name: self.row[name] for name in SETTINGS}

    def call(self, arrays: Mapping[str, Any]) -> dict[str, Any]:
        m, v = (arrays[name] * 1 for name in ("m", "v"))
        return dict(zip(_RESULTS, adamw(arrays["w"], arrays["gradient"], m, v, **self.settings), strict=True))

    def expected(self, floats: Mapping[str, Floats], dtype: str, *, rounds_weights: bool) -> dict[str, Bounded]:
        arrays = (floats[name] for name in ("w", "gradient", "m", "v"))
        return dict(zip(_RESULTS, adamw_update(*arrays, dtype=dtype, **self.settings), strict=True))

    def exact(self, floats: Mapping[str, Floats]) -> dict[str, Floats]:
        return {name: x for name, (x, _) in self.expected(floats, "float64", rounds_weights=False).items()}

    def layout(self, name: str) -> tuple[str, tuple[int, ...]]:
        return {"w": self.row["layout"], "gradient": self.row["layout of d"]}.get(name, "contiguous"), ()


def update_problem(row: Row, rng: np.random.Generator) -> UpdateProblem:
    """Draw a step whose axes have the values of ``row``. Without earlier steps, m and v may be 0."""
    shape = (*row["rows"], row["width"])
    w, gradient, m = (rng.normal(size=shape) * spread for spread in (1.0, row["spread"], row["spread"]))
    v = (rng.random(size=shape) + 0.01) * row["spread"] ** 2
    if row["state"] == "zero":
        m, v = np.zeros(shape), np.zeros(shape)
    return UpdateProblem(row, {"w": w, "gradient": gradient, "m": m, "v": v}, wide=frozenset({"m", "v"}))
