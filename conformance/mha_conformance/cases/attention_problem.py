"""Attention problems from the rows of a covering design."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

import mha_core as mha

from ..oracle import tolerance
from ..oracle.attention import Floats, attention
from .attention_axes import BATCHES, batch_shape, resolved
from .covering import Row
from .options import Options, heads_of, options_of
from .problem import Bounded, Problem

_SPREAD = {"plain": 1.0, "wide": 12.0, "huge": 300.0, "tiny": 1e-6}
"""Factors of the query: "wide" scores need the maximum, the exponentials of "huge" ones overflow without it."""
_GIVEN = ("query", "key", "value")


@dataclass
class AttentionProblem(Problem):
    """A call of attention; its results are ``out`` and, if the row asks for it, ``lse``."""

    options: Options = None  # type: ignore[assignment]

    first = "query"

    def call(self, arrays: Mapping[str, Any]) -> dict[str, Any]:
        given, options = (arrays[name] for name in _GIVEN), self.options.make(arrays)
        if self.row["lse"]:
            return mha.attention_state(*given, **options)._asdict()
        return {"out": mha.scaled_dot_product_attention(*given, **options)}

    def exact(self, floats: Mapping[str, Floats]) -> dict[str, Floats]:
        given = (floats[name] for name in _GIVEN)
        out, lse, _ = attention(*given, **self.options.oracle(floats, "float64"))
        return {"out": out, "lse": lse} if self.row["lse"] else {"out": out}

    def expected(self, floats: Mapping[str, Floats], dtype: str, *, rounds_weights: bool) -> dict[str, Bounded]:
        exact = tolerance.exact_attention(
            *(floats[name] for name in _GIVEN),
            dtype=dtype,
            rounds_weights=rounds_weights,
            equal_weights=self.row["scores"] == "tiny" or self.row["scale"] == 0,
            **self.options.oracle(floats, tolerance.compute_dtype(dtype)),
        )
        found = {"out": (exact.out, exact.out_bound)}
        return found | {"lse": (exact.lse, exact.lse_bound)} if self.row["lse"] else found

    def poisoned(self, floats: Mapping[str, Floats]) -> dict[str, Floats]:
        key_unseen, value_unseen = self.unseen()
        key, value = floats["key"].copy(), floats["value"].copy()
        key[key_unseen], value[value_unseen] = np.nan, np.inf
        return {**floats, "key": key, "value": value}

    @property
    def steepness(self) -> float:  # type: ignore[override]
        return 2 * _SPREAD[self.row["scores"]] if self.row["scores"] == "wide" else 2.0

    def sizes(self, floats: Mapping[str, Floats]) -> dict[str, float]:
        values = float(np.sqrt(np.mean(floats["value"] ** 2))) if floats["value"].size else 0.0
        return {"out": values, "lse": 1.0}

    def constant(self, floats: Mapping[str, Floats]) -> dict[str, np.ndarray]:
        key_unseen, value_unseen = self.unseen()
        seen = np.any(self.options.visible, axis=-1)
        shape = (*batch_shape(self.row), heads_of(self.row), self.row["queries"])
        return {
            "query": ~_reduced(np.broadcast_to(seen, shape), floats["query"].shape[:-1]),
            "key": key_unseen,
            "value": value_unseen,
        }

    def unseen(self) -> tuple[np.ndarray, np.ndarray]:
        """Return which keys and which values no query may see, in the shapes of key and value without the last axis."""
        row, key, value = self.row, self.floats["key"], self.floats["value"]
        shape = (*batch_shape(row), heads_of(row), row["queries"], row["keys"])
        seen: np.ndarray = np.any(np.broadcast_to(self.options.visible, shape), axis=-2)
        seen = np.any(seen.reshape(*seen.shape[:-2], row["kv_heads"], row["groups"], row["keys"]), axis=-2)
        if row["layout"] == "expanded":  # what one element of the batch sees is memory of all
            seen = np.broadcast_to(np.any(seen, axis=tuple(range(seen.ndim - 2)), keepdims=True), seen.shape)
        return ~_reduced(seen, key.shape[:-1]), ~_reduced(seen, value.shape[:-1])

    def layout(self, name: str) -> tuple[str, int]:
        return self.row["layout"], self.floats[name].ndim - 3 if name in _GIVEN else 0


def _reduced(seen: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Return where any element is true that an array of this shape would be broadcast to."""
    seen = np.any(seen, axis=tuple(range(seen.ndim - len(shape))))
    found: np.ndarray = np.any(
        seen, axis=tuple(at for at, size in enumerate(shape) if size == 1 < seen.shape[at]), keepdims=True
    )
    return found


def attention_problem(row: Row, structure: np.random.Generator, rng: np.random.Generator) -> AttentionProblem:
    """Draw a problem whose axes have the values of ``row``: see ``options_of`` for the two generators."""
    row = resolved(row)
    of_query, of_key, of_value = BATCHES[row["batch"]]
    value_dim = row["head_dim"] if row["value_dim"] == "the same" else row["value_dim"]
    expanded = row["layout"] == "expanded"

    def normal(batch: tuple[int, ...], *shape: int) -> np.ndarray:
        if expanded:  # all elements of the batch are one array
            return np.broadcast_to(rng.normal(size=shape), (*batch, *shape)).copy()
        return rng.normal(size=(*batch, *shape))

    options = options_of(row, structure, rng)
    floats = {
        "query": normal(of_query, heads_of(row), row["queries"], row["head_dim"]) * _SPREAD[row["scores"]],
        "key": normal(of_key, row["kv_heads"], row["keys"], row["head_dim"]),
        "value": normal(of_value, row["kv_heads"], row["keys"], value_dim) * row["values"],
    }
    return AttentionProblem(
        row, floats | options.floats, options.others, frozenset(options.floats) if row["wide"] else frozenset(), options
    )
