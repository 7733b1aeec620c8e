"""Attention weights by what is chosen, by each kernel of ``attention_weights``, and by the algebra, against the oracle.

Random problems, each feature alone and several together, given or computed lse, and parts of the rows and columns; and the
promises that concern weights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import combinations
from typing import Any

import numpy as np
import pytest

import mha_core as mha
from mha_core.plugin import Kernel
from mha_core.shared import FEATURES as EVERY
from mha_core.shared import STATE_FEATURES

from .backend import BackendUnderTest
from .cases.features import FEATURES, AttentionCall, go_together, plain, rounded, with_features
from .cases.masked_rows import masked_rows
from .cases.problems import Limits
from .judge.layouts import VIEWS
from .judge.random_problems import judge_problems
from .judge.same_bits import assert_same_bits, assert_same_bits_together, bits
from .oracle import tolerance
from .probes.computed_by import ComputedBy

SECTION = "kernels"
pytestmark = pytest.mark.promise(0)
OF_WEIGHTS = [name for name in FEATURES if name in EVERY["attention_weights"]]
SHAPES = [(6, 8), (48, 64)]  # (length, width): a small one, and one for kernels that need round numbers
PARTS: dict[str, dict[str, Any]] = {
    "all": {},
    "slices": {"rows": slice(1, 5), "cols": slice(0, None, 2)},
    "indices": {"rows": [0, 5, 2], "cols": [3, -1, 3]},
    "one row": {"rows": [4]},
    "some columns": {"cols": slice(2, 4)},
    "none": {"rows": [], "cols": slice(0, 0)},
}
"""Rows and columns to select, in calls of at least six queries and keys."""


def tried(weights_by: ComputedBy) -> Iterator[list[str]]:
    """Yield no feature, each feature that the kernel declares, and all pairs that go together."""
    declared = [name for name in OF_WEIGHTS if name in weights_by.handles]
    yield from ([], *([name] for name in declared))
    yield from (list(pair) for pair in combinations(declared, 2) if go_together(pair))


class Judged:
    """One problem: its arrays on the backend, the exact weights, and calls with the same options."""

    def __init__(self, backend: BackendUnderTest, call: AttentionCall, dtype: str) -> None:
        call = rounded(call, lambda x: backend.rounded(x, dtype))
        self.backend, self.dtype = backend, dtype
        self.made: list[tuple[Any, np.ndarray]] = []
        value = np.zeros((*call.key.shape[:-1], 1))
        self.exact = tolerance.exact_attention(call.query, call.key, value, dtype=dtype, **call.oracle)
        self.query, self.key = (self.make(x) for x in (call.query, call.key))
        self.options = {name: option(self.make) for name, option in call.options.items()}
        self.lse = self.make(self.exact.lse, tolerance.compute_dtype(dtype))

    def make(self, x: np.ndarray, dtype: str | None = None) -> Any:
        array = self.backend.array(x, dtype or self.dtype)
        self.made.append((array, self.backend.numpy(array).copy()))
        return array

    def compute(self, lse: Any = None, **part: Any) -> Any:
        return mha.attention_weights(self.query, self.key, lse, **part, **self.options)

    def judge(self, weights: Any, *, rows: Any = slice(None), cols: Any = slice(None), given_lse: bool) -> None:
        """Compare weights with the oracle; those of masked keys must be exactly 0, and no input may be written to."""
        self.backend.assert_like(weights, self.query)
        exact, bound = self.exact.weights, self.exact.weights_bound
        if given_lse:  # it is rounded once more, and so is its difference from a score
            u = tolerance.UNIT_ROUNDOFF[tolerance.compute_dtype(self.dtype)]
            finite = np.where(np.isfinite(self.exact.lse), self.exact.lse, 0)[..., None]
            bound = bound + 4 * u * exact * (1 + np.abs(finite) - np.log(np.maximum(exact, np.finfo(float).tiny)))
        got = self.backend.numpy(weights)
        exact, bound = (x[..., rows, :][..., cols] for x in (exact, bound))
        tolerance.assert_within("weights", got, exact, bound)
        assert (got[exact == 0] == 0).all(), "the weight of a masked key must be exactly 0"
        for array, before in self.made:
            assert self.backend.numpy(array).tobytes() == before.tobytes(), "an input was written to"


def judge_call(backend: BackendUnderTest, call: AttentionCall, dtype: str, parts: Sequence[str] = tuple(PARTS)) -> None:
    """Judge the weights of a call, with and without lse, all of them and some."""
    judged = Judged(backend, call, dtype)
    for name in parts:
        for lse in ((), (judged.lse,)):
            part = PARTS[name]
            try:
                judged.judge(judged.compute(*lse, **part), **part, given_lse=bool(lse))
            except Exception as error:
                error.add_note(f"rows and cols: {name}; lse is {'given' if lse else 'not given'}")
                raise


@pytest.mark.promise(6)
def test_every_declared_feature_is_known(weights_kernel: Kernel) -> None:
    known = EVERY["attention_weights"] | STATE_FEATURES
    unknown = sorted(weights_kernel.handles - known)
    assert not unknown, f"the kernel declares {', '.join(unknown)}; known features are {', '.join(sorted(known))}"


def test_random_problems_equal_the_oracle(
    backend: BackendUnderTest, weights_by: ComputedBy, dtype: str, rng: np.random.Generator
) -> None:
    judge_problems(backend, rng, 200, dtype, check="weights", limits=Limits(times=1))


@pytest.mark.promise(0, 6)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_features_alone_and_in_pairs(
    backend: BackendUnderTest, weights_by: ComputedBy, dtype: str, rng: np.random.Generator, shape: tuple[int, int]
) -> None:
    """A call that uses a feature which the kernel does not declare must not reach it, which the recorder checks."""
    chosen = list(tried(weights_by))
    alone = [features for features in chosen if len(features) < 2]
    pairs = chosen[len(alone) :]
    rng.shuffle(pairs)
    few = backend.quick and weights_by.kernel is None  # some libraries compile every operation again for every new shape
    for features in (*alone[:: 5 if few else 1], *pairs[: 1 if few else backend.count(len(pairs))]):
        for times in (1,) if backend.quick else (1, 8):
            call = with_features(plain(rng, *shape, times=times), features, rng)
            parts = tuple(PARTS) if len(features) < (1 if few else 2) and times == 1 else ("all", "indices")
            try:
                judge_call(backend, call, dtype, parts)
            except Exception as error:
                error.add_note(f"the features: {' and '.join(features) or 'none'}; scores times {times}")
                raise


@pytest.mark.promise(1)
@pytest.mark.parametrize("sink", [False, True], ids=["without sink", "with sink"])
def test_1_the_weights_of_a_fully_masked_row_are_zero(
    backend: BackendUnderTest, weights_by: ComputedBy, dtype: str, rng: np.random.Generator, sink: bool
) -> None:
    call = plain(rng, 6, 8)
    query, key = (backend.array(x, dtype) for x in (call.query, call.key))
    given: dict[str, Any] = {"sink": backend.array(rng.normal(size=4), dtype)} if sink else {}
    for rows in masked_rows(2, 6, 6):
        options = {"mask": rows.mask(backend.array), "query_offset": rows.offset, **given}
        lse = mha.attention_state(query, key, key, **options).lse
        for known in (None, lse):
            weights = backend.numpy(mha.attention_weights(query, key, known, **options))
            empty = np.broadcast_to(rows.masked, weights.shape[:-1])
            assert (weights[empty] == 0).all(), f"{rows.feature}, {'with' if known is not None else 'without'} lse"
            assert (weights[~empty].sum(axis=-1) > 0).all(), rows.feature


@pytest.mark.promise(3)
def test_3_a_masked_key_has_no_weight_however_low_the_others_are(
    backend: BackendUnderTest, weights_by: ComputedBy, rng: np.random.Generator
) -> None:
    """Scores are -1e38: a finite number in place of a masked one would be the greatest."""
    if "float32" not in backend.dtypes:
        pytest.skip("float32 is not judged")
    query, key = np.zeros((2, 2, 4, 6, 8))
    query[..., 0], key[..., 0] = 1e19, -1e19
    q, k = np.arange(6)[:, None], np.arange(6)[None, :]
    for mask, allowed in ((mha.causal(), k <= q), (mha.array_mask(backend.array(k % 2 == q % 2)), k % 2 == q % 2)):
        arrays = (backend.array(x, "float32") for x in (query, key))
        weights = backend.numpy(mha.attention_weights(*arrays, mask=mask, scale=1.0))
        expected = allowed / allowed.sum(axis=-1, keepdims=True)
        np.testing.assert_allclose(weights, np.broadcast_to(expected, weights.shape), rtol=1e-6, atol=0)


@pytest.mark.promise(7)
def test_7_poison_changes_no_bit(
    backend: BackendUnderTest, weights_by: ComputedBy, dtype: str, rng: np.random.Generator
) -> None:
    call = plain(rng, 6, 8)
    query = backend.array(call.query, dtype)
    masks: list[tuple[Any, list[int], int]] = [
        (mha.prefix(4), [4, 5], 0),
        (mha.causal(), [4, 5], -2),
        (mha.window(0, None), [0, 1], 2),
        (backend.array(np.arange(6) % 3 != 1), [1, 4], 0),
        (mha.causal() | mha.prefix(2), [4, 5], -2),
    ]
    for mask, hidden, offset in masks:
        poisoned = call.key.copy()
        poisoned[..., hidden, :] = [np.nan, np.inf] * 4
        for part in PARTS.values():
            clean, other = (
                mha.attention_weights(query, backend.array(key, dtype), mask=mask, query_offset=offset, **part)
                for key in (call.key, poisoned)
            )
            assert bits(backend, clean) == bits(backend, other), "keys that no query may see changed the weights"


@pytest.mark.promise(8)
def test_8_empty_axes_work(backend: BackendUnderTest, weights_by: ComputedBy, dtype: str) -> None:
    def weights(*shapes: tuple[int, ...], **options: Any) -> np.ndarray:
        return backend.numpy(mha.attention_weights(*(backend.array(np.ones(shape), dtype) for shape in shapes), **options))

    assert weights((2, 3, 4), (2, 0, 4)).shape == (2, 3, 0)
    assert weights((2, 0, 4), (2, 3, 4)).shape == (2, 0, 3)
    assert weights((0, 2, 3, 4), (0, 2, 3, 4), mask=mha.causal()).shape == (0, 2, 3, 3)
    assert (weights((2, 3, 4), (2, 3, 4), mask=mha.prefix(0)) == 0).all()
    assert (weights((1, 2, 0), (1, 4, 0)) == 0.25).all()


@pytest.mark.promise(9)
def test_9_half_precision_accumulates_in_float32(backend: BackendUnderTest, weights_by: ComputedBy) -> None:
    """Scores of 300 * 300 * 64 overflow float16."""
    half = [dtype for dtype in backend.dtypes if dtype in ("float16", "bfloat16")]
    if not half:
        pytest.skip("the backend lacks half precision, or it is not judged")
    for dtype in half:
        query, key = (backend.array(np.full((1, n, 64), 300.0), dtype) for n in (2, 4))
        assert (backend.numpy(mha.attention_weights(query, key)) == 0.25).all()


@pytest.mark.promise(12)
@pytest.mark.parametrize("view", VIEWS)
def test_12_strides_do_not_matter(
    backend: BackendUnderTest, weights_by: ComputedBy, dtype: str, rng: np.random.Generator, view: str
) -> None:
    for shape in SHAPES:
        judged = Judged(backend, plain(rng, *shape), dtype)
        judged.query, judged.key, judged.lse = (VIEWS[view](backend.xp, x) for x in (judged.query, judged.key, judged.lse))
        for lse in ((), (judged.lse,)):
            judged.judge(judged.compute(*lse), given_lse=bool(lse))


def works(
    backend: BackendUnderTest, weights_by: ComputedBy, dtype: str, rng: np.random.Generator
) -> Iterator[Callable[[], Any]]:
    """Yield calls without options, and with each feature that the kernel declares; every other one is given lse."""
    for at, features in enumerate(features for features in tried(weights_by) if len(features) < 2):
        judged = Judged(backend, with_features(plain(rng, *SHAPES[at % 2]), features, rng), dtype)
        lse = (judged.lse,) if at % 2 else ()
        yield lambda judged=judged, lse=lse: judged.compute(*lse)  # type: ignore[misc]


@pytest.mark.promise(14)
def test_14_equal_calls_give_the_same_bits(
    backend: BackendUnderTest, weights_by: ComputedBy, dtype: str, rng: np.random.Generator
) -> None:
    assert_same_bits(backend, {f"call {at}": work for at, work in enumerate(works(backend, weights_by, dtype, rng))})


@pytest.mark.promise(14)
def test_14_threads_give_the_same_bits(
    backend: BackendUnderTest, weights_by: ComputedBy, dtype: str, rng: np.random.Generator
) -> None:
    def in_bits(work: Callable[[], Any]) -> Callable[[], bytes]:
        return lambda: bits(backend, work())

    calls = list(works(backend, weights_by, dtype, rng))
    assert_same_bits_together([in_bits(calls[at % len(calls)]) for at in range(8)])
