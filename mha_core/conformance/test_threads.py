"""Promise 14: any number of threads may call at once, and every call gives the bits that it gives alone."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import mha_core as mha

from ..dispatch.contract import Kernel
from .calls import BESIDE, FEATURES, go_together, plain, rounded, with_features
from .pieces import PIECES, piece_calls
from .spy import watched
from .subject import Subject

pytestmark = pytest.mark.promise(14)
THREADS = 8
Work = Callable[[], bytes]


def assert_same_bits_together(works: Sequence[Work]) -> None:
    """Each work alone, then all at once, each on a thread of its own and begun at once, several times over."""
    alone = [work() for work in works]
    together = threading.Barrier(len(works))
    wrong: list[int] = []
    errors: list[Exception] = []

    def repeat(at: int) -> None:
        try:
            together.wait(timeout=60)
            wrong.extend(at for _ in range(5) if works[at]() != alone[at])
        except Exception as error:  # it would be lost with its thread
            errors.append(error)

    threads = [threading.Thread(target=repeat, args=(at,)) for at in range(len(works))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    assert not wrong, f"calls {sorted(set(wrong))} of {len(works)} at once gave other bits than alone, {len(wrong)} times"


def attention_works(
    subject: Subject, rng: np.random.Generator, dtype: str, features: Sequence[str], *, wants_lse: bool
) -> list[Work]:
    """As many different problems as there are threads: of two lengths, each with some of these features."""

    def work(at: int) -> Work:
        call = plain(rng, (6, 48)[at % 2], (8, 64)[at % 2])
        chosen = [name for name in features if rng.random() < 0.3]
        call = with_features(call, chosen if at >= 2 and go_together(chosen) else [], rng)
        call = rounded(call, lambda x: subject.rounded(x, dtype))
        arrays = [subject.array(x, dtype) for x in (call.query, call.key, call.value)]
        options = {name: option(lambda x: subject.array(x, dtype)) for name, option in call.options.items()}

        def bits() -> bytes:
            if not wants_lse:
                return subject.numpy(mha.scaled_dot_product_attention(*arrays, **options)).tobytes()
            return b"".join(subject.numpy(x).tobytes() for x in mha.attention_state(*arrays, **options))

        return bits

    return [work(at) for at in range(THREADS)]


def test_attention_gives_the_same_bits(subject: Subject, dtype: str, rng: np.random.Generator) -> None:
    """Different problems at once, by whatever computes them."""
    features = list(FEATURES)[:: 4 if subject.quick else 1]
    assert_same_bits_together(attention_works(subject, rng, dtype, features, wants_lse=True))


def test_a_kernel_of_attention_gives_the_same_bits(
    subject: Subject, attention_kernel: Kernel, dtype: str, rng: np.random.Generator
) -> None:
    """With the features that the kernel declares, for which it is asked first."""
    declared = [name for name in FEATURES if name in attention_kernel.handles]
    with watched(attention_kernel, {*FEATURES, *BESIDE}) as watch:
        assert_same_bits_together(attention_works(subject, rng, dtype, declared, wants_lse="lse" in declared))
    if not watch.runs:
        pytest.skip(f"the kernel refused every call: {'; '.join(sorted(set(watch.reasons)))}")


@pytest.mark.parametrize("op", PIECES)
def test_a_piece_gives_the_same_bits(subject: Subject, rng: np.random.Generator, op: str) -> None:
    dtype = subject.dtypes[0]

    def work(call: Any) -> Work:
        arrays = [None if x is None else subject.array(x, dtype) for x in call.arrays]
        return lambda: subject.numpy(call.operation(*arrays, **call.options)).tobytes()

    calls = list(piece_calls(rng, op))
    assert_same_bits_together([work(calls[at % len(calls)]) for at in range(THREADS)])


def test_calls_of_one_shape_do_not_mix(subject: Subject, dtype: str, rng: np.random.Generator) -> None:
    """Calls of one shape, each with arrays of its own, and threads that take turns as often as they can, for a while.

    A kernel that keeps its scores where all threads do was found by some ten calls in a tenth of a second.
    """
    problems = [[subject.array(rng.normal(size=(2, 4, 32, 8)), dtype) for _ in range(3)] for _ in range(4)]
    together, wrong = threading.Barrier(4), threading.Event()

    def bits(at: int) -> list[bytes]:
        return [subject.numpy(x).tobytes() for x in mha.attention_state(*problems[at])]

    def work(at: int) -> None:
        together.wait(timeout=60)
        until = time.monotonic() + (0.3 if subject.quick else 1.0)
        while time.monotonic() < until and not wrong.is_set():
            if bits(at) != expected[at]:
                wrong.set()

    expected = [bits(at) for at in range(4)]
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as threads:
            list(threads.map(work, range(4)))
    finally:
        sys.setswitchinterval(before)
    assert not wrong.is_set(), "a call gave other bits beside others than it gave alone"
