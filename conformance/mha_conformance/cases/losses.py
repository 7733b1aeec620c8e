"""The cross-entropy and its gradient as problems of a covering design."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

import mha_core as mha

from ..oracle.attention import Floats
from ..oracle.losses import cross_entropy
from ..oracle.piece_gradients import bounded
from . import pieces
from .attention_problem import repeated
from .kinds import Row, below_one, real
from .problem import Bounded

TRIPLES = (("labels", "logits", "ignore"), ("labels", "logits", "label_smoothing"), ("rows", "width", "labels"))
_ALIKE = 100
"""The most rows with nearly equal losses: if all terms of a longer sum are equal, its rounding errors may have one sign."""


def axes_of_cross_entropy() -> dict[str, list[Any]]:
    """Return the axes of a call, with their values; ``towards`` is the gradient of the loss."""
    axes = pieces.axes_of_piece("relu")
    del axes["infinite"]
    axes["spread"] += [real(1e3, 1e4)]
    return axes | {
        "logits": ["finite", "some are -inf", "some rows are -inf", "some rows are NaN", "ignored rows are NaN"],
        "labels": ["classes", "-inf", "some are ignored", "all are ignored", "some are unknown"],
        "ignore": [None, -100, -1, "a class"],
        "integers": ["int64", "int32", "uint8"],
        "label_smoothing": [0.0, real(0.001, 0.9), below_one(1e-4, 0.1)],
        "towards": [1.0, -2.0, real(0.001, 8)],
        "pulls": ["once", "after another"],
    }


def possible(row: Row) -> bool:
    """Return whether a call can have all of these values, kinds by their least; axes that have no value do not count."""
    ignores, ignore = "ignored" in row.get("labels", ""), row.get("ignore", "a class")
    if ignores and ignore is None:
        return False
    if row.get("integers") == "uint8" and (row.get("width", 1) > 250 or (ignores and ignore != "a class")):
        return False
    repeats = isinstance(row.get("layout"), int)
    if row.get("logits") == "ignored rows are NaN" and (repeats or not (ignores or "labels" not in row)):
        return False
    if (repeats or row.get("spread", 1) < 0.3) and math.prod(row.get("rows", ())) > _ALIKE:
        return False
    return pieces.possible(row)


class CrossEntropyProblem(pieces.PieceProblem):
    """A call of ``mha.vjp`` with the cross-entropy, and its pullback of ``d``."""

    def call(self, arrays: Mapping[str, Any]) -> dict[str, Any]:
        loss, pullback = mha.vjp(mha.cross_entropy, arrays["x"], arrays["labels"], **self.options)
        if self.row["pulls"] == "after another":
            pullback(arrays["another d"])
        d_logits, d_labels = pullback(arrays["d"])
        assert d_labels is None, "cross_entropy returned a gradient of labels, which have none"
        return {"cross_entropy": loss, "cross_entropy d_logits": d_logits}

    def exact(self, floats: Mapping[str, Floats]) -> dict[str, Floats]:
        return {name: x for name, (x, _) in self.expected(floats, "float64", rounds_weights=False).items()}

    def expected(self, floats: Mapping[str, Floats], dtype: str, *, rounds_weights: bool) -> dict[str, Bounded]:
        return bounded(cross_entropy(floats["x"], self.others["labels"], floats["d"], dtype, **self.options), dtype)


def cross_entropy_problem(row: Row, rng: np.random.Generator) -> CrossEntropyProblem:
    """Draw a call whose axes have the values of ``row``."""
    classes, integers, kind = row["width"], np.dtype(row["integers"]), row["logits"]
    ignore = int(rng.integers(classes)) if row["ignore"] == "a class" else row["ignore"]
    labels = np.asarray(rng.integers(classes, size=row["rows"]), dtype=integers)
    floats = {"x": rng.normal(size=(*labels.shape, classes)) * row["spread"], "d": np.asarray(row["towards"])}
    floats["another d"] = -2 * floats["d"]
    options = {"ignore": ignore, "label_smoothing": row["label_smoothing"]}
    problem = CrossEntropyProblem(row, floats, {"labels": labels}, op="cross_entropy", options=options)
    x, flat = floats["x"].reshape(-1, classes), labels.reshape(-1)

    def chosen_rows(share: float = 0.4) -> np.ndarray:
        """Return which rows are chosen; one at least, if there are rows."""
        return (rng.random(flat.size) < share) | (np.arange(flat.size) == rng.integers(max(1, flat.size)))

    if row["labels"] == "some are unknown":
        unknown = (classes, 255) if integers == np.uint8 else (-1, classes, 2**31 - 1)
        chosen = chosen_rows()
        flat[chosen] = rng.choice(unknown, size=chosen.sum() if rng.random() < 0.5 else None)
    elif "ignored" in row["labels"]:
        flat[chosen_rows(1.0 if row["labels"] == "all are ignored" else 0.4)] = ignore
    if kind == "some are -inf":
        x[(rng.random(x.shape) < 0.3) & (np.arange(classes) != flat[:, None])] = -np.inf
    elif kind == "ignored rows are NaN":
        x[flat == ignore] = np.nan
    elif kind != "finite":
        x[chosen_rows(0.2)] = np.nan if kind == "some rows are NaN" else -np.inf
    if row["labels"] == "-inf":
        x[chosen := chosen_rows(), flat[chosen]] = -np.inf
    floats["x"] = repeated(floats["x"], problem.layout("x")[1])
    return problem
