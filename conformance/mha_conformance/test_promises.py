"""The promises of docs/promises.md by number, as far as a backend can keep or break them.

Attention is computed by what is chosen, by each kernel, and by the algebra (``probes.computed_by``), in shapes that the kernel
computes.

Refusals (5, 6, 10, 15) are in test_refusals too; 6 for every option in test_algebra; 12 in test_inputs; 13 in test_memory;
14 in test_threads and test_determinism.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import mha_core as mha

from .backend import BackendUnderTest
from .cases.bad_inputs import SHAPES, UNBROADCASTABLE
from .cases.features import problem_with
from .cases.masked_rows import masked_rows
from .cases.problems import FEW, Limits, random_problem
from .judge.attention import state_of
from .judge.held import Judge, judge_of
from .oracle import tolerance
from .probes.computed_by import ComputedBy

Arrays = tuple[np.ndarray, np.ndarray, np.ndarray]


@pytest.fixture
def xyz(
    request: pytest.FixtureRequest, backend: BackendUnderTest, attention_by: ComputedBy, rng: np.random.Generator
) -> Arrays:
    """query (2, 4, L, ...), key and value (2, K, S, ...): L = 5 and S = 7, unless the kernel needs round numbers."""
    shapes = attention_by.attention_shapes(backend, request.node.callspec.params.get("dtype", backend.dtype))
    query, key, value = (rng.normal(size=shape) for shape in shapes.values())
    return query, key, value


def lengths(xyz: Arrays) -> tuple[int, int]:
    """Return the numbers of queries and keys."""
    return xyz[0].shape[-2], xyz[1].shape[-2]


def positions(xyz: Arrays) -> tuple[np.ndarray, np.ndarray]:
    """Return the indices of queries (L, 1) and of keys (1, S)."""
    queries, keys = lengths(xyz)
    return np.arange(queries)[:, None], np.arange(keys)[None, :]


def for_each_head(value: np.ndarray) -> np.ndarray:
    """Return the values as (2, 4, S, E), repeated for the query heads that share them."""
    return np.repeat(value, 4 // value.shape[1], axis=1)


@pytest.mark.promise(1)
def test_1_a_fully_masked_row_is_zero(judge: Judge, xyz: Arrays) -> None:
    for rows in masked_rows(2, *lengths(xyz)):
        mask = rows.mask(judge.array)
        out, lse = state_of(judge, *xyz, mask=mask, query_offset=rows.offset)
        empty = np.broadcast_to(rows.masked, lse.shape)
        assert (out[empty] == 0).all() and (lse[empty] == -np.inf).all(), rows.feature
        assert np.isfinite(lse[~empty]).all() and (out[~empty] != 0).all(), rows.feature
        arrays = (judge.array(x) for x in xyz[:2])
        weights = judge.numpy(mha.attention_weights(*arrays, mask=mask, query_offset=rows.offset))
        assert (weights[empty] == 0).all(), rows.feature


@pytest.mark.promise(1)
def test_1_with_a_sink_the_lse_of_a_fully_masked_row_is_the_sink(judge: Judge, xyz: Arrays) -> None:
    sink = judge.normal(4)
    there = judge.array(sink)
    out, lse = state_of(judge, *xyz, mask=mha.prefix(0), sink=there)
    assert (out == 0).all() and (lse == sink[:, None]).all()
    for rows in masked_rows(2, *lengths(xyz)):
        out, lse = state_of(judge, *xyz, mask=rows.mask(judge.array), sink=there, query_offset=rows.offset)
        empty = np.broadcast_to(rows.masked, lse.shape)
        assert (out[empty] == 0).all(), rows.feature
        assert (lse == sink[:, None])[empty].all(), rows.feature


@pytest.mark.promise(1)
def test_1_a_value_of_nan_that_others_see_stays_out_of_a_fully_masked_row(judge: Judge, xyz: Arrays) -> None:
    query, key, _ = xyz
    for rows in masked_rows(2, *lengths(xyz)):
        value = xyz[2].copy()
        value[..., rows.seen, :] = np.nan
        options = {"mask": rows.mask(judge.array), "query_offset": rows.offset}
        out, lse = state_of(judge, query, key, value, **options)
        empty = np.broadcast_to(rows.masked, lse.shape)
        assert (out[empty] == 0).all() and np.isnan(out[~empty]).all(), rows.feature


@pytest.mark.promise(2)
def test_2_lse_is_a_natural_logarithm_in_float32_at_least(judge: Judge, xyz: Arrays) -> None:
    query, key, value = (judge.rounded(x) for x in xyz)
    _, lse = state_of(judge, query, key, value)
    exact = tolerance.exact_attention(query, key, value, dtype=judge.dtype)
    assert lse.dtype == np.dtype(tolerance.compute_dtype(judge.dtype))
    tolerance.assert_within("lse", lse, exact.lse, exact.lse_bound)


LOWEST = -1e38
"""A score in float32 that is finite, and lower than any number that may stand for a mask."""


def low(float32: Judge, xyz: Arrays, scores: np.ndarray | float, by: str) -> tuple[Arrays, dict[str, Any]]:
    """Return arrays and options with these scores for each key in every row, 0 or ``LOWEST``, by a bias or by a product."""
    query, key, value = xyz
    shape = lengths(xyz)
    if by == "bias":
        return (query * 0, key, value), {"bias": float32.array(np.broadcast_to(scores, shape).copy())}
    query, key = query * 0, key * 0
    query[..., 0], key[..., 0] = 1e19, np.broadcast_to(scores, shape)[0] / 1e19
    return (query, key, value), {"scale": 1.0}


def assert_means(float32: Judge, arrays: Arrays, allowed: np.ndarray, **options: Any) -> None:
    """Assert that each result is the mean of the values that its query may see, and that lse is finite."""
    out, lse = state_of(float32, *arrays, **options)
    seen = allowed / allowed.sum(axis=-1, keepdims=True)
    np.testing.assert_allclose(out, seen @ for_each_head(arrays[2]), atol=1e-6)
    assert np.isfinite(lse).all()


BY = pytest.mark.parametrize("by", ["bias", "product"])


@pytest.mark.promise(3)
@BY
def test_3_a_finite_bias_is_only_a_bias(float32: Judge, xyz: Arrays, by: str) -> None:
    """A score of -1e38 in a whole row changes nothing: the common shift cancels."""
    arrays, options = low(float32, xyz, LOWEST, by)
    assert_means(float32, arrays, np.ones(lengths(xyz)), **options)


@pytest.mark.promise(3)
@BY
def test_3_a_masked_key_has_no_weight_however_low_the_others_are(float32: Judge, xyz: Arrays, by: str) -> None:
    """A finite number in place of a masked score would be the greatest in these rows."""
    arrays, options = low(float32, xyz, LOWEST, by)
    q, k = positions(xyz)
    for mask, allowed in (
        (mha.causal(), k <= q),
        (mha.window(1, 1), abs(k - q) <= 1),
        (mha.array_mask(float32.array(k % 2 == q % 2)), k % 2 == q % 2),
        (mha.causal() | mha.prefix(2), (k <= q) | (k < 2)),
    ):
        assert_means(float32, arrays, allowed, mask=mask, query_offset=0, **options)


@pytest.mark.promise(3)
@BY
def test_3_no_finite_number_stands_for_a_mask(float32: Judge, xyz: Arrays, by: str) -> None:
    """Seen keys have scores of -1e38: a masked key with a score of -1e9 would be the only one seen."""
    allowed = np.ones(lengths(xyz), dtype=bool)
    allowed[:, 2] = False
    arrays, options = low(float32, xyz, np.where(allowed, LOWEST, 0.0), by)
    options["mask"] = float32.array(allowed)
    assert_means(float32, arrays, allowed, **options)
    weights = float32.numpy(mha.attention_weights(*(float32.array(x) for x in arrays[:2]), **options))
    assert (weights[..., 2] == 0).all()


@pytest.mark.promise(4)
def test_4_true_means_attend_and_an_integer_mask_is_refused(judge: Judge, xyz: Arrays) -> None:
    allowed = np.zeros(lengths(xyz), dtype=bool)
    allowed[:, 2] = True
    out, _ = state_of(judge, *xyz, mask=judge.array(allowed))
    seen = for_each_head(judge.rounded(xyz[2][:, :, 2:3]))
    np.testing.assert_array_equal(out, np.broadcast_to(seen, out.shape))  # a weight of exactly 1
    with pytest.raises(TypeError, match=r"mask has dtype .*int(64|32); expected a boolean array.*write mask != 0"):
        state_of(judge, *xyz, mask=judge.array(allowed.astype(np.int64)))


# name: (mask, function that returns whether a query at position q sees key k)
LOOKS_AT_POSITIONS: dict[str, tuple[Any, Callable[[Any, Any], Any]]] = {
    "causal": (mha.causal(), lambda q, k: k <= q),
    "window": (mha.window(1, 1), lambda q, k: abs(k - q) <= 1),
    "not_causal": (~mha.causal(), lambda q, k: k > q),
}


@pytest.mark.promise(5)
@pytest.mark.parametrize("name", LOOKS_AT_POSITIONS)
def test_5_alignment_is_never_guessed(judge: Judge, xyz: Arrays, name: str) -> None:
    mask, sees = LOOKS_AT_POSITIONS[name]
    query, key, value = (judge.rounded(x) for x in xyz)
    with pytest.raises(ValueError, match="query_offset=0"):
        state_of(judge, query, key, value, mask=mask)
    q, k = positions(xyz)
    allowed = sees(q + 2, k)
    exact = judge.exact_attention(query, key, value, allowed=allowed)
    out, _ = state_of(judge, query, key, value, mask=mask, query_offset=2)
    exact.assert_near(out)


@pytest.mark.promise(6)
def test_6_options_compose(judge: Judge, attention_by: ComputedBy) -> None:
    query, key, value = (judge.normal((1, h, n, 4)) for h, n in ((2, 4), (1, 6), (1, 6)))
    q, k = np.arange(4)[:, None] + 2, np.arange(6)[None, :]
    bias, sink = (judge.normal(shape) for shape in ((2, 4, 6), (2,)))
    given: dict[str, Any] = {"allowed": (k <= q) & (k >= 1), "bias": bias, "softcap": 1.5, "sink": sink, "scale": 0.7}
    exact = judge.exact_attention(query, key, value, **given)
    out, lse = state_of(judge, query, key, value, mask=mha.causal() & ~mha.prefix(1), bias=judge.array(bias),
        scale=0.7, softcap=1.5, sink=judge.array(sink), query_offset=2)  # fmt: skip
    exact.assert_near(out, lse)


@pytest.mark.promise(7)
def test_7_poison_changes_no_bit(judge: Judge, attention_by: ComputedBy) -> None:
    for _ in range(judge.count(300)):
        judge.assert_poison_changes_no_bit(random_problem(judge.rng, Limits(shapes=FEW if judge.quick else ())))


@pytest.mark.promise(7)
def test_7_poison_beside_what_is_seen_changes_no_bit(judge: Judge, xyz: Arrays) -> None:
    """Keys outside of a prefix or a band lie in the memory next to those that are seen. A prefix needs no feature."""
    keys = lengths(xyz)[1]
    masks: list[tuple[Any, slice, int]] = [
        (mha.prefix(keys - 2), slice(keys - 2, None), 0),
        (mha.causal(), slice(keys - 1, None), keys - 1 - lengths(xyz)[0]),
        (mha.window(1, None), slice(0, 1), 2),
    ]
    for mask, hidden, offset in masks:
        key, value = (x.copy() for x in xyz[1:])
        key[..., hidden, :], value[..., hidden, :] = np.nan, np.inf
        clean, poisoned = (state_of(judge, xyz[0], *kv, mask=mask, query_offset=offset) for kv in (xyz[1:], (key, value)))
        for name, a, b in zip(("out", "lse"), clean, poisoned, strict=True):
            assert a.tobytes() == b.tobytes(), f"keys or values that no query may see changed {name}"


@pytest.mark.promise(8)
def test_8_empty_axes_work(judge: Judge, attention_by: ComputedBy) -> None:
    def attend(*shapes: tuple[int, ...], **options: Any) -> tuple[np.ndarray, np.ndarray]:
        return state_of(judge, *(np.ones(shape) for shape in shapes), **options)

    for width in (5, 4):  # values are wider than keys, which a kernel need not declare, or as wide
        out, lse = attend((2, 3, 4), (2, 0, 4), (2, 0, width))
        assert out.shape == (2, 3, width) and (out == 0).all() and (lse == -np.inf).all()
        out, lse = attend((2, 0, 4), (2, 3, 4), (2, 3, width), mask=mha.causal(), query_offset=0)
        assert out.shape == (2, 0, width) and lse.shape == (2, 0)
    out, lse = attend((0, 2, 3, 4), (0, 2, 3, 4), (0, 2, 3, 4), mask=mha.causal())
    assert out.shape == (0, 2, 3, 4) and lse.shape == (0, 2, 3)
    none = judge.array(np.zeros(0, dtype=np.int64))
    out, _ = attend((0, 2, 3, 4), (2, 3, 4), (2, 3, 4), mask=mha.key_lengths(none))
    assert out.shape == (0, 2, 3, 4)
    out, lse = attend((1, 2, 0), (1, 3, 0), (1, 3, 2))
    assert (out == 1).all()
    np.testing.assert_allclose(lse, np.log(3), rtol=1e-6)


@pytest.mark.promise(9)
def test_9_half_precision_accumulates_in_float32(backend: BackendUnderTest, attention_by: ComputedBy) -> None:
    for dtype in set(backend.dtypes) & {"float16", "bfloat16"}:
        query, key = np.full((1, 2, 64), 300.0), np.full((1, 3, 64), 300.0)
        value = np.broadcast_to(np.asarray([[1.0], [2.0], [3.0]]), key.shape)
        out, lse = state_of(judge_of(backend, dtype), query, key, value)
        np.testing.assert_allclose(out, 2.0, rtol=2**-7)
        np.testing.assert_allclose(lse, 300 * 300 * 64 / 8 + np.log(3), rtol=1e-6)
    if not set(backend.dtypes) & {"float16", "bfloat16"}:
        pytest.skip("the backend lacks half precision, or it is not judged")


@pytest.mark.promise(9)
@pytest.mark.parametrize("wants_lse", [True, False], ids=["state", "out"])
def test_9_the_query_is_not_rounded_between_scale_and_product(judge: Judge, attention_by: ComputedBy, wants_lse: bool) -> None:
    """The scales, 1 / sqrt(8) and 1 / sqrt(32), cannot be represented exactly in half precision."""
    for length, width in ((6, 8), (48, 32)):
        judge.judge_once(problem_with([], judge.rng, length, width, scores="wide", lse=wants_lse))


@pytest.mark.promise(10)
def test_10_integers_are_type_errors_that_name_the_argument(judge: Judge, xyz: Arrays) -> None:
    given = dict(zip(("query", "key", "value"), (judge.array(x) for x in xyz), strict=True))
    for name, x in zip(given, xyz, strict=True):
        integers = judge.array(np.ones(x.shape, dtype=np.int64))
        with pytest.raises(TypeError, match=f"{name} has dtype .*int(64|32)"):
            mha.scaled_dot_product_attention(**{**given, name: integers})
    with pytest.raises(TypeError, match=r"query has dtype .*int(64|32); expected a floating dtype"):
        mha.scaled_dot_product_attention(*(judge.array(np.ones(x.shape, dtype=np.int64)) for x in xyz))


@pytest.mark.promise(10)
def test_10_mixed_dtypes_are_type_errors_that_name_the_argument(backend: BackendUnderTest, xyz: Arrays) -> None:
    if len(backend.dtypes) < 2:
        pytest.skip("only one dtype is judged")
    one, other = backend.dtypes[:2]
    given = dict(zip(("query", "key", "value"), (backend.array(x, one) for x in xyz), strict=True))
    for name, x in {"key": xyz[1], "value": xyz[2], "bias": np.ones(lengths(xyz)), "sink": np.ones(4)}.items():
        with pytest.raises(TypeError, match=f"{name}.* has dtype .*{other}, but query has .*{one}"):
            mha.scaled_dot_product_attention(**{**given, name: backend.array(x, other)})


@pytest.mark.promise(10)
def test_10_arrays_of_another_library_are_refused(judge: Judge, xyz: Arrays) -> None:
    query, key, value = (judge.array(x) for x in xyz)
    foreign: Any = [[1.0]] if judge.name == "numpy" else np.asarray(judge.numpy(key))
    with pytest.raises(TypeError, match="key is "):
        mha.scaled_dot_product_attention(query, foreign, value)


@pytest.mark.promise(11)
@pytest.mark.parametrize("axes", ["", "k", "q1", "1k", "h1k", "b1qk", "bh11"])
def test_11_masks_and_biases_broadcast(judge: Judge, attention_by: ComputedBy, xyz: Arrays, axes: str) -> None:
    """A kernel that declares only one of the two is judged by it."""
    query, key, value = (judge.rounded(x) for x in xyz)
    queries, keys = lengths(xyz)
    shape = tuple({"b": 2, "h": 4, "q": queries, "k": keys, "1": 1}[axis] for axis in axes)
    allowed, bias = np.asarray(judge.rng.random(shape) < 0.7), judge.rounded(np.asarray(judge.rng.normal(size=shape)))
    given: dict[str, Any] = {"allowed": allowed, "bias": bias}
    options: dict[str, Any] = {"mask": judge.array(allowed), "bias": judge.array(bias)}
    features = {"allowed": "array_mask", "mask": "array_mask", "bias": "bias"}
    declared = [name for name, feature in features.items() if feature in attention_by.handles]
    if declared:
        given, options = ({name: x for name, x in every.items() if name in declared} for every in (given, options))
    exact = judge.exact_attention(query, key, value, **given)
    out, lse = state_of(judge, query, key, value, **options)
    exact.assert_near(out, lse)


@pytest.mark.promise(11)
def test_11_what_does_not_broadcast_is_refused(judge: Judge, attention_by: ComputedBy) -> None:
    arrays = [np.ones(shape) for shape in SHAPES.values()]
    for shape in UNBROADCASTABLE:
        with pytest.raises(ValueError, match=r"mask has shape .* broadcasts to \(\.\.\., H, L, S\) = \(2, 4, 5, 7\)"):
            state_of(judge, *arrays, mask=judge.array(np.ones(shape, dtype=bool)))
        with pytest.raises(ValueError, match="bias has shape"):
            state_of(judge, *arrays, bias=judge.array(np.ones(shape)))
