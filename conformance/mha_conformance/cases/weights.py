"""Attention weights as problems: all of them or some rows and columns, with lse or without."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import mha_core as mha

from ..oracle import tolerance
from ..oracle.attention import Floats, attention
from .attention_problem import AttentionProblem
from .problem import Bounded


@dataclass
class WeightsProblem(AttentionProblem):
    """A call of attention weights; its result is ``weights``. It is given ``lse`` if that is one of its arrays."""

    part: Mapping[str, Any] = field(default_factory=dict)
    """``rows`` and ``cols`` of the call; by default, all."""

    def call(self, arrays: Mapping[str, Any]) -> dict[str, Any]:
        options = {**self.part, **self.settings.make(arrays)}
        return {"weights": mha.attention_weights(arrays["query"], arrays["key"], arrays.get("lse"), **options)}

    def expected(self, floats: Mapping[str, Floats], dtype: str, *, rounds_weights: bool) -> dict[str, Bounded]:
        wide = tolerance.compute_dtype(dtype)
        options = self.settings.oracle(floats, wide)
        exact = tolerance.exact_attention(floats["query"], floats["key"], _no_value(floats), dtype=dtype, **options)
        p, bound = exact.weights, exact.weights_bound
        if "lse" in floats:  # it is rounded once more, and so is its difference from a score
            size = 1 + np.abs(np.where(np.isfinite(exact.lse), exact.lse, 0))[..., None]
            log_p = np.log(np.maximum(p, np.finfo(float).tiny))
            bound = np.where(p > 0, bound + 4 * tolerance.UNIT_ROUNDOFF[wide] * p * (size - log_p), 0)
        rows, cols = self.part.get("rows", slice(None)), self.part.get("cols", slice(None))
        return {"weights": (p[..., rows, :][..., cols], bound[..., rows, :][..., cols])}


def _no_value(floats: Mapping[str, Floats]) -> Floats:
    return np.zeros((*floats["key"].shape[:-1], 1))


def weights_of(problem: AttentionProblem, part: Mapping[str, Any] | None = None, *, lse: bool = False) -> WeightsProblem:
    """Return the weights of an attention problem; with ``lse``, its arrays must be rounded to the dtype of the call before."""
    floats = {name: x for name, x in problem.floats.items() if name != "value"}
    if lse:
        _, floats["lse"], _ = attention(floats["query"], floats["key"], _no_value(floats), **problem.oracle)
    wide = problem.wide | {"lse"}
    return WeightsProblem(problem.row, floats, problem.others, wide, settings=problem.settings, part=part or {})
