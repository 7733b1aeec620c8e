"""Attention weights as problems of a covering design: those of attention without values, with some rows and columns or all."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

import mha_core as mha

from ..oracle import tolerance
from ..oracle.attention import Floats, attention
from . import attention_axes
from .attention_axes import PLAIN_BATCHES, resolved, shared_batch
from .attention_problem import AttentionProblem, attention_problem
from .kinds import Kind, Row, some
from .problem import Bounded

TRIPLES_OF_WEIGHTS = (("rows", "cols", "lse"), ("rows", "queries", "band"), ("cols", "keys", "band"), ("cols", "sink", "lse"))
_PARTS = ["all", "slice", "indices", some("one or none", "one", "one", "one", "none")]
"""Which rows, or which columns, are chosen; each problem draws them from all that there are."""
_WITHOUT_VALUES: Row = {"value_dim": 1, "values": 1.0, "layout of value": "contiguous"}


def _shared_batch(rng: np.random.Generator) -> tuple[tuple[int, ...], ...]:
    of_query, of_key, _ = shared_batch(rng)
    return of_query, of_key, of_key


@dataclass
class WeightsProblem(AttentionProblem):
    """A call of attention weights; its result is ``weights``. It is given lse if the row says so."""

    part: tuple[Any, Any] = (slice(None), slice(None))
    """``rows`` and ``cols`` of the call."""

    def call(self, arrays: Mapping[str, Any]) -> dict[str, Any]:
        options = {**dict(zip(("rows", "cols"), self.part, strict=True)), **self.settings.make(arrays)}
        return {"weights": mha.attention_weights(arrays["query"], arrays["key"], arrays.get("lse"), **options)}

    def derived(self, floats: Mapping[str, Floats]) -> dict[str, Floats]:
        if not self.row["lse"]:
            return {}
        _, lse, _ = attention(floats["query"], floats["key"], _no_value(floats), **self.settings.oracle(floats, "float64"))
        return {"lse": lse}

    def expected(self, floats: Mapping[str, Floats], dtype: str, *, rounds_weights: bool) -> dict[str, Bounded]:
        wide = tolerance.compute_dtype(dtype)
        options = self.settings.oracle(floats, wide)
        kept = options.pop("kept_weights", 1.0)
        exact = tolerance.exact_attention(
            floats["query"], floats["key"], _no_value(floats), dtype=dtype, equal_weights=self.equal_weights, **options
        )
        p, bound = exact.weights, exact.weights_bound
        if "lse" in floats:  # it is rounded once more, and so is its difference from a score
            size = 1 + np.abs(np.where(np.isfinite(exact.lse), exact.lse, 0))[..., None]
            log_p = np.log(np.maximum(p, np.finfo(float).tiny))
            bound = np.where(p > 0, bound + 4 * tolerance.UNIT_ROUNDOFF[wide] * p * (size - log_p), 0)
        rows, cols = self.part
        p, bound = ((x * kept)[..., rows, :][..., cols] for x in (p, bound))
        return {"weights": (p, bound)}


def _no_value(floats: Mapping[str, Floats]) -> Floats:
    return np.zeros((*floats["key"].shape[:-1], 1))


def axes_of_weights(handles: Iterable[str], half: bool) -> dict[str, list[Any]]:
    """Return the axes of the problems that a kernel of ``attention_weights`` with these features must compute."""
    has = frozenset(handles)
    axes = attention_axes.axes_of(has - {"broadcast"}, half=half)
    del axes["value_dim"], axes["values"], axes["layout of value"]
    shared = [Kind("shared", _shared_batch, ((2,), (1,), (1,)))] if "broadcast" in has else []
    parts = dict.fromkeys(("rows", "cols"), _PARTS)
    return axes | {"batch": [*PLAIN_BATCHES, *shared], "lse": [False, True], **parts}


def weights_problem(row: Row, structure: np.random.Generator, rng: np.random.Generator) -> WeightsProblem:
    """Draw a problem whose axes have the values of ``row``: see ``options_of`` for the two generators."""
    row = resolved(row)
    made = attention_problem(row | _WITHOUT_VALUES, structure, rng)
    floats = {name: x for name, x in made.floats.items() if name != "value"}
    part = part_of(row["rows"], row["queries"], structure), part_of(row["cols"], row["keys"], structure)
    return WeightsProblem(row, floats, made.others, made.wide | {"lse"}, made.settings, part)


def part_of(kind: str, length: int, rng: np.random.Generator) -> slice | list[int]:
    """Return a slice with steps of either sign, or indices, of which one occurs twice: counted from the start and the end."""
    if kind == "all":
        return slice(None)
    if kind == "slice":
        low, high = (int(at) for at in np.sort(rng.integers(0, length + 1, size=2)))
        step = int(rng.choice([1, 1, 2, 3, -1, -2]))
        return slice(low, high - length or None, step) if step > 0 else slice(high - length - 1, low - 1 if low else None, step)
    if kind == "none" or not length:
        return []
    if kind == "one":
        return [int(rng.integers(-length, length))]
    chosen = rng.integers(0, length, size=int(np.exp(rng.uniform(0, np.log(length + 1)))))
    return [int(at) for at in rng.permutation([*chosen, chosen[0] - length])]
