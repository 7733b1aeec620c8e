"""Promise 14: any number of threads may call at the same time; each call gives the same bits as when it is made alone."""

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
from .backend import BackendUnderTest
from .cases.features import ALL_FEATURES, FEATURES, go_together, plain, rounded, with_features
from .cases.pieces import PIECES, piece_calls
from .probes.recorder import recorded
from .report.sections import REFUSED_EVERY_CALL

pytestmark = pytest.mark.promise(14)
THREADS = 8
Work = Callable[[], bytes]


def assert_same_bits_together(works: Sequence[Work]) -> None:
    """Run each piece of work alone, then all at the same time, each several times on its own thread."""
    alone = [work() for work in works]
    together = threading.Barrier(len(works))
    wrong: list[int] = []
    errors: list[Exception] = []

    def repeat(at: int) -> None:
        try:
            together.wait(timeout=60)
            wrong.extend(at for _ in range(5) if works[at]() != alone[at])
        except Exception as error:  # an exception raised in a thread would be lost
            errors.append(error)

    threads = [threading.Thread(target=repeat, args=(at,)) for at in range(len(works))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    assert not wrong, f"calls {sorted(set(wrong))} of {len(works)} returned different bits in parallel, {len(wrong)} times"


def attention_works(
    backend: BackendUnderTest, rng: np.random.Generator, dtype: str, features: Sequence[str], *, wants_lse: bool
) -> list[Work]:
    """Return one problem for each thread, of two lengths, each with some of these features."""

    def work(at: int) -> Work:
        call = plain(rng, (6, 48)[at % 2], (8, 64)[at % 2])
        chosen = [name for name in features if rng.random() < 0.3]
        call = with_features(call, chosen if at >= 2 and go_together(chosen) else [], rng)
        call = rounded(call, lambda x: backend.rounded(x, dtype))
        arrays = [backend.array(x, dtype) for x in (call.query, call.key, call.value)]
        options = {name: option(lambda x: backend.array(x, dtype)) for name, option in call.options.items()}

        def bits() -> bytes:
            if not wants_lse:
                return backend.numpy(mha.scaled_dot_product_attention(*arrays, **options)).tobytes()
            return b"".join(backend.numpy(x).tobytes() for x in mha.attention_state(*arrays, **options))

        return bits

    return [work(at) for at in range(THREADS)]


def test_attention_gives_the_same_bits(backend: BackendUnderTest, dtype: str, rng: np.random.Generator) -> None:
    """Different problems at the same time, with the kernels that are chosen without preference."""
    features = list(FEATURES)[:: 4 if backend.quick else 1]
    assert_same_bits_together(attention_works(backend, rng, dtype, features, wants_lse=True))


def test_a_kernel_of_attention_gives_the_same_bits(
    backend: BackendUnderTest, attention_kernel: Kernel, dtype: str, rng: np.random.Generator
) -> None:
    """Calls use features that the kernel declares; it is preferred to all others."""
    declared = [name for name in FEATURES if name in attention_kernel.handles]
    with recorded(attention_kernel, ALL_FEATURES) as recording:
        assert_same_bits_together(attention_works(backend, rng, dtype, declared, wants_lse="lse" in declared))
    if not recording.runs:
        pytest.skip(f"{REFUSED_EVERY_CALL}: {'; '.join(sorted(set(recording.reasons)))}")


@pytest.mark.parametrize("op", PIECES)
def test_a_piece_gives_the_same_bits(backend: BackendUnderTest, rng: np.random.Generator, op: str) -> None:
    dtype = backend.dtypes[0]

    def work(call: Any) -> Work:
        arrays = [None if x is None else backend.array(x, dtype) for x in call.arrays]
        return lambda: backend.numpy(call.operation(*arrays, **call.options)).tobytes()

    calls = list(piece_calls(rng, op))
    assert_same_bits_together([work(calls[at % len(calls)]) for at in range(THREADS)])


def test_calls_of_one_shape_do_not_mix(backend: BackendUnderTest, dtype: str, rng: np.random.Generator) -> None:
    """Calls of one shape with different arrays, in threads that switch as often as possible, for a while.

    About ten calls, in a tenth of a second, detected a kernel that keeps its scores in an array shared by all threads.
    """
    problems = [[backend.array(rng.normal(size=(2, 4, 32, 8)), dtype) for _ in range(3)] for _ in range(4)]
    together, wrong = threading.Barrier(4), threading.Event()

    def bits(at: int) -> list[bytes]:
        return [backend.numpy(x).tobytes() for x in mha.attention_state(*problems[at])]

    def work(at: int) -> None:
        together.wait(timeout=60)
        until = time.monotonic() + (0.3 if backend.quick else 1.0)
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
    assert not wrong.is_set(), "a call returned different bits while others ran than alone"
