"""The cross-entropy and its gradient as problems of a covering design."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

import mha_core as mha

from ..oracle import piece_gradients
from ..oracle.attention import Floats
from ..oracle.losses import cross_entropy
from .attention_problem import repeated
from .kinds import Row, real
from .pieces import PieceProblem, axes_of_piece
from .problem import Bounded

IGNORED = -100
"""The label that does not count, as in torch."""


def axes_of_cross_entropy() -> dict[str, list[Any]]:
    """Return the axes of a call, with their values; ``towards`` is the gradient of the loss."""
    axes = axes_of_piece("relu")
    del axes["infinite"]
    return axes | {
        "logits": ["finite", "some are -inf", "NaN in rows that are ignored"],
        "labels": ["classes", "-inf", "some are ignored", "all are ignored", "some are unknown"],
        "label_smoothing": [0.0, real(0.001, 0.9)],
        "towards": [1.0, -2.0, real(0.001, 8)],
        "pulls": ["once", "after another"],
    }


class CrossEntropyProblem(PieceProblem):
    """A call of ``mha.vjp`` with the cross-entropy, and its pullback of ``d``."""

    def call(self, arrays: Mapping[str, Any]) -> dict[str, Any]:
        loss, pullback = mha.vjp(mha.cross_entropy, arrays["x"], arrays["labels"], **self.options)
        if self.row["pulls"] == "after another":
            pullback(arrays["another d"])
        d_logits, none = pullback(arrays["d"])
        assert none is None, "labels have a gradient"
        return {"cross_entropy": loss, "cross_entropy d_logits": d_logits}

    def expected(self, floats: Mapping[str, Floats], dtype: str, *, rounds_weights: bool) -> dict[str, Bounded]:
        exact = cross_entropy(floats["x"], self.others["labels"], floats["d"], **self.options)
        return piece_gradients.bounded(exact, dtype)


def cross_entropy_problem(row: Row, rng: np.random.Generator) -> CrossEntropyProblem:
    """Draw a call whose axes have the values of ``row``."""
    rows, classes = row["rows"], row["width"]
    labels = np.asarray(rng.integers(classes, size=rows))
    floats: dict[str, Any] = {"x": rng.normal(size=(*rows, classes)) * row["spread"], "d": np.asarray(row["towards"])}
    floats["another d"] = -2 * floats["d"]
    options = {"ignore": IGNORED, "label_smoothing": row["label_smoothing"]}
    problem = CrossEntropyProblem(row, floats, {"labels": labels}, op="cross_entropy", options=options)
    x, flat, axis = floats["x"].reshape(-1, classes), labels.reshape(-1), np.arange(classes)
    some = rng.random(flat.size) < 0.4
    if row["logits"] == "some are -inf":
        x[(rng.random(x.shape) < 0.3) & (axis != flat[:, None])] = -np.inf
    if row["labels"] == "-inf" and classes > 1:
        x[some, flat[some]] = -np.inf
    elif row["labels"] == "some are unknown":
        flat[some] = rng.choice([-1, classes, 2**31 - 1])
    elif "ignored" in row["labels"]:
        flat[some | (row["labels"] == "all are ignored")] = IGNORED
    repeats = problem.layout("x")[1]
    if row["logits"] == "NaN in rows that are ignored" and not repeats:
        x[flat == IGNORED] = np.nan
    floats["x"] = repeated(x.reshape(floats["x"].shape), repeats)
    return problem
