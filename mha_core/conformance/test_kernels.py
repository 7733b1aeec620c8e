"""Kernels of this backend: a declared feature must work, an undeclared one must be refused.

Each kernel is brought before all others and watched while calls are made through the public operations; the features of a
call are those that core itself names. A kernel whose ``supports`` refuses every call that was tried is skipped with its
reasons: it may be for another device.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import combinations

import numpy as np
import pytest

import mha_core as mha

from ..dispatch.contract import Kernel
from . import oracle
from .calls import BESIDE, FEATURES, AttentionCall, go_together, plain, rounded, with_features
from .judge import judge_call
from .layers import LAYERS, assert_close, layer_calls
from .pieces import PIECES, piece_calls
from .problems import Limits
from .sections import REFUSED_EVERY_CALL
from .smallest import judge_problems
from .spy import Watch, watched
from .subject import Subject, unchanged
from .tolerance import UNIT_ROUNDOFF, assert_within

EVERY = frozenset(FEATURES) | BESIDE
LONG = ((1, 2, 2, 150, 150, 64, 64), (1, 1, 4, 1, 1100, 64, 64), (2, 1, 1, 20, 300, 128, 96), (1, 1, 1, 300, 40, 32, 40))
"""What goes over several tiles of any kernel: the two lengths alike, one query, more keys, more queries."""
SHAPES = [(6, 8), (48, 64)]  # (length, width): one for what is general, one for what wants round numbers


def judge(subject: Subject, kernel: Kernel, call: AttentionCall, dtype: str) -> Watch:
    """One call, with this kernel asked first; log-sum-exps are not asked of a kernel that does not declare them."""
    with watched(kernel, EVERY) as watch:
        judge_call(subject, call, dtype, wants_lse="lse" in kernel.handles)
    watch.assert_given_what_it_declares()
    return watch


def skip_if_never_run(watches: Iterable[Watch]) -> None:
    seen = list(watches)
    if not any(watch.runs for watch in seen):
        reasons = sorted({reason for watch in seen for reason in watch.reasons})
        pytest.skip(f"{REFUSED_EVERY_CALL}: {'; '.join(reasons)}" if reasons else "the kernel was asked for no call tried here")


@pytest.mark.promise(6)
def test_every_declared_feature_is_known(attention_kernel: Kernel) -> None:
    unknown = sorted(attention_kernel.handles - EVERY)
    assert not unknown, f"the kernel declares {', '.join(unknown)}; features are {', '.join(sorted(EVERY))}"


@pytest.mark.promise(0)
def test_plain_attention(subject: Subject, attention_kernel: Kernel, dtype: str, rng: np.random.Generator) -> None:
    calls = [plain(rng, *shape, times=times) for shape in SHAPES for times in (1, 8)]
    skip_if_never_run([judge(subject, attention_kernel, call, dtype) for call in calls])


@pytest.mark.promise(6)
@pytest.mark.parametrize("feature", FEATURES)
def test_a_declared_feature_works(
    subject: Subject, attention_kernel: Kernel, dtype: str, rng: np.random.Generator, feature: str
) -> None:
    if feature not in attention_kernel.handles:
        pytest.skip(f"the kernel does not declare {feature}")
    calls = [with_features(plain(rng, *shape, times=times), [feature], rng) for shape in SHAPES for times in (1, 8)]
    skip_if_never_run([judge(subject, attention_kernel, call, dtype) for call in calls])


@pytest.mark.promise(6)
def test_pairs_of_declared_features_work(
    subject: Subject, attention_kernel: Kernel, dtype: str, rng: np.random.Generator
) -> None:
    declared = [name for name in FEATURES if name in attention_kernel.handles]
    pairs = [pair for pair in combinations(declared, 2) if go_together(pair)]
    rng.shuffle(pairs)
    if not pairs:
        pytest.skip("the kernel declares no two features that go together")
    chosen = pairs[: subject.count(len(pairs))]
    skip_if_never_run(
        [judge(subject, attention_kernel, with_features(plain(rng, *SHAPES[0]), pair, rng), dtype) for pair in chosen]
    )


@pytest.mark.promise(6)
@pytest.mark.parametrize("feature", [name for name in FEATURES if name != "lse"])
def test_an_undeclared_feature_is_refused(
    subject: Subject, attention_kernel: Kernel, rng: np.random.Generator, feature: str
) -> None:
    """With everything that the kernel does declare beside it, where it goes together: the kernel must never be called."""
    if feature in attention_kernel.handles:
        pytest.skip(f"the kernel declares {feature}")
    beside = [name for name in FEATURES if name in attention_kernel.handles and go_together((name, feature))]
    for others in ([], *([name] for name in beside)):
        watch = judge(
            subject, attention_kernel, with_features(plain(rng, *SHAPES[0]), [feature, *others], rng), subject.dtypes[0]
        )
        assert any(feature in call.features for call in watch.seen), f"core did not name {feature}"
        assert not watch.runs, f"the kernel does not declare {feature}, and was called"


@pytest.mark.promise(0, 6)
def test_a_gradient_is_right_whoever_computes_it(
    subject: Subject, attention_kernel: Kernel, rng: np.random.Generator, wide_dtype: str
) -> None:
    """A kernel that does not declare ``gradient`` must not be called where one is recorded: it would cut it off."""
    call = rounded(plain(rng, *SHAPES[0]), lambda x: subject.rounded(x, wide_dtype))
    arrays = [subject.array(x, wide_dtype) for x in (call.query, call.key, call.value)]
    if subject.backend.features is None or not all(hasattr(x, "requires_grad_") for x in arrays):
        pytest.skip("the backend records no gradients, or not by requires_grad_ and backward")
    arrays = [x.requires_grad_() for x in arrays]
    towards = rng.normal(size=call.query.shape)
    with watched(attention_kernel, EVERY) as watch:
        out = mha.scaled_dot_product_attention(*arrays)
        (out * subject.array(towards, wide_dtype)).sum().backward()
    watch.assert_given_what_it_declares()
    assert "gradient" in attention_kernel.handles or not watch.runs
    scale = call.query.shape[-1] ** -0.5
    y, _, p = oracle.attention(call.query, call.key, call.value)
    d_scores = p * (towards @ np.swapaxes(call.value, -1, -2) - (towards * y).sum(axis=-1, keepdims=True)) * scale
    turned = np.swapaxes(d_scores, -1, -2)
    expected = (d_scores @ call.key, turned @ call.query, np.swapaxes(p, -1, -2) @ towards)
    for name, x, exact in zip(("query", "key", "value"), arrays, expected, strict=True):
        tolerance = 200 * UNIT_ROUNDOFF[wide_dtype] * max(1.0, float(np.abs(exact).max()))
        np.testing.assert_allclose(subject.numpy(x.grad), exact, rtol=0, atol=tolerance, err_msg=f"gradient of {name}")


@pytest.mark.promise(0)
@pytest.mark.parametrize(
    ("count", "limits"), [(400, Limits(times=1)), (30, Limits(times=1, depth=1, shapes=LONG))], ids=["short", "long"]
)
def test_random_problems_equal_the_oracle(
    subject: Subject, attention_kernel: Kernel, dtype: str, rng: np.random.Generator, count: int, limits: Limits
) -> None:
    """Whatever of them the kernel takes."""
    if "lse" not in attention_kernel.handles:
        pytest.skip("the kernel does not declare lse: it is judged by out alone, elsewhere in this module")
    with watched(attention_kernel, EVERY) as watch:
        judge_problems(subject, rng, count, dtype, kernel=attention_kernel.name, limits=limits)
    skip_if_never_run([watch])


@pytest.mark.promise(0)
def test_a_kernel_of_a_piece(subject: Subject, piece_kernel: Kernel, dtype: str, rng: np.random.Generator) -> None:
    kernel = piece_kernel
    watches = []
    for call in piece_calls(rng, kernel.op):
        given = [None if x is None else subject.rounded(x, dtype) for x in call.arrays]
        arrays = [None if x is None else subject.array(x, dtype) for x in given]
        named = {f"argument {at} of {kernel.op}": x for at, x in enumerate(arrays) if x is not None}
        before = {name: subject.numpy(x).copy() for name, x in named.items()}
        with watched(kernel, EVERY) as watch:
            result = call.operation(*arrays, **call.options)
        watch.assert_given_what_it_declares()
        watches.append(watch)
        subject.assert_like(result, arrays[0])
        exact = call.exact(*given, **call.options)
        assert_within(f"{kernel.op} {call.name}".strip(), subject.numpy(result), exact, call.bound(exact, tuple(given), dtype))
        unchanged(subject, named, before)
    skip_if_never_run(watches)


@pytest.mark.promise(0)
def test_a_kernel_of_a_layer(subject: Subject, layer_kernel: Kernel, dtype: str, rng: np.random.Generator) -> None:
    """As it is chosen by itself, against NumPy; in float32 and float64, as layers are."""
    op = layer_kernel.op
    assert op in LAYERS, f"this suite knows no operation {op!r}; known are attention, {', '.join((*PIECES, *LAYERS))}"
    if dtype not in ("float32", "float64"):
        pytest.skip("layers are judged in float32 and float64")
    with watched(layer_kernel, EVERY | layer_kernel.handles) as watch:
        for result, given, expected in layer_calls(subject, op, dtype, rng):
            assert_close(subject, result, given, expected, dtype)
    undeclared = [sorted(call.features - layer_kernel.handles) for call in watch.asked]
    assert not any(undeclared), f"the kernel was asked for {undeclared}, which it does not declare"
    skip_if_never_run([watch])
