"""Masks and scores that are functions of batch, head, query and key: random ones, evaluated on the backend and by the oracle.

``--seed`` decides on the functions, and a failure has a note with the function and the rest of the problem. They consist of
operators and indexing. The oracle evaluates them on the indices of all pairs, and never asks core for a block of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial, reduce
from operator import and_
from typing import Any

import numpy as np
import pytest

import mha_core as mha

from .cases.attention_axes import TERMS
from .cases.attention_gradients import attention_gradient_problem
from .cases.attention_problem import AttentionProblem, attention_problem
from .cases.function_layers import KINDS, SIZES, function_layer
from .cases.function_rows import function_row
from .cases.masks import AnyMask, Make
from .judge.held import Judge, noted
from .probes.computed_by import ComputedBy

SECTION = "algebra"
pytestmark = pytest.mark.promise(0)
BLOCK = 64
"""The number of queries, and of keys, of a tile of a map."""
MASK = frozenset({"mask", "mask_function"})
SCORE = frozenset({"score_function"})
ALL_MASKS = frozenset({"causal", "window", "key_lengths", "packed", "array_mask", *MASK})


def needs(by: ComputedBy, *features: str) -> None:
    """Skip the test unless calls may use these features."""
    if missing := sorted({*features} - by.handles):
        pytest.skip(f"the kernel does not declare {', '.join(missing)}")


def drawn(judge: Judge, by: ComputedBy, count: int, *, gradients: bool = False, **given: Any) -> Iterator[AttentionProblem]:
    """Yield random problems with these values of some axes, of which a tuple is one value of several."""
    more = {"towards": "both", "wanted": "query, key, value", "d_bias": True, "d_sink": True} if gradients else {}
    for _ in range(judge.count(count)):
        values = {name: value[int(judge.rng.integers(len(value)))] for name, value in given.items()}
        row = function_row(by.handles, judge.rng, **more, **values, lse=not gradients)
        make = attention_gradient_problem if gradients else attention_problem
        yield make(row, judge.rng, judge.rng)


def terms_of(by: ComputedBy) -> tuple[str, ...]:
    """Return the kinds of mask functions that a kernel declares."""
    if not by.handles >= MASK:
        return ("none",)
    return TERMS if by.handles >= ALL_MASKS else TERMS[:-1]


def judge_poisoned(judge: Judge, problem: AttentionProblem) -> None:
    with noted(f"the problem: {problem}"):
        judge.judge_once(problem, poison=True)


@pytest.mark.promise(0, 5, 7, 11)
def test_masks_that_are_functions(judge: Judge, attention_by: ComputedBy) -> None:
    needs(attention_by, *MASK)
    for problem in drawn(judge, attention_by, 250, term=terms_of(attention_by)):
        judge_poisoned(judge, problem)


@pytest.mark.promise(0, 6, 7)
def test_scores_that_are_functions(judge: Judge, attention_by: ComputedBy) -> None:
    needs(attention_by, *SCORE)
    for problem in drawn(judge, attention_by, 250, bias=("function",), term=("none", *terms_of(attention_by))):
        judge_poisoned(judge, problem)


def test_scores_with_numbers_of_positions(judge: Judge, attention_by: ComputedBy) -> None:
    """A product of an array and a distance, which the array API leaves open: where the library has it."""
    needs(attention_by, *SCORE)
    try:
        judge.array(np.ones(1)) * judge.array(np.ones(1, dtype=int))
    except TypeError:
        pytest.skip("the library does not multiply floating numbers and integers")
    for problem in drawn(judge, attention_by, 100, bias=("function",), mixed=(True,)):
        judge_poisoned(judge, problem)


@pytest.mark.parametrize("kind", KINDS)
def test_layers_with_functions(judge: Judge, layer_by: ComputedBy, kind: str) -> None:
    needs(layer_by, {"mask": "mask", "score": "bias"}[kind])
    for size in SIZES:
        with noted(f"the layer: {size[0]} sequences of {size[1]} tokens"):
            judge.judge_once(function_layer(layer_by.op, kind, size, judge.rng))


@pytest.mark.promise(0, 7)
def test_gradients_beside_masks_that_are_functions(judge: Judge, vjp_by: ComputedBy) -> None:
    needs(vjp_by, *MASK)
    for problem in drawn(judge, vjp_by, 100, gradients=True, term=terms_of(vjp_by)):
        judge_poisoned(judge, problem)


@pytest.mark.promise(0, 7)
def test_gradients_of_scores_that_are_functions(judge: Judge, vjp_by: ComputedBy) -> None:
    """Those of query, key and value, and of every floating array that the function reads."""
    needs(vjp_by, *SCORE, "d_bias")
    given: dict[str, Any] = {
        "bias": ("function",),
        "term": ("none", "none", *terms_of(vjp_by)),
        "state": ("its own", "of more keys"),
    }
    given |= {"sink": ("none",), "wide": (False, True)}
    for problem in drawn(judge, vjp_by, 200, gradients=True, **given):
        judge_poisoned(judge, problem)


@pytest.mark.promise(0, 7)
def test_a_map_of_tiles_changes_no_mask(judge: Judge, attention_by: ComputedBy) -> None:
    """The map of a whole mask has the kinds of tiles that the oracle counts, and attention with it is right."""
    needs(attention_by, *ALL_MASKS)
    for problem in drawn(judge, attention_by, 100, term=("function", "function with others", "or", "chunks")):
        settings = problem.settings
        makes, visible = [make for make, _ in settings.masks], settings.visible
        *batch, heads, queries, keys = problem.scores_shape
        mapped = partial(
            mha.block_mask,
            num_queries=queries,
            num_keys=keys,
            batch_shape=batch,
            num_heads=heads,
            query_offset=settings.offset or 0,
        )
        made: list[Any] = []

        def make(arrays: Any, makes: Any = makes, mapped: Any = mapped, made: Any = made) -> Any:
            made.append(mapped(reduce(and_, (each(arrays) for each in makes))))
            return made[-1]

        settings.masks[:] = [(make, visible)]
        judge_poisoned(judge, problem)
        if settings.offset is not None or problem.row["offset"] == "none":
            with noted(f"the problem: {problem}"):
                assert made[-1].counts == counts_of(np.broadcast_to(visible, problem.scores_shape))


def counts_of(visible: np.ndarray) -> dict[str, int]:
    """Return the number of tiles of which none, some and all pairs attend."""
    counts = {"none": 0, "some": 0, "all": 0}
    for row in range(0, visible.shape[-2], BLOCK):
        for col in range(0, visible.shape[-1], BLOCK):
            tile = visible[..., row : row + BLOCK, col : col + BLOCK]
            counts["all" if tile.all() else "some" if tile.any() else "none"] += 1
    return counts


@pytest.mark.promise(1, 7)
@pytest.mark.parametrize("mapped", [False, True], ids=["without a map", "with a map"])
def test_queries_that_see_nothing_and_keys_that_nobody_sees(judge: Judge, attention_by: ComputedBy, mapped: bool) -> None:
    """Every fifth query sees no key, whole tiles of keys and every seventh key are seen by none, and hold NaN."""
    needs(attention_by, *MASK)
    given: dict[str, Any] = {"queries": (130,), "keys": (200,), "offset": (0,), "band": ("none",), "lengths": ("none",)}
    given |= {"array": ("none",), "sink": ("none",), "bias": ("none", *["function"] * (attention_by.handles >= SCORE))}
    for problem in drawn(judge, attention_by, 40, **given):
        q, k = np.arange(130)[:, None], np.arange(200)

        def make(array: Make) -> Any:
            mask = mha.mask_function(sees)
            return mha.block_mask(mask, 130, 200) if mapped else mask

        allowed = np.broadcast_to(sees(0, 0, q, k), (130, 200))
        problem.settings.add_mask(AnyMask(make, allowed))
        judge_poisoned(judge, problem)
        results = {name: judge.numpy(x) for name, x in judge.assert_poison_changes_no_bit(problem).items()}
        blind = np.arange(130) % 5 == 3
        assert (results["out"][..., blind, :] == 0).all() and (results["lse"][..., blind] == -np.inf).all()


def sees(batch: Any, head: Any, query: Any, key: Any) -> Any:
    return (query % 5 != 3) & (key % 7 != 2) & (key // 64 != 1)
