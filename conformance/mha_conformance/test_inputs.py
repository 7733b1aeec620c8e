"""Promise 12: results do not depend on memory layout, and inputs are never written to.

In some libraries arithmetic and copies keep the strides of their input: an array that is permuted, multiplied by 1 and permuted
back has its old layout again. The views below avoid that.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import mha_core as mha

from .backend import BackendUnderTest
from .cases.attention_problem import ARGUMENTS
from .cases.features import problem_with
from .cases.pieces import piece_problems
from .judge import layouts
from .judge.held import Judge
from .probes.computed_by import ComputedBy

SECTION = "promises"
pytestmark = pytest.mark.promise(12)


VIEWS: dict[str, Callable[[Any, Any], Any]] = {
    **layouts.VIEWS,
    "permuted": lambda xp, x: xp.permute_dims(layouts.copied(xp, xp.permute_dims(x, (2, 0, 1, 3))), (1, 2, 0, 3)),
}


def judge_views(judge: Judge, by: ComputedBy, view: Callable[[Any], Any]) -> None:
    """Judge attention over all keys but the last on views of query, key and value."""
    query, key, value = (judge.normal(shape) for shape in by.attention_shapes(judge, judge.dtype).values())
    seen = key.shape[-2] - 1
    exact = judge.exact_attention(query, key, value, allowed=np.arange(seen + 1) < seen)
    arrays = {name: view(judge.array(x)) for name, x in zip(ARGUMENTS, (query, key, value), strict=True)}
    with judge.unchanged(arrays):
        out = mha.scaled_dot_product_attention(**arrays, mask=mha.prefix(seen))
        judge.assert_like(out, judge.array(query))
        exact.assert_near(judge.numpy(out))


@pytest.mark.parametrize("view", VIEWS)
def test_12_strides_do_not_matter(judge: Judge, attention_by: ComputedBy, view: str) -> None:
    judge_views(judge, attention_by, lambda x: VIEWS[view](judge.xp, x))


def test_12_read_only_arrays_are_read(judge: Judge, attention_by: ComputedBy) -> None:
    """Memory-mapped files are read-only."""
    judge_views(judge, attention_by, lambda x: layouts.laid_out(judge, x, "read-only"))


def test_12_an_expanded_array_is_an_array(judge: Judge, attention_by: ComputedBy) -> None:
    of_query, of_key, _ = attention_by.attention_shapes(judge, judge.dtype).values()
    query, key = (judge.normal(shape) for shape in (of_query, of_key))
    exact = judge.exact_attention(query, key[:1], key)
    expanded = judge.xp.broadcast_to(judge.array(key[:1]), key.shape)
    out = mha.scaled_dot_product_attention(judge.array(query), expanded, judge.array(key))
    exact.assert_near(judge.numpy(out))


@pytest.mark.parametrize("options", [("array_mask", "bias", "sink"), ("key_lengths", "relative_bias")], ids=" ".join)
def test_12_arrays_among_the_options_are_not_written_to(
    judge: Judge, attention_by: ComputedBy, options: tuple[str, ...]
) -> None:
    judge.judge_once(problem_with([*options, "lse"], judge.rng))


def test_12_pieces_write_to_nothing(judge: Judge, piece_by: ComputedBy) -> None:
    for problem in piece_problems(piece_by.op, judge.rng):
        arrays, _ = judge.arrays(problem)
        with judge.unchanged(arrays):
            problem.call(arrays)


@pytest.mark.parametrize("view", layouts.NUMPY_VIEWS)
def test_12_arrays_of_numpy_come_in_whatever_their_strides(
    backend: BackendUnderTest, rng: np.random.Generator, view: str
) -> None:
    for x in (rng.normal(size=(2, 3, 8)).astype(np.float32), rng.integers(0, 9, size=(2, 3, 8)), rng.random((2, 3, 8)) < 0.5):
        given = layouts.NUMPY_VIEWS[view](x)
        np.testing.assert_array_equal(backend.numpy(backend.loaded.from_numpy(given, backend.device)), given)


@pytest.mark.promise(0)
def test_numbers_come_in_as_they_are(backend: BackendUnderTest, rng: np.random.Generator) -> None:
    """Other tests use numbers that were read back from the library, so they cannot detect rounding in the conversion to it."""
    for dtype in set(backend.dtypes) & {"float32", "float64"}:
        x = rng.normal(size=(3, 4)).astype(dtype)
        assert backend.numpy(backend.array(x, dtype)).tobytes() == x.tobytes()
