"""Calls of the pieces (linear, norms, activations, rotary): their axes, and problems from rows of these.

Bounds are in unit roundoffs of the arrays' dtype: pieces may be computed in half precision, except the norms. The constants
leave room for two or three roundings more than the formula needs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

import numpy as np

import mha_core as mha

from ..oracle import reference
from ..oracle.attention import Floats
from ..oracle.magnitudes import MAGNITUDES
from ..oracle.tolerance import UNIT_ROUNDOFF, compute_dtype, least
from .attention_axes import LAYOUTS
from .attention_problem import repeated
from .kinds import Kind, Row, between, near, real, some
from .problem import Bounded, Problem

PIECES = ("linear", "linear_int8", "layer_norm", "rms_norm", "gelu", "relu", "silu", "rotary")
WITHOUT_GRADIENTS = frozenset({"linear_int8"})
"""The pieces for inference."""
NAMES = {
    "linear": ("x", "w", "b"),
    "linear_int8": ("x", "values", "scale", "b"),
    "layer_norm": ("x", "weight", "bias"),
    "rms_norm": ("x", "weight"),
    "rotary": ("x", "cos", "sin"),
    "embedding": ("ids", "table"),
    "dropout": ("x", "keep"),
    **dict.fromkeys(("gelu", "relu", "silu"), ("x",)),
}
"""The arguments of each piece."""
WIDTHS = (1, 2, 3, between(4, 15), near(16, 32, 64), between(17, 250), near(256, 1024), between(251, 4000), near(4096))
OUTPUTS = (1, 2, between(3, 63), 64, between(65, 250), near(256, 1024))
ROWS = (
    some("one axis", ()), some("none", (0,)), some("one", (1,)), some("an empty axis", (2, 0, 3)),
    Kind("few", lambda rng: (int(rng.integers(2, 16)),), (3,)),
    Kind("many", lambda rng: (int(rng.integers(16, 1100)),), (65,)),
    Kind("very many", lambda rng: (int(rng.integers(2**14, 40_000)),), (2**14,)),
    Kind("two axes", lambda rng: (int(rng.integers(2, 4)), int(rng.integers(2, 100))), (2, 65)),
    Kind("three axes", lambda rng: tuple(int(n) for n in rng.integers(1, 6, size=3)), (2, 1, 3)),
)  # fmt: skip
"""The axes before the last."""
TRIPLES = (
    *(("rows", "width", name) for name in ("outputs", "parts", "vocabulary", "state", "infinite", "approximate")),
    *(("layout", "layout of w", "b"), ("layout", "layout of d", "towards"), ("rows", "tables", "layout")),
    *(("width", "half", "interleaved"), ("width", "eps", "mean"), ("step", "beta_1", "beta_2"), ("step", "eps", "state")),
)
"""Axes of which every triple of values is judged, where an operation has them."""
ROOMS = {"small": 2**13, "large": 2**18}
"""Numbers of x, of the weights and of the result, at most."""


def axes_of_piece(op: str) -> dict[str, list[Any]]:
    """Return the axes of the calls of an operation, with their values."""
    axes: dict[str, list[Any]] = {
        "rows": list(ROWS),
        "layout": [*LAYOUTS, -2],
        "spread": [real(0.3, 3), real(3, 100), real(1e-4, 0.1)],
    }
    axes["room"] = list(ROOMS)
    axes["infinite" if op in ("gelu", "relu", "silu") else "NaN"] = [False, True]
    if op == "rotary":
        return axes | {
            "width": [2, 4, some("6, 10, …, 62", *range(6, 64, 4)), 64, some("66, 68, …, 254", *range(66, 256, 2)), 128, 256],
            "half": ["all", "some", "one pair"],
            "tables": ["of positions", "of each element", "of one row", "of one axis"],
            "interleaved": [True, False],
        }
    axes["width"] = list(WIDTHS)
    if op == "linear_int8":
        axes["ties"] = [False, True]
    if op in ("linear", "linear_int8"):
        return axes | {"outputs": list(OUTPUTS), "b": [True, False], "layout of w": list(LAYOUTS)}
    if op in ("layer_norm", "rms_norm"):
        parts = ["none", "weight", "bias", "both"] if op == "layer_norm" else ["none", "weight"]
        return axes | {"parts": parts, "eps": [1e-5, real(1e-9, 1e-3), real(1e-3, 1.0)], "mean": [0.0, real(0.5, 8)]}
    return axes | ({"approximate": ["none", "tanh"]} if op == "gelu" else {})


def possible(row: Row) -> bool:
    """Return whether a call can have all of these values, kinds by their least; axes that have no value do not count."""
    width = row.get("width", 1)
    if "half" in row and row["half"] == "some" and row.get("width", 4) < 4:
        return False
    rows = max(1, math.prod(row.get("rows", (1,))))
    columns = max(row.get("outputs", 1), row.get("vocabulary", 1))
    room = ROOMS[row.get("room", "large")]
    return max(rows * width, width * columns, rows * row.get("outputs", 1)) <= room


@dataclass
class PieceProblem(Problem):
    """A call of a piece; its result is named after the operation, and its arrays after the arguments."""

    op: str = ""
    options: dict[str, Any] = field(default_factory=dict)

    def arguments(self, arrays: Mapping[str, Any]) -> tuple[Any, ...]:
        """Return the arguments of the call; None for one that is omitted."""
        every = {**self.others, **arrays}
        return tuple(every.get(name) for name in NAMES[self.op])

    def call(self, arrays: Mapping[str, Any]) -> dict[str, Any]:
        return {self.op: getattr(mha, self.op)(*self.arguments(arrays), **self.options)}

    def exact(self, floats: Mapping[str, Floats]) -> dict[str, Floats]:
        return {self.op: getattr(reference, self.op)(*self.arguments(floats), **self.options)}

    def expected(self, floats: Mapping[str, Floats], dtype: str, *, rounds_weights: bool) -> dict[str, Bounded]:
        exact = self.exact(floats)[self.op]
        both = 2.0 if dtype == "float64" else 1.0  # the reference computes in float64 too, and rounds as well
        size = np.where(np.isfinite(exact), self.magnitude(floats) + np.abs(exact), 0)
        return {self.op: (exact, both * UNIT_ROUNDOFF[dtype] * size + least(dtype))}

    def magnitude(self, floats: Mapping[str, Floats]) -> Any:
        """Return the sum of the absolute terms of the result, times the number of roundings: the bound divided by u."""
        return MAGNITUDES[self.op](*self.arguments(floats), **self.options)

    def layout(self, name: str) -> tuple[str, tuple[int, ...]]:
        if name not in ("x", "d") and name not in self.others:
            return self.row.get("layout of w", "contiguous"), ()
        layout = self.row["layout of d"] if name == "d" and "layout of d" in self.row else self.row["layout"]
        if isinstance(layout, str):
            return layout, ()
        axis = self.floats[name].ndim + layout if name in self.floats else -1
        return "expanded", (axis,) if axis >= 0 else ()


@dataclass
class Int8Problem(PieceProblem):
    """A call of ``linear`` with an int8 weight: x is rounded to integers, which must be equal in all libraries."""

    def call(self, arrays: Mapping[str, Any]) -> dict[str, Any]:
        x, values, scale, b = self.arguments(arrays)
        return {self.op: mha.linear(x, mha.Int8Weight(values, scale), b)}

    def expected(self, floats: Mapping[str, Floats], dtype: str, *, rounds_weights: bool) -> dict[str, Bounded]:
        in_dtype = replace(self, options={"arithmetic": compute_dtype(dtype)})
        return PieceProblem.expected(in_dtype, floats, dtype, rounds_weights=rounds_weights)


def piece_problem(op: str, row: Row, rng: np.random.Generator) -> PieceProblem:
    """Draw a call whose axes have the values of ``row``."""
    width, rows, options, others = row["width"], row["rows"], {}, {}

    def normal(*shape: int) -> np.ndarray:
        return rng.normal(size=shape)

    floats = {"x": normal(*rows, width) * row["spread"]}
    if op == "linear":
        floats |= {"w": normal(width, row["outputs"])} | ({"b": normal(row["outputs"])} if row["b"] else {})
    elif op == "linear_int8":
        x, outputs = floats["x"], row["outputs"]
        if row["ties"]:  # halves of integers: where the largest number is 127, they are rounded as they are
            x[...] = rng.integers(-253, 254, size=x.shape) / 2
            x[..., ::64] = 127
            x *= 2.0 ** rng.integers(-8, 5)
        x[rng.random(rows) < 0.1] = 0
        others = {"values": rng.integers(-127, 128, size=(width, outputs), dtype=np.int8)}
        floats |= {"scale": rng.uniform(0.1, 2, size=outputs)} | ({"b": normal(outputs)} if row["b"] else {})
    elif op in ("layer_norm", "rms_norm"):
        floats["x"] += row["mean"]
        floats |= {name: normal(width) for name in ("weight", "bias") if row["parts"] in (name, "both")}
        options = {"eps": row["eps"]}
    elif op == "rotary":
        x = floats["x"] = normal(*rows[:-1], *(rows[-1:] or (4,)), width) * row["spread"]
        half = {"all": width // 2, "some": width // 4, "one pair": 1}[row["half"]]
        lead = {"of each element": x.shape[:-1], "of one row": (1,), "of one axis": ()}.get(row["tables"], x.shape[-2:-1])
        angles = 3 * normal(*lead, half)
        floats |= {"cos": np.cos(angles), "sin": np.sin(angles)}
        options = {"interleaved": row["interleaved"]}
    elif op == "gelu":
        options = {"approximate": row["approximate"]}
    elif op == "relu":  # it has no derivative at 0
        floats["x"] = np.where(np.abs(floats["x"]) < 1e-3 * row["spread"], row["spread"], floats["x"])
    if row.get("infinite"):
        each = max(1, floats["x"].size // 7)
        floats["x"].flat[::each] = np.resize([np.inf, np.nan, -3e4, 0.0, -0.0], len(floats["x"].flat[::each]))
    if row.get("NaN"):  # in one number of some rows
        x = floats["x"].reshape(-1, width)
        some_rows = np.flatnonzero(rng.random(len(x)) < 0.3)
        x[some_rows, rng.integers(width, size=len(some_rows))] = np.nan
    problem = (Int8Problem if op == "linear_int8" else PieceProblem)(row, floats, others, op=op, options=options)
    floats["x"] = repeated(floats["x"], problem.layout("x")[1])
    return problem


_SHAPES = [((3,), 4), ((2, 1, 3), 16), ((), 10), ((0,), 4), ((2, 65), 64)]
_TRIED: dict[str, tuple[Any, ...]] = {
    "room": ("large",),
    "spread": (10.0,),
    "outputs": (6,),
    "mean": (1.0,),
    "eps": (1e-5, 0.5),
    "half": ("all",),
    **dict.fromkeys(("infinite", "NaN"), (False,)),
    **dict.fromkeys(("layout", "layout of w"), ("contiguous",)),
}
"""The values of some axes that ``piece_problems`` tries; of the others it tries all."""


def piece_problems(op: str, rng: np.random.Generator) -> Iterator[PieceProblem]:
    """Draw a small call of every kind of one operation; nothing for an operation that is not in ``PIECES``."""
    if op not in PIECES:
        return
    kinds = {name: _TRIED.get(name, values) for name, values in axes_of_piece(op).items() if name not in ("rows", "width")}
    for rows, width in _SHAPES:
        for values in product(*kinds.values()):
            yield piece_problem(op, {"rows": rows, "width": width, **dict(zip(kinds, values, strict=True))}, rng)
