"""Prepared calls: what ``Kernel.prepare`` returns for one problem is right for every problem that has the same key.

A function is prepared by a first call, and then called with other numbers, with other strides of the same shapes, and from
other threads. Each result is compared with the oracle; equal arrays must give equal bits; and no call may change an earlier
result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import mha_core as mha
from mha_core.plugin import Kernel
from mha_core.shared import imported

from .backend import BackendUnderTest
from .cases.features import FEATURES, AttentionCall, go_together, plain, rounded, with_features
from .judge.layouts import VIEWS
from .judge.same_bits import bits
from .oracle import tolerance
from .probes.recorder import recorded
from .report.sections import REFUSED_EVERY_CALL

SECTION = "kernels"
Arrays = list[Any]
HAVE_ARRAYS = {"array_mask", "key_lengths", "bias", "relative_bias"}
"""Features of calls that are never prepared, since their masks or biases hold arrays."""


@contextmanager
def counted(kernel: Kernel) -> Iterator[list[int]]:
    """Prefer a kernel to all others; yield a list that receives an item for each prepared call."""
    calls: list[int] = []

    def prepare(problem: Any) -> Callable[..., Any] | None:
        assert kernel.prepare is not None
        compute = imported(kernel.prepare)(problem)

        def run(*arrays: Any) -> Any:
            calls.append(1)
            return compute(*arrays)

        return None if compute is None else run

    changes: dict[str, Any] = {"prepare": prepare}
    with recorded(replace(kernel, **changes), kernel.handles):
        yield calls


class Prepared:
    """Calls of one key, with any numbers, compared with the oracle."""

    def __init__(self, backend: BackendUnderTest, kernel: Kernel, dtype: str, options: AttentionCall) -> None:
        self.backend, self.dtype, self.given = backend, dtype, options
        operation = mha.attention_state if "lse" in kernel.handles else mha.scaled_dot_product_attention
        self.operation: Callable[..., Any] = operation

    def numbers(self, rng: np.random.Generator) -> AttentionCall:
        """Return the call with new numbers in every array."""
        arrays = {name: rng.normal(size=getattr(self.given, name).shape) for name in ("query", "key", "value")}
        floats = {name: rng.normal(size=x.shape) for name, x in self.given.floats.items()}
        return rounded(replace(self.given, **arrays, floats=floats), lambda x: self.backend.rounded(x, self.dtype))

    def arrays(self, call: AttentionCall) -> Arrays:
        return [self.backend.array(x, self.dtype) for x in (call.query, call.key, call.value)]

    def compute(self, call: AttentionCall, arrays: Arrays) -> Any:
        options = {name: option(lambda x: self.backend.array(x, self.dtype)) for name, option in call.options.items()}
        return self.operation(*arrays, **options)

    def judge(self, call: AttentionCall, result: Any, what: str) -> None:
        """Raise AssertionError, with ``what`` as a note, if a result is wrong."""
        exact = self.backend.exact_attention(call.query, call.key, call.value, dtype=self.dtype, **call.oracle)
        out, lse = result if isinstance(result, tuple) else (result, None)
        try:
            exact.assert_near(self.backend.numpy(out))
            if lse is not None:
                tolerance.assert_within("lse", self.backend.numpy(lse), exact.lse, exact.lse_bound)
        except AssertionError as error:
            error.add_note(f"a prepared call {what}")
            raise


def judge_prepared(prepared: Prepared, rng: np.random.Generator) -> None:
    """Make calls of one key: the first prepares, and all must be right."""
    first, second = prepared.numbers(rng), prepared.numbers(rng)
    given = prepared.arrays(first)
    result = prepared.compute(first, given)
    before = bits(prepared.backend, result)
    prepared.judge(first, result, "that was the first of its key")
    arrays = prepared.arrays(second)
    other = prepared.compute(second, arrays)
    prepared.judge(second, other, "with other numbers than the first")
    assert bits(prepared.backend, result) == before, "a prepared call changed the result of the one before"
    assert bits(prepared.backend, prepared.compute(first, given)) == before, "the first call returned other bits a second time"
    for name, view in VIEWS.items():
        call = prepared.numbers(rng)
        views = [view(prepared.backend.xp, x) for x in prepared.arrays(call)]
        prepared.judge(call, prepared.compute(call, views), f"with arrays that are {name}")
    expected = bits(prepared.backend, other)
    with ThreadPoolExecutor(2) as threads:
        works = [threads.submit(prepared.compute, second, arrays) for _ in range(4)]
        assert all(bits(prepared.backend, work.result()) == expected for work in works), "another thread got other bits"


@pytest.mark.promise(0, 12, 14)
def test_a_prepared_call_is_right_for_other_arrays_and_threads(
    backend: BackendUnderTest, attention_kernel: Kernel, dtype: str, rng: np.random.Generator
) -> None:
    """Without options, with each feature that the kernel declares, and with several."""
    if attention_kernel.prepare is None:
        pytest.skip("the kernel has no prepare")
    declared = [name for name in FEATURES if name in attention_kernel.handles - HAVE_ARRAYS]
    several = [name for name in declared if rng.random() < 0.3]
    tried = [[], *([name] for name in declared), *([several] if go_together(several) else [])]
    with counted(attention_kernel) as calls:
        for features in tried:
            for length, width in ((6, 8), (48, 64)):
                judge_prepared(
                    Prepared(backend, attention_kernel, dtype, with_features(plain(rng, length, width), features, rng)), rng
                )
    if not calls:
        pytest.skip(f"{REFUSED_EVERY_CALL}: none was prepared")
