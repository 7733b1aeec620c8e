"""Attention problems from the rows of a covering design."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np

import mha_core as mha

from ..oracle import tolerance
from ..oracle.attention import Floats, attention
from .attention_axes import BATCHES, resolved
from .covering import Row
from .masks import Make
from .options import Options, heads_of, options_of
from .problem import Bounded, Problem

_SPREAD = {"plain": 1.0, "wide": 12.0, "huge": 300.0, "tiny": 1e-6}
"""Factors of the query: "wide" scores need the maximum, the exponentials of "huge" ones overflow without it."""
ARGUMENTS = ("query", "key", "value")


def _array(name: str) -> Any:
    """Return a property of problems: the floating array of this name."""
    return property(lambda problem: problem.floats[name])


@dataclass
class AttentionProblem(Problem):
    """A call of attention; its results are ``out`` and, if the row asks for it, ``lse``."""

    settings: Options = None  # type: ignore[assignment]

    first = "query"
    query, key, value = map(_array, ARGUMENTS)

    def options(self, make: Make) -> dict[str, Any]:
        """Return the options of the call, from arrays that ``make`` makes."""
        arrays = {**self.floats, **self.others}
        return self.settings.make({name: make(x) for name, x in arrays.items() if name not in ARGUMENTS})

    @property
    def oracle(self) -> dict[str, Any]:
        """The same options as the oracle takes them."""
        return self.settings.oracle(self.floats, "float64")

    def map(self, function: Callable[[np.ndarray], np.ndarray]) -> Self:
        """Return the problem with ``function`` applied to every floating array, for example to round it to another dtype."""
        return replace(self, floats={name: function(x) for name, x in self.floats.items()})

    def call(self, arrays: Mapping[str, Any]) -> dict[str, Any]:
        arguments, options = (arrays[name] for name in ARGUMENTS), self.settings.make(arrays)
        if self.row["lse"]:
            return mha.attention_state(*arguments, **options)._asdict()
        return {"out": mha.scaled_dot_product_attention(*arguments, **options)}

    def exact(self, floats: Mapping[str, Floats]) -> dict[str, Floats]:
        arguments = (floats[name] for name in ARGUMENTS)
        out, lse, _ = attention(*arguments, **self.settings.oracle(floats, "float64"))
        return {"out": out, "lse": lse} if self.row["lse"] else {"out": out}

    def expected(self, floats: Mapping[str, Floats], dtype: str, *, rounds_weights: bool) -> dict[str, Bounded]:
        exact = tolerance.exact_attention(
            *(floats[name] for name in ARGUMENTS),
            dtype=dtype,
            rounds_weights=rounds_weights,
            equal_weights=self.row["scores"] == "tiny" or self.row["scale"] == 0,
            **self.settings.oracle(floats, tolerance.compute_dtype(dtype)),
        )
        out = {"out": (exact.out, exact.out_bound)}
        return out | {"lse": (exact.lse, exact.lse_bound)} if self.row["lse"] else out

    def with_poison(self, floats: Mapping[str, Floats]) -> dict[str, Floats]:
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
        sees = np.any(np.broadcast_to(self.settings.visible, self.scores_shape), axis=-1)
        return {"query": ~_reduced(sees, floats["query"].shape[:-1]), "key": key_unseen, "value": value_unseen}

    @property
    def scores_shape(self) -> tuple[int, ...]:
        """The shape of the scores (..., H, L, S); the batch of the values counts."""
        query, key, value = (self.floats[name].shape for name in ARGUMENTS)
        return (*np.broadcast_shapes(query[:-3], key[:-3], value[:-3]), *query[-3:-1], key[-2])

    def unseen(self) -> tuple[np.ndarray, np.ndarray]:
        """Return which keys and which values no query may see, in the shapes of key and value without the last axis."""
        seen: np.ndarray = np.any(np.broadcast_to(self.settings.visible, self.scores_shape), axis=-2)
        kv_heads = self.key.shape[-3]
        seen = np.any(seen.reshape(*seen.shape[:-2], kv_heads, seen.shape[-2] // kv_heads, seen.shape[-1]), axis=-2)
        if self.row["layout"] == "expanded":  # what one element of the batch sees is memory of all
            seen = np.broadcast_to(np.any(seen, axis=tuple(range(seen.ndim - 2)), keepdims=True), seen.shape)
        return ~_reduced(seen, self.key.shape[:-1]), ~_reduced(seen, self.value.shape[:-1])

    def layout(self, name: str) -> tuple[str, int]:
        return self.row["layout"], self.floats[name].ndim - 3 if name in ARGUMENTS else 0


def _reduced(seen: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Return where any element is true that an array of this shape would be broadcast to."""
    seen = np.any(seen, axis=tuple(range(seen.ndim - len(shape))))
    broadcast = tuple(at for at, size in enumerate(shape) if size == 1 < seen.shape[at])
    reduced: np.ndarray = np.any(seen, axis=broadcast, keepdims=True)
    return reduced


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
