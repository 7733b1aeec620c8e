"""Gradients of attention as problems of a covering design: those of attention, with gradients of out, of lse, or of both.

Some problems are a part of a greater one, as on a ring of processes: the state is that of the part's keys and of more. In the
oracle these are one more key, of zeros, so that it adds nothing to the gradient of the query.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

import numpy as np

import mha_core as mha
from mha_core.shared import attention_gradients as attention_gradients_of_state

from ..oracle.attention import Floats, attention
from ..oracle.attention_gradients import Bounded, by_bucket, gradient_bounds, summed_to
from ..oracle.tolerance import compute_dtype
from . import attention_axes
from .attention_axes import LAYOUTS, batch_shape, resolved
from .attention_problem import ARGUMENTS, AttentionProblem, attention_problem, repeated
from .features import row_with
from .kinds import Row, some
from .options import heads_of

TRIPLES_OF_GRADIENTS = (
    ("wanted", "towards", "groups"),
    ("wanted", "bias", "d_bias"),
    ("keys", "wanted", "d_sink"),
    ("state", "wanted", "keys"),
)
_WANTED = ("query, key, value", "query", "key, value", "value", "query, key", "no argument")
"""The arguments whose gradients are wanted; ``d_bias`` and ``d_sink`` of a row add the options."""


@dataclass
class AttentionGradientProblem(AttentionProblem):
    """A call of ``mha.vjp`` and its pullback; its results are the wanted gradients, as ``d_query`` and so on."""

    @property
    def wanted(self) -> frozenset[str]:
        """The names of the arguments and options whose gradients are wanted."""
        options = {"bias": self.settings.learned, "sink": {"sink"} & self.floats.keys()}
        chosen = {name for name, given in options.items() if given and self.row[f"d_{name}"]}
        return frozenset({name for name in ARGUMENTS if name in self.row["wanted"]} | chosen or ARGUMENTS)

    @property
    def wide_results(self) -> frozenset[str]:  # type: ignore[override]
        return frozenset(f"d_{name}" for name in self._wide_options())

    def _wide_options(self) -> frozenset[str]:
        return frozenset({"table": "bias"}.get(name, name) for name in self.wide - {"d_lse", "lse"})

    @property
    def of_part(self) -> bool:
        """Whether the state is that of more keys."""
        return bool(self.row.get("state") == "of more keys")

    def derived(self, floats: Mapping[str, Floats]) -> dict[str, Floats]:
        if not self.of_part:
            return {}
        arguments, options = self._with_one_more_key(floats, self.settings.oracle(floats, "float64"))
        return dict(zip(("out", "lse"), attention(*arguments, **options), strict=False))

    def _with_one_more_key(self, floats: Mapping[str, Floats], options: dict[str, Any]) -> tuple[list[Floats], dict[str, Any]]:
        """Return query, key and value, and the oracle's options, with a further key of zeros."""
        query, key, value = (floats[name] for name in ARGUMENTS)  # a score function leaves the score of such a key as it is
        more = {"allowed": True, "bias": 0.0, "kept_weights": 1.0}
        for name, filled in more.items():
            if options.get(name) is not None:
                options[name] = _appended(np.broadcast_to(options[name], self.scores_shape), filled, -1)
        return [query, _appended(key, 0.0, -2), _appended(value, self.row["values"], -2)], options

    def call(self, arrays: Mapping[str, Any]) -> dict[str, Any]:
        given, options = [arrays[name] for name in ARGUMENTS], self.settings.make(arrays)
        towards, wanted = self.row["towards"], self.wanted
        d: list[Any] = [arrays.get(name) for name in ("d_out", "d_lse")]
        if self.of_part:
            state = (arrays[name] for name in ("out", "lse"))
            named = attention_gradients_of_state(*given, None, *state, *d, wanted=wanted, **options)._asdict()
            return self._named(named)
        fixed = {name: options.pop(name) for name in ("bias", "sink") if name in options and name not in wanted}
        operation = partial(mha.scaled_dot_product_attention if towards == "out" else mha.attention_state, **fixed)
        _, pullback = mha.vjp(operation, *given, wrt=lambda name: name in wanted, **options)
        if self.row.get("state") == "after another pullback":  # which must not change what the pullback keeps
            another: list[Any] = [None if x is None else x * -2 for x in d]
            pullback(another[0] if towards == "out" else mha.AttentionState(*another))
        gradients = pullback(d[0] if towards == "out" else mha.AttentionState(*d))
        named = dict(zip(ARGUMENTS, gradients, strict=True)) | dict(gradients.options)
        if "bias" in wanted and "table" in self.floats:
            named["bias"] = named["bias"].table
        if "bias" in wanted and self.settings.of_score:
            named["bias"] = named["bias"].inputs
        return self._named(named)

    def _named(self, gradients: Mapping[str, Any]) -> dict[str, Any]:
        unwanted = sorted(name for name, x in gradients.items() if x is not None and name not in self.wanted)
        assert not unwanted, f"gradients of {', '.join(unwanted)} were returned, but not wanted"
        names = self.settings.of_score if "bias" in self.wanted else ()
        if names:
            of_arrays = dict(zip(names, gradients["bias"], strict=True))
            without = {name for name, x in of_arrays.items() if x is None}
            assert without == {*names} - self.floats.keys(), f"no gradients of {', '.join(sorted(without))}"
            gradients = {**gradients, **of_arrays}
        return {f"d_{name}": gradients[name] for name in self._results}

    @property
    def _results(self) -> list[str]:
        """The names of the arrays that have gradients among the results."""
        arrays = self.settings.learned if "bias" in self.wanted and self.settings.of_score else set()
        return sorted((self.wanted - {"bias"} if arrays else self.wanted) | arrays)

    def exact(self, floats: Mapping[str, Floats]) -> dict[str, Floats]:
        return {name: x for name, (x, _) in next(self._stages(floats, "float64", rounds_weights=False)).items()}

    def expected(self, floats: Mapping[str, Floats], dtype: str, *, rounds_weights: bool) -> dict[str, Bounded]:
        return [*self.bounds(floats, dtype, rounds_weights=rounds_weights)][-1]

    def bounds(self, floats: Mapping[str, Floats], dtype: str, *, rounds_weights: bool) -> Iterator[dict[str, Bounded]]:
        return islice(self._stages(floats, dtype, rounds_weights=rounds_weights), 1, None)

    def _stages(self, floats: Mapping[str, Floats], dtype: str, *, rounds_weights: bool) -> Iterator[dict[str, Bounded]]:
        """Yield the exact gradients with bounds of 0, and then what ``bounds`` yields."""
        arguments, options = [floats[name] for name in ARGUMENTS], self.settings.oracle(floats, compute_dtype(dtype))
        if self.of_part:
            arguments, options = self._with_one_more_key(floats, options)
        query, key, value = arguments
        for named in gradient_bounds(
            query,
            key,
            value,
            floats.get("d_out"),
            floats.get("d_lse"),
            dtype=dtype,
            rounds_weights=rounds_weights,
            of_bias=self._of_bias if self.floats.keys() & {"bias", "table"} else None,
            wide=self._wide_options(),
            **options,
        ):
            if self.of_part:
                named |= {
                    name: (x[..., :-1, :], bound[..., :-1, :]) for name in ("key", "value") for x, bound in (named[name],)
                }
            yield {f"d_{name}": named[name] for name in self._results}

    def _of_bias(self, d_scores: Floats) -> Floats:
        d_scores = d_scores[..., : self.scores_shape[-1]]
        if "bias" in self.floats:
            return summed_to(d_scores, self.floats["bias"].shape)
        return by_bucket(d_scores, self.settings.buckets, self.floats["table"].shape)

    def with_poison(self, floats: Mapping[str, Floats]) -> dict[str, Floats]:
        """Return the arrays with NaN in what no query may see, and in the gradients of queries that see nothing."""
        named = super().with_poison(floats)
        if self.of_part:  # every query has seen a key
            return named
        blind = ~np.any(np.broadcast_to(self.settings.visible, self.scores_shape), axis=-1)
        for name in {"d_out", "d_lse"} & named.keys():
            if name == "d_out" or "sink" not in floats:  # with a sink, lse is that of the sink
                named[name] = named[name].copy()
                named[name][self._in_memory(name, blind, np.all)] = np.nan
        return named


def axes_of_gradients(handles: Iterable[str], half: bool) -> dict[str, list[Any]]:
    """Return the axes of the problems that a kernel of ``attention_vjp`` with these features must compute."""
    has = frozenset(handles)
    axes = attention_axes.axes_of(has - {"lse"}, half=half)
    del axes["lse"]
    return axes | {
        "layout of d": [*LAYOUTS, "expanded", some("stride 0", -3, -1)],
        "towards": ["out", "out of a state", *(["both", "lse"] if "d_lse" in has else [])],
        "wanted": list(_WANTED),
        "d_bias": [False, *([True] if "d_bias" in has else [])],
        "d_sink": [False, *([True] if "d_sink" in has else [])],
        "state": ["its own", "after another pullback", "of more keys"],
    }


def possible(row: Row) -> bool:
    """Return whether a problem can have all of these values; a state of more keys has the sink too, if there is one."""
    part = row.get("state") == "of more keys"
    return attention_axes.possible(row) and not (part and row.get("sink", "none") != "none")


def plain_row(handles: Iterable[str], **changes: Any) -> Row:
    """Return a row with grouped queries, wide values and both gradients, as far as these features allow, and ``changes``."""
    has = frozenset(handles)
    gradients = {"d_bias": "d_bias" in has, "d_sink": "d_sink" in has, "wanted": _WANTED[0]}
    gradients["towards"] = "both" if "d_lse" in has else "out"
    return {**row_with(has & {"grouped_query", "value_dim"}, queries=7, **gradients), **changes}


def attention_gradient_problem(row: Row, structure: np.random.Generator, rng: np.random.Generator) -> AttentionGradientProblem:
    """Draw a problem whose axes have the values of ``row``: see ``options_of`` for the two generators."""
    row = {**resolved(row), "lse": False}
    made = attention_problem(row, structure, rng)
    shape = (*batch_shape(row), heads_of(row), row["queries"], made.floats["value"].shape[-1])
    problem = AttentionGradientProblem(row, made.floats, made.others, made.wide | {"d_lse", "lse"}, made.settings)
    for name, size, given in (
        ("d_out", shape, row["towards"] != "lse"),
        ("d_lse", shape[:-1], row["towards"] in ("both", "lse")),
    ):
        if given:
            problem.floats[name] = rng.normal(size=size)
            problem.floats[name] = repeated(problem.floats[name], problem.layout(name)[1])
    return problem


def _appended(x: np.ndarray, filled: Any, axis: int) -> np.ndarray:
    """Return an array with one place more along an axis."""
    width = [(0, 0)] * x.ndim
    width[axis] = (0, 1)
    return np.pad(x, width, constant_values=filled)
