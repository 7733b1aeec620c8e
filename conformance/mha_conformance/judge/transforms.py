"""A kernel under the transforms of its library: gradients, forward gradients, and mapping over an axis.

A gradient is judged along one random direction of all its inputs: the sum of gradient times direction is the derivative of the
results along it, which the oracle finds by differences. The error that is allowed is that of the differences, that of sums of
as many terms in the dtype, and what the derivative changes by when the inputs are moved at random by a few roundings.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np

import mha_core as mha

from ..cases.layer_axes import HEAD_NORMS, POST_NORMS
from ..cases.problem import Problem
from ..oracle import tolerance
from ..report.evidence import COVERED, evidence
from .designed import DESIGNS, counts_of, design_of, drawn
from .held import Judge, KernelJudge, noted

PROBLEMS, QUICK_PROBLEMS = 120, 12
"""The number of problems of a kernel under one transform, of those of its covering design."""
_STEP = 2.0**-22
"""The step of the differences, relative to the size of an array: few numbers of a relu are as close to 0."""
_ROUNDINGS = 4.0
"""Roundings by which inputs are moved."""
_SAFETY = 8.0
_SMOOTH: dict[str, tuple[Any, ...]] = {
    "room": ("small",),
    "values": (1.0,),
    "scores": ("plain", "wide", "tiny"),
    "head_dim": (1, 4, 8, 33),
    "value_dim": ("the same", 5, 16, 64),
    "width": (4, 10, 16, 64, 65),
    "spread": (1.0, 1e-3),
    "mean": (0.0,),
    **dict.fromkeys(("infinite", "NaN"), (False,)),
    **dict.fromkeys(("eps", *(f"eps of {name}" for name in ("norm_1", "norm_2", *HEAD_NORMS, *POST_NORMS))), (1e-5, 0.5)),
    "d_model": (20, 65),
    "keep": ("array",),
    "outputs": (1, 17),
    "d_ff": (24,),
    "weights": ("floats",),
}
"""The values of some axes for which differences tell a derivative: a norm of two features, or huge scores, have steps."""
_MAPPED = 3
"""The length of the axis that ``vmap`` maps over."""

Floats = Mapping[str, np.ndarray]


def judge_transform(
    judge: Judge, transform: str, apply: Callable[..., Any], op: str, kernel: str, features: Iterable[str]
) -> KernelJudge:
    """Judge a kernel, or the algebra, under a transform, on small problems of its covering design.

    ``apply`` is the transform as ``Backend.transforms`` has it.
    """
    judged = {"gradient": _gradient, "forward_gradient": _forward_gradient, "vmap": _vmap}[transform]
    given = DESIGNS[op].axes(features, tolerance.is_half(judge.dtype))
    more = {name: values for name, values in _SMOOTH.items() if name in given} | {"inputs": ("all", "first", "rest", "one")}
    if "term" in given:  # a map of tiles is made before a transform, which may hide numbers
        more["term"] = tuple(value for value in given["term"] if value != "function with a map")
    design = design_of(op, features, judge.dtype, judge.rng, more=more)
    counted = design.counted()
    of_kernel = judge.of(op, kernel)
    most = math.ceil(judge.part * (QUICK_PROBLEMS if judge.quick else PROBLEMS))
    for row in islice(design, most):
        seed = int(judge.rng.integers(2**32))
        count = _MAPPED if transform == "vmap" else 1
        problems = [drawn(op, row, np.random.default_rng(seed), judge.rng) for _ in range(count)]
        try:
            with noted(f"the problem: {problems[0]}"):
                judged(of_kernel, apply, problems)
            of_kernel.computed += 1
            counted.add(row)
        except mha.KernelUnsupported as error:
            of_kernel.refuse(error)
    evidence.add(COVERED, (f"{transform} of {op} by {kernel}", judge.dtype), counts_of(of_kernel, counted))
    return of_kernel


def _function(
    judge: KernelJudge, problem: Problem, arrays: Mapping[str, Any], names: Sequence[str]
) -> Callable[..., tuple[Any, ...]]:
    """Return a function of some arrays that computes the problem."""

    def function(*inputs: Any) -> tuple[Any, ...]:
        with mha.use_kernel(judge.op, judge.kernel):
            return tuple(problem.call({**arrays, **dict(zip(names, inputs, strict=True))}).values())

    return function


def _direction(x: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return random numbers as large as those of an array, since differences are taken along them."""
    finite = x[np.isfinite(x)]
    return rng.normal(size=x.shape) * (np.sqrt(np.mean(finite**2)) if finite.any() else 1.0)


def _inputs(problem: Problem, rng: np.random.Generator) -> list[str]:
    """Return the arrays that are differentiated, as the row says."""
    names, chosen = list(problem.floats), problem.row["inputs"]
    if chosen == "one":
        return [str(rng.choice(names))]
    return {"first": names[:1], "rest": names[1:]}.get(chosen) or names


def _gradient(judge: KernelJudge, apply: Callable[..., Any], problems: list[Problem]) -> None:
    """Hold the gradients of some inputs to the derivative along a direction, to zeros, and to the same bits again."""
    problem = problems[0]
    arrays, floats = judge.arrays(problem, poison=False)
    names = _inputs(problem, judge.rng)
    directions = {name: _direction(floats[name], judge.rng) for name in names}
    towards = _towards(judge, problem, floats)
    there = [judge.array(x, judge.dtype_of_result(name)) for name, x in towards.items()]
    inputs = [arrays[name] for name in names]

    def gradients() -> dict[str, Any]:
        return dict(zip(names, apply(_function(judge, problem, arrays, names), inputs, there), strict=True))

    result = gradients()
    terms = [np.zeros(0)]
    for name, x in result.items():
        judge.assert_like(x, arrays[name])
        gradient = judge.numpy(x).astype(np.float64)
        assert gradient.shape == floats[name].shape, f"the gradient of {name} has shape {gradient.shape}"
        assert np.isfinite(gradient).all(), f"the gradient of {name} is not finite"
        zero = problem.constant(floats).get(name)
        assert zero is None or not gradient[zero].any(), f"the gradient of {name} is not 0 where nothing depends on it"
        terms.append((gradient * directions[name]).ravel())
    assert judge.bits(gradients()) == judge.bits(result), "a second, equal call gave other gradients"
    _assert_derivative(judge, problem, floats, directions, towards, np.concatenate(terms), ", ".join(names))


def _forward_gradient(judge: KernelJudge, apply: Callable[..., Any], problems: list[Problem]) -> None:
    """Hold the derivatives of the results along a direction of some inputs to the oracle's."""
    problem = problems[0]
    arrays, floats = judge.arrays(problem, poison=False)
    names = _inputs(problem, judge.rng)
    directions = {name: judge.rounded(_direction(floats[name], judge.rng), judge.dtype_of(problem, name)) for name in names}
    towards = _towards(judge, problem, floats)
    tangents = [judge.array(x, judge.dtype_of(problem, name)) for name, x in directions.items()]
    result = apply(_function(judge, problem, arrays, names), [arrays[name] for name in names], tangents)
    terms = [np.zeros(0)]
    for (name, towards_it), x in zip(towards.items(), result, strict=True):
        derivative = judge.numpy(x).astype(np.float64)
        assert np.isfinite(derivative[towards_it != 0]).all(), f"the derivative of {name} is not finite"
        terms.append((np.where(towards_it == 0, 0, derivative) * towards_it).ravel())
    _assert_derivative(judge, problem, floats, directions, towards, np.concatenate(terms), ", ".join(names))


def _vmap(judge: KernelJudge, apply: Callable[..., Any], problems: list[Problem]) -> None:
    """Hold the results for each of several problems, which differ in their floating arrays only, to the oracle's."""
    first = problems[0]
    problems = [replace(first, floats=problem.floats) for problem in problems]
    made = [judge.arrays(problem) for problem in problems]
    names = list(first.floats)
    stacked = [judge.xp.stack([arrays[name] for arrays, _ in made]) for name in names]
    results = apply(_function(judge, first, made[0][0], names), stacked)
    for at, (problem, (_, floats)) in enumerate(zip(problems, made, strict=True)):
        expected = problem.expected(floats, judge.dtype, rounds_weights=judge.rounds_weights)
        for (name, (exact, bound)), result in zip(expected.items(), results, strict=True):
            tolerance.assert_within(name, judge.numpy(result)[at], exact, bound)


def _towards(judge: Judge, problem: Problem, floats: Floats) -> dict[str, np.ndarray]:
    """Return a random number for each element of the results; 0 where a result is -inf, which has no derivative."""
    return {
        name: np.where(np.isfinite(x), judge.rounded(judge.rng.normal(size=np.shape(x)), judge.dtype_of_result(name)), 0.0)
        for name, x in problem.exact(floats).items()
    }


def _assert_derivative(
    judge: Judge,
    problem: Problem,
    floats: Floats,
    directions: Floats,
    towards: Floats,
    terms: np.ndarray,
    names: str,
) -> None:
    """Raise AssertionError unless the sum of ``terms`` is the derivative of the results along ``directions``."""

    def derivatives(at: Floats, step: float) -> np.ndarray:
        """Return ``towards`` times the derivative of each element of the results."""
        forth, back = (
            problem.exact({**at, **{name: at[name] + by * x for name, x in directions.items()}}) for by in (step, -step)
        )
        with np.errstate(invalid="ignore"):  # -inf minus -inf, where towards is 0
            changes = [np.where(t == 0, 0, t * (forth[name] - back[name])) for name, t in towards.items()]
        return np.concatenate([x.ravel() for x in changes]) / (2 * step)

    def moved() -> Floats:
        return {name: x * (1 + _ROUNDINGS * u * judge.rng.uniform(-1, 1, size=x.shape)) for name, x in floats.items()}

    u = tolerance.UNIT_ROUNDOFF[judge.dtype]
    fine, size, results = derivatives(floats, _STEP), problem.sizes(floats), problem.exact(floats)
    typical = _norm(*(size[name] * t for name, t in towards.items()))
    exact, coarse = float(np.sum(fine)), float(np.sum(derivatives(floats, 2 * _STEP)))
    of_results = _norm(*(t * np.where(t == 0, 0, results[name]) for name, t in towards.items()))
    of_differences = 4 * abs(coarse - exact) + 2.0**-53 / _STEP * problem.steepness * (typical + of_results)
    of_inputs = max(abs(float(np.sum(derivatives(moved(), _STEP))) - exact) for _ in range(3))
    # a gradient may be a sum over all rows, one by one: the error of n additions grows as n, its terms' norm as sqrt(n)
    rows = max((math.prod(t.shape[:-1]) for t in towards.values()), default=1)
    of_sums = u * (_norm(terms) + math.sqrt(1 + rows / 25) * _norm(fine) + problem.steepness * typical)
    bound = of_differences + _SAFETY * (of_inputs + of_sums)
    got = float(np.sum(terms))
    evidence.error("gradient", judge.dtype, abs(got - exact) / max(bound, np.finfo(np.float64).tiny))
    assert abs(got - exact) <= bound + tolerance.least(judge.dtype), (
        f"the derivative along a direction of {names} is {got:.9g}; expected {exact:.9g} within {bound:.3g}"
    )


def _norm(*arrays: np.ndarray) -> float:
    return float(np.sqrt(sum(np.sum(np.square(x)) for x in arrays)))
