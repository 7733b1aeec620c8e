"""The pool of threads: nested and concurrent callers, and tasks that raise."""

import gc
import signal
import sys
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
from meeting import AT_MOST, BOTH, collected, meeting

from mha_numpy import cores, pool, threads

SOON = 0.2  # seconds to wait for what must not happen


# nested and concurrent callers


@BOTH
def test_a_call_from_inside_a_task_runs_its_own_tasks_in_turn(blas_count, compute):
    met, never = meeting(2), threading.Event()

    def inner(pair):
        never.wait(0.005)  # time for the two free threads to take a task too
        return (*pair, threading.get_ident())

    def outer(n):
        met.wait()
        return compute(inner, [(n, m) for m in range(5)]), threading.get_ident()

    for n, (results, thread) in enumerate(compute(outer, range(2))):
        assert results == [(n, m, thread) for m in range(5)]
    assert blas_count() == 4


def test_a_helper_leaves_its_core_to_a_second_caller(blas_count, monkeypatch):
    cores.set_num_threads(2)
    helped_by, help_it = [], pool.TaskQueue.help
    monkeypatch.setattr(pool.TaskQueue, "help", lambda call: helped_by.append(threading.get_ident()) or help_it(call))
    helped, second_is_in, first_is_done, never = threading.Event(), threading.Event(), threading.Event(), threading.Event()
    both_of_first, both_of_second = threading.Barrier(2, helped.set, AT_MOST), meeting(2)

    def task_of_first(n):
        if n < 2:
            both_of_first.wait()
            assert second_is_in.wait(AT_MOST)
        never.wait(0.002)  # time for another thread to take a task too
        return threading.get_ident()

    def task_of_second(n):
        second_is_in.set()
        assert first_is_done.wait(AT_MOST)
        both_of_second.wait()
        return threading.get_ident()

    def first():
        idents = collected(task_of_first, range(30))
        first_is_done.set()
        return idents, threading.get_ident()

    with ThreadPoolExecutor(1) as callers:
        other = callers.submit(first)
        assert helped.wait(AT_MOST)
        idents = collected(task_of_second, range(2))
        assert threading.get_ident() in idents and len(set(idents)) == 2
        idents, caller = other.result()
        assert caller in idents[:2] and len(set(idents[:2])) == 2
        assert set(idents[2:]) == {caller}
    assert len(helped_by) == 2, "a helper that has left must sleep until a core is free"


def test_many_callers_at_once_all_finish(blas_count):
    def call(name):
        return [sum(collected(partial(lambda n, m: n * m, name), range(50))) for _ in range(20)]

    with ThreadPoolExecutor(8) as callers:
        assert list(callers.map(call, range(16))) == [[name * 1225] * 20 for name in range(16)]
    assert blas_count() == 4
    assert (pool._pool.at_work, pool._pool.queues) == (0, [])


def test_callers_in_several_threads_restore_the_blas_when_the_last_one_ends(blas_count):
    both_inside, first_is_done = meeting(2), threading.Event()

    def task(name, n):
        if n == 0:
            both_inside.wait()
        if name == "second":
            assert first_is_done.wait(AT_MOST)
        return blas_count()

    def call(name):
        return collected(partial(task, name), range(3))

    with ThreadPoolExecutor(2) as callers:
        first, second = (callers.submit(call, name) for name in ("first", "second"))
        assert first.result() == [1] * 3
        first_is_done.set()
        assert second.result() == [1] * 3
    assert blas_count() == 4


# exceptions


@BOTH
def test_an_exception_in_a_task_is_raised_and_the_blas_restored(blas_count, compute):
    with pytest.raises(ZeroDivisionError):
        compute(lambda n: 1 / n, [2, 1, 0, 3])
    assert blas_count() == 4
    assert (pool._pool.at_work, pool._pool.queues) == (0, [])


@pytest.mark.parametrize("failing", range(4))
@BOTH
def test_an_exception_waits_for_tasks_that_have_begun_and_no_other_begins(blas_count, compute, failing):
    met, raised, begun, too_soon = meeting(4), threading.Event(), [], []

    def task(n):
        begun.append(n)
        met.wait()
        if n == failing:
            raise ZeroDivisionError
        too_soon.append(raised.wait(SOON))

    with pytest.raises(ZeroDivisionError):
        compute(task, range(100))
    raised.set()
    assert sorted(begun) == [0, 1, 2, 3]
    assert too_soon == [False] * 3


def test_the_first_of_several_exceptions_is_raised_and_not_kept(blas_count):
    class First(Exception):
        pass

    met, first = meeting(4), threading.Event()

    def task(n):
        met.wait()
        if n == 2:
            first.set()
            raise First(n)
        assert first.wait(AT_MOST)
        threading.Event().wait(0.01)  # until the first is recorded
        raise ValueError(n)

    def raised():
        try:
            threads.run(task, range(4))
        except First as error:
            return weakref.ref(error)

    gc.disable()  # a reference cycle would keep the caller's arrays alive for a while
    try:
        assert raised()() is None
    finally:
        gc.enable()


@pytest.mark.skipif(sys.platform == "win32", reason="this system lacks POSIX signals")
def test_an_interrupt_waits_for_tasks_that_have_begun(blas_count):
    cores.set_num_threads(2)
    main, met, ended = threading.get_ident(), meeting(2), []

    def task(_):
        met.wait()
        if threading.get_ident() == main:
            return
        waiters = pool._pool.queues[0]._changed._waiters
        while not waiters:
            threading.Event().wait(0.001)
        signal.pthread_kill(main, signal.SIGINT)
        threading.Event().wait(SOON)
        ended.append(True)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # background jobs of a shell ignore it
    try:
        with pytest.raises(KeyboardInterrupt):
            threads.run(task, range(2))
    finally:
        signal.signal(signal.SIGINT, before)
    assert ended == [True]
    assert blas_count() == 2


def test_sleeping_helpers_keep_no_reference_to_items(blas_count):
    class Item:
        pass

    items, met = [Item() for _ in range(4)], meeting(4)
    known = [weakref.ref(item) for item in items]
    threads.run(lambda _: met.wait(), items)
    del items
    while pool._pool.idle < 3:  # helpers are about to sleep
        threading.Event().wait(0.001)
    gc.collect()
    assert [item() for item in known] == [None] * 4
