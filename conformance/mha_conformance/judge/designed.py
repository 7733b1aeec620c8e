"""A kernel on the problems of a covering design."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import chain, islice
from typing import Any
from zlib import crc32

import numpy as np

from mha_core.shared import ALGEBRA, FEATURES, registry

from ..cases import attention_axes, layer_axes, losses, pieces, updates
from ..cases import attention_gradients as gradients
from ..cases.attention_problem import attention_problem
from ..cases.covering import Counted, Covering
from ..cases.kinds import Row, in_turn, least_of, smallest, values_of
from ..cases.layer_gradients import TRIPLES, axes_of_layer_gradients, layer_gradient_problem
from ..cases.layer_problem import layer_problem
from ..cases.piece_gradients import DIFFERENTIABLE, axes_of_piece_gradients, piece_gradient_problem
from ..cases.problem import Problem
from ..cases.weights import TRIPLES_OF_WEIGHTS, axes_of_weights, weights_problem
from ..oracle.tolerance import is_half
from ..report.evidence import COVERED, REFUSALS, RUNS, evidence
from .held import Judge, KernelJudge
from .smaller import described, smaller

MOST_REFUSALS = 60
"""A kernel that refuses as many problems, and computes none, refuses all: it may be for another device."""
FLOOR = 30
"""The fewest problems that a kernel must compute, if it does not refuse them."""
BESIDE_KERNELS = 1 / 4
"""The part of a design that a quick run judges the algebra on, where the backend has kernels, which compute most calls.

Otherwise the algebra is judged there on pairs, without triples."""
DRAWN_AGAIN = 3
"""The number of problems that are drawn for a row in the search for a smaller failing one: not each shows the fault."""
CLEARED = 64
"""The number of problems after which a library forgets the programs that it compiled, which can take 30 MB for each."""
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
    triples: Sequence[tuple[str, ...]]
    """The axes of which every triple is judged."""
    alone: Iterable[str] = ()
    """The options of which every two are judged without the others."""


def _of_layer(op: str) -> Design:
    def axes(features: Iterable[str], half: bool) -> dict[str, list[Any]]:
        return layer_axes.axes_of_layer(op, features)

    return Design(axes, layer_axes.possible, partial(layer_problem, op), layer_axes.TRIPLES)


def _of_piece(axes: dict[str, list[Any]], problem: Callable[[Row, np.random.Generator], Problem]) -> Design:
    return Design(lambda features, half: axes, pieces.possible, lambda row, structure, rng: problem(row, rng), pieces.TRIPLES)


DESIGNS = {
    "attention": Design(
        *(attention_axes.axes_of, attention_axes.possible, attention_problem, attention_axes.TRIPLES), attention_axes.PLAIN
    ),
    "attention_vjp": Design(
        gradients.axes_of_gradients,
        gradients.possible,
        gradients.attention_gradient_problem,
        (*attention_axes.TRIPLES, *gradients.TRIPLES_OF_GRADIENTS),
        attention_axes.PLAIN,
    ),
    "attention_weights": Design(
        *(axes_of_weights, attention_axes.possible, weights_problem, (*attention_axes.TRIPLES, *TRIPLES_OF_WEIGHTS)),
        attention_axes.PLAIN,
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
    "cross_entropy": replace(
        _of_piece(losses.axes_of_cross_entropy(), losses.cross_entropy_problem),
        possible=losses.possible,
        triples=losses.TRIPLES,
    ),
}


def design_of(
    op: str,
    features: Iterable[str],
    dtype: str,
    rng: np.random.Generator,
    *,
    triples: bool = False,
    more: Mapping[str, Sequence[Any]] | None = None,
) -> Covering:
    """Return the covering design for a kernel of an operation that declares these features.

    triples: of some axes every triple of values too, not only every pair.
    more: further axes, or others in place of the same names.
    """
    design = DESIGNS[op]
    axes = design.axes(features, is_half(dtype))
    groups = design.triples if triples else ()
    return Covering(
        {**axes, **(more or {})},
        rng,
        possible=design.possible,
        triples=groups,
        plain=layer_axes.PLAIN,
        alone=() if more else design.alone,
        usual=attention_axes.USUAL,
    )


@cache
def whole_design(op: str, half: bool, triples: bool, seed: int) -> tuple[Covering, list[Row]]:
    """Return the covering design of an operation with every feature, and its rows, which all kernels share."""
    rng = np.random.default_rng([seed, crc32(op.encode())])
    design = design_of(op, FEATURES.get(op, ()), "float16" if half else "float32", rng, triples=triples)
    return design, [*in_turn(design, rng, DESIGNS[op].possible)]


def within(row: Row, axes: Mapping[str, Sequence[Any]], possible: Callable[[Row], bool], at: int) -> Row:
    """Return a row with values of these axes in place of others: of those that are possible, another for each ``at``.

    A covering design stays one if this is done to all of its rows.
    """
    fitting = smallest(row)
    kept = dict(row)
    for name, values in axes.items():
        if row[name] not in values:
            in_order = (values[(at + step) % len(values)] for step in range(len(values)))
            kept[name] = next((value for value in in_order if possible(fitting | {name: least_of(value)})), values[0])
            fitting[name] = least_of(kept[name])
    return kept


def drawn(op: str, row: Row, structure: np.random.Generator, rng: np.random.Generator) -> Problem:
    """Return a problem of an operation whose axes have values of the kinds that ``row`` names.

    structure: draws these values and all that is no array, rng: the arrays.
    """
    return DESIGNS[op].problem(values_of(row, structure, DESIGNS[op].possible), structure, rng)


def judge_design(judge: Judge, op: str, kernel: str, features: Iterable[str], *, part: float = 1.0) -> KernelJudge:
    """Judge a kernel that declares these features, or the algebra, on the problems of a covering design, or on a part of them.

    Random problems follow if the kernel has refused so many that it computed fewer than ``FLOOR``. It ends early when the first
    problems were all refused. A failure has a note that describes the problem. All kernels get the same problems, as far as
    their features allow.
    """
    of_kernel, half, possible = judge.of(op, kernel), is_half(judge.dtype), DESIGNS[op].possible
    beside = kernel == ALGEBRA and bool(registry().kernels.get((judge.name, op)))
    design, rows = whole_design(op, half, judge.triples and not beside, judge.seed)
    part = min(part, BESIDE_KERNELS) if judge.quick and beside else part
    rows, axes = rows[: math.ceil(part * judge.part * len(rows))], DESIGNS[op].axes(features, half)
    counted, seed = design.counted(axes), [judge.seed, crc32(f"{op} {judge.dtype}".encode())]
    for at, row in enumerate(chain(rows, islice(design.random(np.random.default_rng(seed)), len(rows)))):
        if at >= len(rows) and of_kernel.computed >= FLOOR:
            break
        if not of_kernel.computed and sum(of_kernel.refused.values()) >= MOST_REFUSALS:
            break
        if at % CLEARED == CLEARED - 1 and judge.loaded.record.clear_caches:
            judge.loaded.record.clear_caches()
        row, rng = within(row, axes, possible, at), np.random.default_rng([*seed, at])
        structure = int(rng.integers(2**32))
        problem, *other = (
            drawn(op, row, np.random.default_rng(structure), rng) for _ in range(2 if rng.random() < REUSED else 1)
        )
        try:
            if of_kernel.judge(problem, *other):
                counted.add(row)
        except Exception as error:
            error.add_note(f"the problem: {problem}")
            error.add_note(_smaller(judge, op, kernel, problem.row, axes, structure))
            raise
    evidence.add(COVERED, (f"{op} by {kernel}", judge.dtype), counts_of(of_kernel, counted))
    evidence.add(RUNS, (op, kernel), of_kernel.computed)
    evidence.add(REFUSALS, (op, kernel), sorted(of_kernel.refused))
    return of_kernel


def _smaller(judge: Judge, op: str, kernel: str, row: Row, axes: Mapping[str, Sequence[Any]], seed: int) -> str:
    """Return a description of a smaller problem that fails too, and its error."""

    def error_of(row: Row) -> Exception | None:
        for at in range(DRAWN_AGAIN):
            problem = drawn(op, row, *(np.random.default_rng([seed, at]) for _ in range(2)))
            try:
                judge.of(op, kernel).judge(problem)
            except Exception as error:  # a kernel that crashes has failed as well
                return error
        return None

    row, error = smaller(row, axes, DESIGNS[op].possible, error_of)
    if error is None:
        return "a problem like it is computed right in a call by itself: it may fail only after others"
    return f"a smaller problem that fails too: {described(row, axes)}\n{type(error).__name__}: {error}"


def counts_of(judge: KernelJudge, counted: Counted) -> dict[str, int]:
    """Return what a certificate says of a design: problems computed and refused, the floor, and pairs and triples, of all."""
    return {
        "problems": judge.computed,
        "refused": sum(judge.refused.values()),
        "floor": FLOOR,
        **{f"{name}{of}": n for name, both in counted.shares().items() for of, n in zip(("", "_of"), both, strict=True)},
    }
