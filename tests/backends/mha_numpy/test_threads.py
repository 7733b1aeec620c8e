"""Independent tasks on all cores: each is computed once, in the caller's context, with one BLAS thread.

The conformance suite tests ``parallel`` of every backend: order, exceptions, contexts and nested calls.
"""

import contextvars
import itertools
import threading
from collections import Counter

import numpy as np
import pytest
from meeting import AT_MOST, BOTH, collected, meeting

import mha_core as mha
from mha_core.dispatch.backend import load
from mha_numpy import blas, cores, pool, threads

# each task once, in order


@BOTH
def test_every_item_is_computed_once(blas_count, compute):
    calls = itertools.count()
    assert compute(lambda n: (next(calls), n * n)[1], range(100)) == [n * n for n in range(100)]
    assert next(calls) == 100
    assert compute(str, []) == []
    assert compute(str, [7]) == ["7"]


def test_items_may_come_from_an_iterator(blas_count):
    assert list(threads.parallel(str, iter("abc"))) == ["a", "b", "c"]
    seen = []
    threads.run(seen.append, iter("abc"))
    assert sorted(seen) == ["a", "b", "c"]


def test_tasks_begin_in_the_order_given(blas_count):
    begun, lock = [], threading.Lock()
    met = meeting(4)

    def task(n):
        with lock:
            begun.append(n)
        if n < 4:
            met.wait()

    threads.run(task, range(50))
    for at, n in enumerate(begun):
        assert abs(at - n) < 4, "four threads are at work: a task may be overtaken by at most three"


# side by side


@BOTH
def test_tasks_run_side_by_side_with_one_blas_thread_each(blas_count, compute):
    met = meeting(4)

    def task(_):
        met.wait()
        return blas_count(), threading.get_ident()

    counts, idents = zip(*compute(task, range(4)), strict=True)
    assert counts == (1,) * 4
    assert len(set(idents)) == 4 and threading.get_ident() in idents
    assert blas_count() == 4


def test_threads_are_kept_from_call_to_call(blas_count):
    def idents():
        met = meeting(4)
        return set(collected(lambda _: (met.wait(), threading.get_ident())[1], range(4)))

    idents()
    known = {thread.ident for thread in threading.enumerate()}
    assert idents() <= known


@pytest.mark.parametrize("count", [1, 2, 3])
def test_no_more_threads_are_at_work_than_asked_for(blas_count, count):
    cores.set_num_threads(count)
    now, most, lock, never = 0, 0, threading.Lock(), threading.Event()

    def task(_):
        nonlocal now, most
        with lock:
            now += 1
            most = max(most, now)
        never.wait(0.005)  # time for others to begin, if they may
        with lock:
            now -= 1

    threads.run(task, range(24))
    assert most == count


def test_one_thread_starts_no_helper(blas_count, monkeypatch):
    cores.set_num_threads(1)
    monkeypatch.setattr(pool, "_pool", pool._Pool())
    assert set(collected(lambda _: threading.get_ident(), range(20))) == {threading.get_ident()}
    assert pool._pool.helpers == 0


def test_where_no_thread_can_be_started_the_caller_does_the_work(blas_count, monkeypatch):
    def refuse(thread):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(pool, "_pool", pool._Pool())
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        assert set(collected(lambda _: threading.get_ident(), range(20))) == {threading.get_ident()}
    met = meeting(4)
    threads.run(lambda _: met.wait(), range(4))  # the next call starts them


def test_tasks_run_one_after_another_where_the_blas_cannot_be_held(blas_count, monkeypatch):
    monkeypatch.setattr(blas, "functions", lambda: None)
    begun = []
    threads.run(lambda n: begun.append((n, threading.get_ident())), range(20))
    assert begun == [(n, threading.get_ident()) for n in range(20)]
    assert list(threads.parallel(lambda n: threading.get_ident(), range(20))) == [threading.get_ident()] * 20


def test_a_single_item_of_parallel_is_a_task(blas_count):
    assert list(threads.parallel(lambda _: (pool.inside_a_task(), blas_count()), [0])) == [(True, 1)]


# the caller's context


def test_the_caller_s_context_reaches_every_task(blas_count):
    variable = contextvars.ContextVar("variable", default="none")
    for value in ("first", "second"):
        variable.set(value)
        met = meeting(4)
        assert collected(lambda _, met=met: (met.wait(), variable.get())[1], range(4)) == [value] * 4


# results as they come


def test_parallel_reads_few_items_ahead(blas_count):
    taken = []
    results = threads.parallel(str, (taken.append(n) or n for n in itertools.count()))
    assert [next(results) for _ in range(100)] == [str(n) for n in range(100)]
    assert len(taken) <= 100 + threads._AHEAD * 4
    results.close()
    assert blas_count() == 4
    assert (pool._pool.at_work, pool._pool.queues) == (0, [])


def test_parallel_divides_thousands_of_items_among_its_threads(blas_count):
    """Counted in tasks: a helper that is not woken again computes a handful of them."""
    x, count = np.ones((128, 128)), 3000
    computed = Counter()

    def task(item):
        (x @ x).sum()
        computed[threading.get_ident()] += 1
        return item

    assert list(threads.parallel(task, range(count))) == list(range(count))
    assert computed.total() == count
    least = count / 2.5 / len(computed)  # of each; of four threads, or more where an earlier test has started more helpers
    caller = computed.pop(threading.get_ident())
    assert computed.total() > count / 10 and caller > least, f"helpers computed {computed.total()} tasks of {count}"


def test_parallel_gives_a_result_while_a_later_task_is_still_computed(blas_count):
    """A caller may compute a later task while another thread computes the first; the first result must not wait for that."""
    asked, caller = threading.Event(), threading.current_thread()
    results = threads.parallel(lambda n: n == 0 or threading.current_thread() is caller or asked.wait(AT_MOST), range(4))
    assert next(results)
    asked.set()
    assert list(results) == [True] * 3


def test_unread_results_hold_neither_the_blas_nor_the_pool(blas_count):
    results = threads.parallel(str, range(10))
    assert next(results) == "0"
    del results
    assert blas_count() == 4
    assert (pool._pool.at_work, pool._pool.queues) == (0, [])


# the BLAS


def test_the_blas_is_held_until_the_last_one_lets_go(blas_count):
    with blas.one_thread:
        with blas.one_thread:
            assert blas_count() == 1
        assert blas_count() == 1
    assert blas_count() == 4


def test_a_number_set_while_the_blas_is_held_applies_afterwards(blas_count):
    with blas.one_thread:
        cores.set_num_threads(3)
        assert blas_count() == 1
    assert blas_count() == 3


def test_the_number_of_threads_is_set_and_restored():
    if not blas.can_hold():
        pytest.skip("the thread count of this NumPy's BLAS cannot be set")
    load("numpy")  # the number is set on backends that are loaded
    before = blas.functions()[0](), cores.num_threads()
    try:
        for n in (3, 2):
            mha.set_num_threads(n)
            assert (blas.functions()[0](), cores.num_threads()) == (n, n)
    finally:
        mha.set_num_threads(None)
    assert (blas.functions()[0](), cores.num_threads()) == before
