"""Ctrl-C at any time: afterwards all threads are there and idle, no task runs, and the next call is right and uses them all."""

import gc
import itertools
import random
import signal
import threading

import numpy as np
import pytest
from meeting import BOTH, collected, meeting

import mha_core as mha
from mha_numpy import pool, threads

pytestmark = pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="this system lacks POSIX signals")
SHORT, LONG = 400, 6000  # calls that are interrupted


class Interrupts:
    """Ctrl-C at random times within a call, where Python itself handles signals."""

    def __init__(self, seed):
        self.draw, self.is_armed, self.count = random.Random(seed), False, 0

    def fire(self, *_):
        if self.is_armed:
            self.is_armed = False
            signal.raise_signal(signal.SIGINT)

    def call(self, function, longest):
        """Call a function, with Ctrl-C after at most ``longest`` seconds; return whether it was interrupted."""
        try:
            self.is_armed = True
            signal.setitimer(signal.ITIMER_REAL, longest ** self.draw.uniform(1, 1.8))
            function()
            self.is_armed = False
        except KeyboardInterrupt:
            self.count += 1
            return True
        finally:
            self.is_armed = False
            signal.setitimer(signal.ITIMER_REAL, 0)
        return False


@pytest.fixture(params=[SHORT, pytest.param(LONG, marks=pytest.mark.full)])
def calls(request):
    return request.param


@pytest.fixture
def interrupts(calls):
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")
    made = Interrupts(seed)
    handlers = [signal.signal(signal.SIGINT, signal.default_int_handler), signal.signal(signal.SIGALRM, made.fire)]
    gc.disable()  # Python drops an exception that a callback of the collector raises, and other libraries have callbacks
    yield made
    signal.setitimer(signal.ITIMER_REAL, 0)
    gc.enable()
    signal.signal(signal.SIGINT, handlers[0])
    signal.signal(signal.SIGALRM, handlers[1])
    print(f"{made.count} calls were interrupted")


def assert_all_is_well(blas_count):
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert (pool._pool.at_work, pool._pool.queues, pool.inside_a_task(), blas_count()) == (0, [], False, 4)


def assert_all_threads_work():
    met = meeting(4)
    assert len(set(collected(lambda _: (met.wait(), threading.get_ident())[1], range(4)))) == 4
    while pool._pool.idle < pool._pool.helpers:  # a lost thread would never be idle
        threading.Event().wait(0.001)
    assert pool._pool.helpers >= 3


@BOTH
def test_ctrl_c_loses_no_thread(blas_count, interrupts, calls, compute, monkeypatch):
    began, ended = [], []

    def task(n):
        began.append(n)
        try:
            return n * n
        finally:
            ended.append(n)

    for at in range(calls):
        starts = at % (calls // 16) == 0  # a new pool, whose threads start during this call
        if starts:
            monkeypatch.setattr(pool, "_pool", pool._Pool())
        interrupts.call(lambda: compute(task, range(6)), 2e-3 if starts else 4e-4)
        assert len(began) == len(ended) <= 6, "a task outlived its call"
        began.clear(), ended.clear()
        assert_all_is_well(blas_count)
        if starts or at % 16 == 0:
            assert_all_threads_work()
            assert compute(lambda n: n * n, range(30)) == [n * n for n in range(30)]
    assert interrupts.count > calls / 50


@pytest.mark.parametrize("length", [40, 200])  # computed in the caller's thread, and by several
def test_attention_is_right_after_ctrl_c(blas_count, interrupts, calls, length):
    query = np.random.default_rng(0).normal(size=(3, 2, length, 8)).astype(np.float32)

    def attend():
        return mha.scaled_dot_product_attention(query, query, query, mask=mha.causal(), bias=mha.alibi(2))

    expected = attend()
    for _ in range(calls // 2):
        interrupts.call(attend, 3e-3)
        assert_all_is_well(blas_count)
        assert np.array_equal(attend(), expected)
    assert_all_threads_work()
    assert interrupts.count > calls / 50


def test_a_task_is_ended_by_ctrl_c_and_handlers_of_users_are_called(blas_count, interrupts):
    caller, begun = threading.get_ident(), []

    def task(n):
        begun.append(n)
        while threading.get_ident() == caller:  # Ctrl-C ends it
            pass

    for compute in (threads.run, threads.run_in_turn):
        begun.clear()
        assert interrupts.call(lambda: compute(task, itertools.count() if compute is threads.run_in_turn else [0]), 1e-3)  # noqa: B023
        assert begun in ([], [0])
    heard = []
    signal.signal(signal.SIGINT, lambda *_: heard.append(pool.inside_a_task()))
    assert collected(lambda n: (signal.raise_signal(signal.SIGINT), n)[1], [7]) == [7]
    assert heard == [True]
    assert_all_threads_work()


def test_a_handler_that_a_handler_sets_stays(interrupts):
    """Such as: the first Ctrl-C asks whether to stop, the second stops."""

    def second(*_):
        pass

    signal.signal(signal.SIGINT, lambda *_: signal.signal(signal.SIGINT, second))
    assert collected(lambda n: (signal.raise_signal(signal.SIGINT), n)[1], [7]) == [7]
    assert signal.getsignal(signal.SIGINT) is second
