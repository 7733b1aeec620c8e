"""Promise 14: any number of threads may call at the same time; each call gives the same bits as when it is made alone."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Any

import numpy as np
import pytest

import mha_core as mha

from .backend import BackendUnderTest
from .cases.features import FEATURES, go_together, plain, rounded, with_features
from .cases.pieces import piece_calls
from .judge.same_bits import Work, assert_same_bits_together, bits
from .probes.computed_by import ComputedBy

pytestmark = pytest.mark.promise(14)
THREADS = 8


def attention_works(backend: BackendUnderTest, rng: np.random.Generator, dtype: str, features: Sequence[str]) -> list[Work]:
    """Return one problem for each thread, of two lengths, each with some of these features."""

    def work(at: int) -> Work:
        call = plain(rng, (6, 48)[at % 2], (8, 64)[at % 2])
        chosen = [name for name in features if rng.random() < 0.3]
        call = with_features(call, chosen if at >= 2 and go_together(chosen) else [], rng)
        call = rounded(call, lambda x: backend.rounded(x, dtype))
        arrays = [backend.array(x, dtype) for x in (call.query, call.key, call.value)]
        options = {name: option(lambda x: backend.array(x, dtype)) for name, option in call.options.items()}
        return lambda: bits(backend, mha.attention_state(*arrays, **options))

    return [work(at) for at in range(THREADS)]


def test_attention_gives_the_same_bits(
    backend: BackendUnderTest, attention_by: ComputedBy, dtype: str, rng: np.random.Generator
) -> None:
    """Different problems at the same time, with the features that a kernel declares, or with all."""
    features = [name for name in FEATURES if name in attention_by.handles - {"lse"}]
    features = features[:: 4 if backend.quick and attention_by.kernel is None else 1]
    assert_same_bits_together(attention_works(backend, rng, dtype, features))


def test_a_piece_gives_the_same_bits(backend: BackendUnderTest, piece_by: ComputedBy, rng: np.random.Generator) -> None:
    dtype = backend.dtypes[0]

    def work(call: Any) -> Work:
        arrays = [None if x is None else backend.array(x, dtype) for x in call.arrays]
        return lambda: backend.numpy(call.operation(*arrays, **call.options)).tobytes()

    calls = list(piece_calls(rng, piece_by.op))
    assert_same_bits_together([work(calls[at % len(calls)]) for at in range(THREADS)])


def test_calls_of_one_shape_do_not_mix(
    backend: BackendUnderTest, attention_by: ComputedBy, dtype: str, rng: np.random.Generator
) -> None:
    """Calls of one shape with different arrays, in threads that switch as often as possible, for a while.

    About ten calls, in a tenth of a second, detected a kernel that keeps its scores in an array shared by all threads.
    """
    problems = [[backend.array(rng.normal(size=(2, 4, 32, 8)), dtype) for _ in range(3)] for _ in range(4)]
    together, wrong = threading.Barrier(4), threading.Event()

    def compute(at: int) -> bytes:
        return bits(backend, mha.attention_state(*problems[at]))

    def work(at: int) -> None:
        together.wait(timeout=60)
        until = time.monotonic() + (0.3 if backend.quick else 1.0)
        while time.monotonic() < until and not wrong.is_set():
            if compute(at) != expected[at]:
                wrong.set()

    expected = [compute(at) for at in range(4)]
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as threads:
            contexts = [copy_context() for _ in range(4)]  # use_kernel is part of the context
            list(threads.map(lambda at: contexts[at].run(work, at), range(4)))
    finally:
        sys.setswitchinterval(before)
    assert not wrong.is_set(), "a call returned different bits while others ran than alone"
