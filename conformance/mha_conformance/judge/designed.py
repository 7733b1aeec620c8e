"""A kernel on the problems of a covering design."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations, islice
from typing import Any

import numpy as np

from ..cases import attention_axes, layer_axes, pieces, updates
from ..cases import attention_gradients as gradients
from ..cases.attention_problem import attention_problem
from ..cases.covering import Covering, Row
from ..cases.kinds import in_turn, values_of
from ..cases.layer_gradients import TRIPLES, axes_of_layer_gradients, layer_gradient_problem
from ..cases.layer_problem import layer_problem
from ..cases.piece_gradients import DIFFERENTIABLE, axes_of_piece_gradients, piece_gradient_problem
from ..cases.problem import Problem
from ..cases.weights import TRIPLES_OF_WEIGHTS, axes_of_weights, weights_problem
from ..report.evidence import COVERED, RUNS, evidence
from .held import Judge, KernelJudge, noted

REFUSALS = 60
"""A kernel that refuses as many problems, and computes none, refuses all: it may be for another device."""
FLOOR = 30
"""The fewest problems that a kernel must compute, if it does not refuse them."""
REUSED = 0.3
"""The share of problems whose numbers are put into arrays that were used before."""


@dataclass(frozen=True)
class Design:
    """The covering designs of an operation."""

    axes: Callable[[Iterable[str], bool], dict[str, list[Any]]]
    """Returns the axes with the kinds of their values, from the features of a kernel and whether it is in half precision."""
    possible: Callable[[Row], bool]
    """Returns whether a problem can have some values."""
    problem: Callable[[Row, np.random.Generator, np.random.Generator], Problem]
    """Returns a problem from a row of values, and the random numbers of all that is no array, and of arrays."""
    triples: Sequence[tuple[str, ...]] | None = None
    """The axes of which every triple is judged; None: all."""


def _of_layer(op: str) -> Design:
    def axes(features: Iterable[str], half: bool) -> dict[str, list[Any]]:
        return layer_axes.axes_of_layer(op, features)

    return Design(axes, layer_axes.possible, partial(layer_problem, op), layer_axes.TRIPLES)


def _of_piece(axes: dict[str, list[Any]], problem: Callable[[Row, np.random.Generator], Problem]) -> Design:
    return Design(lambda features, half: axes, pieces.possible, lambda row, structure, rng: problem(row, rng))


DESIGNS = {
    "attention": Design(attention_axes.axes_of, attention_axes.possible, attention_problem, attention_axes.TRIPLES),
    "attention_vjp": Design(
        gradients.axes_of_gradients,
        gradients.possible,
        gradients.attention_gradient_problem,
        (*attention_axes.TRIPLES, *gradients.TRIPLES_OF_GRADIENTS),
    ),
    "attention_weights": Design(
        axes_of_weights, attention_axes.possible, weights_problem, (*attention_axes.TRIPLES, *TRIPLES_OF_WEIGHTS)
    ),
    **{op: _of_layer(op) for op in layer_axes.LAYERS},
    **{
        f"{op}_vjp": Design(
            partial(axes_of_layer_gradients, op), layer_axes.possible, partial(layer_gradient_problem, op), TRIPLES
        )
        for op in layer_axes.LAYERS
    },
    **{op: _of_piece(pieces.axes_of_piece(op), partial(pieces.piece_problem, op)) for op in pieces.PIECES},
    **{f"{op}_vjp": _of_piece(axes_of_piece_gradients(op), partial(piece_gradient_problem, op)) for op in DIFFERENTIABLE},
    "adamw": _of_piece(updates.AXES, updates.update_problem),
}


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
    design = DESIGNS[op]
    axes = design.axes(features, dtype in ("float16", "bfloat16"))
    triples = combinations(axes, 3) if design.triples is None else design.triples
    given = {**axes, **(more or {})}
    return Covering(given, rng, possible=design.possible, triples=() if quick else triples, plain=layer_axes.PLAIN)


def drawn(op: str, row: Row, structure: np.random.Generator, rng: np.random.Generator) -> Problem:
    """Return a problem of an operation whose axes have values of the kinds that ``row`` names.

    structure: draws these values and all that is no array, rng: the arrays.
    """
    return DESIGNS[op].problem(values_of(row, structure, DESIGNS[op].possible), structure, rng)


def judge_design(judge: Judge, op: str, kernel: str, features: Iterable[str], *, part: float = 1.0) -> KernelJudge:
    """Judge a kernel that declares these features, or the algebra, on the problems of a covering design, or on a part of them.

    Random problems follow if the kernel has refused so many that it computed fewer than ``FLOOR``. It ends early when the first
    problems were all refused. A failure has a note that describes the problem.
    """
    of_kernel, dtype, rng = judge.of(op, kernel), judge.dtype, judge.rng
    design = design_of(op, features, dtype, rng, quick=judge.quick)
    for row in in_turn(rows_of(design, part * judge.part, lambda: of_kernel.computed >= FLOOR), rng):
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
