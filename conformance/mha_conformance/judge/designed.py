"""A kernel on the problems of a covering design."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import combinations, islice
from typing import Any

import numpy as np

from ..cases import attention_axes, layer_axes, pieces
from ..cases.attention_gradients import TRIPLES_OF_GRADIENTS, attention_gradient_problem, axes_of_gradients
from ..cases.attention_problem import attention_problem
from ..cases.covering import Covering, Row
from ..cases.kinds import values_of
from ..cases.layer_problem import layer_problem
from ..cases.piece_gradients import axes_of_piece_gradients, piece_gradient_problem
from ..cases.problem import Problem
from ..report.evidence import COVERED, RUNS, evidence
from .held import Judge, KernelJudge, noted

REFUSALS = 60
"""A kernel that refuses as many problems, and computes none, refuses all: it may be for another device."""
FLOOR = 30
"""The fewest problems that a kernel must compute, if it does not refuse them."""
REUSED = 0.3
"""The share of problems whose numbers are put into arrays that were used before."""


def design_of(
    op: str,
    features: Iterable[str],
    dtype: str,
    rng: np.random.Generator,
    *,
    quick: bool = True,
    more: Mapping[str, Sequence[Any]] | None = None,
) -> Covering:
    """Return the covering design for a kernel of an operation that declares these features.

    quick: only pairs; otherwise the triples of some axes too.
    more: further axes, or others in place of the same names.
    """
    axes, triples = axes_of(op, features, dtype)
    return Covering(
        {**axes, **(more or {})}, rng, possible=possible_of(op), triples=() if quick else triples, plain=layer_axes.PLAIN
    )


def axes_of(op: str, features: Iterable[str], dtype: str) -> tuple[Mapping[str, Sequence[Any]], Iterable[tuple[str, ...]]]:
    """Return the axes of an operation with the kinds of their values, and those of which every triple is judged."""
    half = dtype in ("float16", "bfloat16")
    if op == "attention":
        return attention_axes.axes_of(features, half=half), attention_axes.TRIPLES
    if op == "attention_vjp":
        return axes_of_gradients(features, half=half), (*attention_axes.TRIPLES, *TRIPLES_OF_GRADIENTS)
    if op in layer_axes.LAYERS:
        return layer_axes.axes_of_layer(op, features), layer_axes.TRIPLES
    axes = axes_of_piece_gradients(op.removesuffix("_vjp")) if op.endswith("_vjp") else pieces.axes_of_piece(op)
    return axes, combinations(axes, 3)


def possible_of(op: str) -> Callable[[Row], bool]:
    """Return the function that says whether a problem of an operation can have some values."""
    if op.startswith("attention"):
        return attention_axes.possible
    return layer_axes.possible if op in layer_axes.LAYERS else pieces.possible


def drawn(op: str, row: Row, structure: np.random.Generator, rng: np.random.Generator) -> Problem:
    """Return a problem of an operation whose axes have values of the kinds that ``row`` names.

    structure: draws these values and all that is no array, rng: the arrays.
    """
    row = values_of(row, structure, possible_of(op))
    if op == "attention":
        return attention_problem(row, structure, rng)
    if op == "attention_vjp":
        return attention_gradient_problem(row, structure, rng)
    if op.endswith("_vjp"):
        return piece_gradient_problem(op.removesuffix("_vjp"), row, rng)
    if op in layer_axes.LAYERS:
        return layer_problem(op, row, structure, rng)
    return pieces.piece_problem(op, row, rng)


def judge_design(judge: Judge, op: str, kernel: str, features: Iterable[str]) -> KernelJudge:
    """Judge a kernel that declares these features, or the algebra, on the problems of a covering design.

    Random problems follow if the kernel has refused so many that it computed fewer than ``FLOOR``. It ends early when the first
    problems were all refused. A failure has a note that describes the problem.
    """
    of_kernel, dtype, rng = judge.of(op, kernel), judge.dtype, judge.rng
    design = design_of(op, features, dtype, rng, quick=judge.quick)
    for row in rows_of(design, judge.part, lambda: of_kernel.computed >= FLOOR):
        if not of_kernel.computed and sum(of_kernel.refused.values()) >= REFUSALS:
            break
        seed = int(rng.integers(2**32))
        problem, *other = (drawn(op, row, np.random.default_rng(seed), rng) for _ in range(2 if rng.random() < REUSED else 1))
        with noted(f"the problem: {problem}"):
            if of_kernel.judge(problem, *other):
                design.count(row)
    evidence.add(COVERED, (f"{op} by {kernel}", dtype), counts_of(of_kernel, design))
    evidence.add(RUNS, (op, kernel), of_kernel.computed)
    return of_kernel


def rows_of(design: Covering, part: float, enough: Callable[[], bool]) -> Iterator[Row]:
    """Yield a part of the rows of a design, and then as many random ones at most, until there are enough."""
    rows = [*design]
    rows = rows[: math.ceil(part * len(rows))]
    yield from rows
    for row in islice(design.random(), len(rows)):
        if enough():
            return
        yield row


def counts_of(judge: KernelJudge, design: Covering) -> dict[str, int]:
    """Return what a certificate says of a design: problems computed and refused, the floor, and pairs and triples, of all."""
    return {
        "problems": judge.computed,
        "refused": sum(judge.refused.values()),
        "floor": FLOOR,
        **{f"{name}{of}": n for name, both in design.shares().items() for of, n in zip(("", "_of"), both, strict=True)},
    }
