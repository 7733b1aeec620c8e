"""Attention problems from the rows of a covering design."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Self
from zlib import crc32

import numpy as np

import mha_core as mha
from mha_core.shared import backend_of

from ..oracle import tolerance
from ..oracle.attention import Floats, attention
from ..oracle.reference import rounded_to_int8
from .attention_axes import LAYOUTS, batches_of, resolved
from .kinds import Row
from .masks import Make
from .options import Options, heads_of, options_of
from .problem import Bounded, Problem

_SPREAD = {"plain": 1.0, "wide": 12.0, "huge": 300.0, "tiny": 1e-6}
"""Factors of the query: "wide" scores need the maximum, the exponentials of "huge" ones overflow without it."""
ARGUMENTS = ("query", "key", "value")
_CORE_AXES = {**dict.fromkeys((*ARGUMENTS, "d_out"), 3), "d_lse": 2}
"""The number of axes that are no batch axes; other arrays are not expanded."""
_LAYOUT_OF = {
    "key": "layout of key",
    "value": "layout of value",
    "query": "layout",
    "d_out": "layout of d",
    "d_lse": "layout of d",
}
"""The axis of a row that has an array's layout."""


def _array(name: str) -> Any:
    """Return a property of problems: the floating array of this name."""
    return property(lambda problem: problem.floats[name])


@dataclass
class AttentionProblem(Problem):
    """A call of attention; its results are ``out`` and, if the row asks for it, ``lse``."""

    settings: Options = None  # type: ignore[assignment]

    first = "query"
    query, key, value = map(_array, ARGUMENTS)

    def __str__(self) -> str:
        return "; ".join([super().__str__(), *self.settings.functions])

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
        arguments, options = [arrays[name] for name in ARGUMENTS], self.settings.make(arrays)
        if self.row.get("int8"):
            arguments[1:] = map(_in_int8, arguments[1:])
        if self.row["lse"]:
            state = mha.attention_state(*arguments, **options)
            if not isinstance(state, mha.AttentionState):
                raise TypeError(f"the kernel returned {type(state).__name__}; expected AttentionState(out, lse)")
            return state._asdict()
        return {"out": mha.scaled_dot_product_attention(*arguments, **options)}

    def exact(self, floats: Mapping[str, Floats]) -> dict[str, Floats]:
        out, lse, _ = attention(*self._numbers(floats, "float64"), **self.settings.oracle(floats, "float64"))
        return {"out": out, "lse": lse} if self.row["lse"] else {"out": out}

    def expected(self, floats: Mapping[str, Floats], dtype: str, *, rounds_weights: bool) -> dict[str, Bounded]:
        exact = tolerance.exact_attention(
            *self._numbers(floats, tolerance.compute_dtype(dtype)),
            dtype=dtype,
            rounds_weights=rounds_weights,
            equal_weights=self.equal_weights,
            **self.settings.oracle(floats, tolerance.compute_dtype(dtype)),
        )
        out = {"out": (exact.out, exact.out_bound)}
        return out | {"lse": (exact.lse, exact.lse_bound)} if self.row["lse"] else out

    def _numbers(self, floats: Mapping[str, Floats], arithmetic: str) -> list[Floats]:
        """Return query, key and value, the last two as ``quantize_rows`` rounds them if they are in int8."""
        query, *rows = (floats[name] for name in ARGUMENTS)
        return [query, *(rounded_to_int8(x, arithmetic, group=x.shape[-1]) if self.row.get("int8") else x for x in rows)]

    def with_poison(self, floats: Mapping[str, Floats]) -> dict[str, Floats]:
        named = dict(floats)
        for name, unseen in self.unseen().items():
            named[name] = np.where(unseen[..., None], np.nan if name == "key" else np.inf, floats[name])
        return named

    @property
    def equal_weights(self) -> bool:
        """Whether all weights of a row are nearly equal."""
        return self.row["scores"] == "tiny" or self.row["scale"] == 0 or self.key.ndim - 2 in self.layout("key")[1]

    @property
    def steepness(self) -> float:  # type: ignore[override]
        return 2 * _SPREAD[self.row["scores"]] if self.row["scores"] == "wide" else 2.0

    def sizes(self, floats: Mapping[str, Floats]) -> dict[str, float]:
        values = float(np.sqrt(np.mean(floats["value"] ** 2))) if floats["value"].size else 0.0
        return {"out": values, "lse": 1.0}

    def constant(self, floats: Mapping[str, Floats]) -> dict[str, np.ndarray]:
        sees = np.any(np.broadcast_to(self.settings.visible, self.scores_shape), axis=-1)
        return {"query": ~_reduced(sees, floats["query"].shape[:-1]), **self.unseen()}

    @property
    def scores_shape(self) -> tuple[int, ...]:
        """The shape of the scores (..., H, L, S); the batch of the values counts."""
        batches = (self.floats[name].shape[:-3] for name in ARGUMENTS if name in self.floats)
        return (*np.broadcast_shapes(*batches), *self.query.shape[-3:-1], self.key.shape[-2])

    def unseen(self) -> dict[str, np.ndarray]:
        """Return which keys and which values no query may see, in the shapes of key and value without the last axis."""
        seen: np.ndarray = np.any(np.broadcast_to(self.settings.visible, self.scores_shape), axis=-2)
        kv_heads = self.key.shape[-3]
        seen = np.any(seen.reshape(*seen.shape[:-2], kv_heads, seen.shape[-2] // kv_heads, seen.shape[-1]), axis=-2)
        shapes = {name: self.floats[name].shape[:-1] for name in ("key", "value") if name in self.floats}
        return {name: ~self._in_memory(name, _reduced(seen, shape)) for name, shape in shapes.items()}

    def _in_memory(self, name: str, seen: np.ndarray, some: Any = np.any) -> np.ndarray:
        """Return which rows of an array are seen, where what is seen of one is memory of all along axes of stride 0."""
        axes = tuple(axis for axis in self.layout(name)[1] if axis < seen.ndim)
        return np.broadcast_to(some(seen, axis=axes, keepdims=True), seen.shape) if axes else seen

    def layout(self, name: str) -> tuple[str, tuple[int, ...]]:
        axis = _LAYOUT_OF.get(name, "layout of options")
        layout = self.row[axis if axis in self.row else "layout"]
        if layout == "each its own":
            return LAYOUTS[crc32(name.encode()) % len(LAYOUTS)], ()
        batch = self.floats[name].ndim - _CORE_AXES[name] if name in _CORE_AXES else 0
        if isinstance(layout, str):
            return layout, tuple(range(batch)) if layout == "expanded" else ()
        at = batch + 3 + layout  # of heads, rows and features
        return "expanded", (at,) if name in _CORE_AXES and at < self.floats[name].ndim else ()


def _in_int8(x: Any) -> mha.Int8Rows:
    """Return keys or values in int8 as they lie in a cache: behind them, there is room for more."""
    xp = backend_of({"x": x}).xp
    return mha.quantize_rows(x).map(lambda y: xp.concat([y, y], axis=-2)[..., : x.shape[-2], :])


def repeated(x: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
    """Return the array with its first element along some axes in place of all others."""
    first = x[tuple(slice(0, 1) if axis in axes else slice(None) for axis in range(x.ndim))]
    return np.broadcast_to(first, x.shape).copy() if 0 not in x.shape else x


def _reduced(seen: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Return where any element is true that an array of this shape would be broadcast to."""
    seen = np.any(seen, axis=tuple(range(seen.ndim - len(shape))))
    broadcast = tuple(at for at, size in enumerate(shape) if size == 1 < seen.shape[at])
    reduced: np.ndarray = np.any(seen, axis=broadcast, keepdims=True)
    return reduced


def attention_problem(row: Row, structure: np.random.Generator, rng: np.random.Generator) -> AttentionProblem:
    """Draw a problem whose axes have the values of ``row``: see ``options_of`` for the two generators."""
    row = resolved(row)
    of_query, of_key, of_value = batches_of(row)
    value_dim = row["head_dim"] if row["value_dim"] == "the same" else row["value_dim"]

    def normal(batch: tuple[int, ...], *shape: int) -> np.ndarray:
        return rng.normal(size=(*batch, *shape))

    options = options_of(row, structure, rng)
    floats = {
        "query": normal(of_query, heads_of(row), row["queries"], row["head_dim"]) * _SPREAD[row["scores"]],
        "key": normal(of_key, row["kv_heads"], row["keys"], row["head_dim"]),
        "value": normal(of_value, row["kv_heads"], row["keys"], value_dim) * row["values"],
    }
    wide = frozenset(options.floats) if row["wide"] else frozenset()
    problem = AttentionProblem(row, floats | options.floats, options.others, wide, options)
    problem.floats |= {name: repeated(x, problem.layout(name)[1]) for name, x in floats.items()}
    return problem
