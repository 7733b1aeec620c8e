"""A kernel on the problems of a covering design."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from ..cases import attention_axes, layer_axes, pieces
from ..cases.attention_gradients import attention_gradient_problem, axes_of_gradients
from ..cases.attention_problem import attention_problem
from ..cases.covering import Covering, Row
from ..cases.layer_problem import layer_problem
from ..cases.piece_gradients import axes_of_piece_gradients, piece_gradient_problem
from ..cases.problem import Problem
from ..report.evidence import COVERED, RUNS, evidence
from .held import Judge, KernelJudge, noted

SECONDS, QUICK_SECONDS = 10.0, 1.0
"""Seconds that one kernel of attention is judged for in float32 or float64. In half precision it is half as long."""
SHARE = {"attention": 1.0, "attention_vjp": 0.4, **dict.fromkeys(layer_axes.LAYERS, 0.3)}
"""The share of this time that a kernel of another operation has."""
_OF_A_PIECE = 0.12
SMALL_SHARE = 0.3
"""The share of its time in which a kernel computes small problems, where short lengths meet every option."""
REFUSALS = 60
"""A kernel that refuses as many problems, and computes none, refuses all: it may be for another device."""
REUSED = 0.3
"""The share of problems whose numbers are put into arrays that were used before."""


SMALL: dict[str, Sequence[Any]] = {
    "queries": (0, 1, 2, 16, 17, 33, 65),
    "keys": ("the same", 0, 1, 2, 16, 17, 33, 65),
    "head_dim": (1, 4, 8, 33),
    "value_dim": ("the same", 5, 16, 64),
    "packed": ("none", "few", "with empty ones"),
    "scores": ("plain", "wide", "tiny"),
    "width": (4, 10, 16, 64, 65),
    "spread": (1.0, 1e-3),
    "infinite": (False,),
    "mean": (0.0,),
    **dict.fromkeys(("eps", "eps of norm_1", "eps of norm_2"), (1e-5, 0.5)),
    "d_model": (20, 65),
    "outputs": (1, 17),
    "d_ff": (24,),
}
"""The values of some axes of small problems."""


def design_of(
    op: str,
    features: Iterable[str],
    dtype: str,
    rng: np.random.Generator,
    *,
    small: bool = False,
    more: Mapping[str, Sequence[Any]] | None = None,
) -> Covering:
    """Return the covering design for a kernel of an operation that declares these features.

    small: only small problems, and no triples.
    more: further axes, or others in place of the same names.
    """
    triples: tuple[tuple[str, str, str], ...] = ()
    plain = layer_axes.PLAIN
    if op == "attention":
        axes, possible = attention_axes.axes_of(features, half=dtype in ("float16", "bfloat16")), attention_axes.possible
        triples = () if small else attention_axes.TRIPLES
    elif op == "attention_vjp":
        axes = axes_of_gradients(features, half=dtype in ("float16", "bfloat16"))
        possible = partial(attention_axes.possible, share=0.5)  # the oracle keeps twice as many arrays
    elif op.endswith("_vjp"):
        axes, possible = axes_of_piece_gradients(op.removesuffix("_vjp")), pieces.possible
    elif op in layer_axes.LAYERS:
        axes, possible = layer_axes.axes_of_layer(op, features), layer_axes.possible
    else:
        axes, possible = pieces.axes_of_piece(op), pieces.possible
    if small:
        possible = partial(possible, share=1 / 16)  # in place of another share
        axes = {name: [value for value in values if value in SMALL.get(name, values)] for name, values in axes.items()}
    return Covering({**axes, **(more or {})}, rng, possible=possible, triples=triples, plain=plain)


def drawn(op: str, row: Row, structure: np.random.Generator, rng: np.random.Generator) -> Problem:
    """Return a problem of an operation whose axes have the values of ``row``."""
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
    """Judge a kernel that declares these features, or the algebra, on small problems first, and then on problems of all sizes.

    Each are the rows of a covering design, and then random ones. It ends when the time is up, or when the first problems were
    all refused. A failure has a note that describes the problem.
    """
    of_kernel, dtype = judge.of(op, kernel), judge.dtype
    seconds = seconds_for(op, dtype, QUICK_SECONDS if judge.quick else SECONDS)
    first, rng = judge.rng.spawn(2)  # of the seed, however many small problems there is time for: a failure can be reproduced
    _judge_rows(of_kernel, design_of(op, features, dtype, first, small=True), SMALL_SHARE * seconds, first)
    design = design_of(op, features, dtype, rng)
    _judge_rows(of_kernel, design, (1 - SMALL_SHARE) * seconds, rng)
    evidence.add(COVERED, (f"{op} by {kernel}", dtype), (of_kernel.computed, design.counted, design.combinations))
    evidence.add(RUNS, (op, kernel), of_kernel.computed)
    return of_kernel


def _judge_rows(judge: KernelJudge, design: Covering, seconds: float, rng: np.random.Generator) -> None:
    for row in timed(design, seconds):
        if not judge.computed and sum(judge.refused.values()) >= REFUSALS:
            return
        seed = int(rng.integers(2**32))
        problem, *other = (
            drawn(judge.op, row, np.random.default_rng(seed), rng) for _ in range(2 if rng.random() < REUSED else 1)
        )
        with noted(f"the problem: {problem}"):
            if judge.judge(problem, *other):
                design.count()


def seconds_for(op: str, dtype: str, seconds: float) -> float:
    """Return the time for a kernel of an operation in a dtype, where attention in float32 has ``seconds``."""
    return seconds * SHARE.get(op, _OF_A_PIECE) * (0.5 if dtype in ("float16", "bfloat16") else 1.0)


def timed(design: Covering, seconds: float) -> Iterator[Row]:
    """Yield the rows of a design, and then random ones, until the time is up; at least one."""
    end = time.monotonic() + seconds
    for row in design.and_random():
        yield row
        if time.monotonic() > end:
            return
