"""Independent parts on all cores: threads that help, one BLAS thread each, any number of callers."""

import contextvars
import gc
import itertools
import signal
import sys
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pytest

import mha_core as mha
from mha_core.dispatch.backend import load
from mha_numpy import blas, cores, pool, threads

SOON = 0.2  # seconds: until then something that must not happen would have happened
AT_MOST = 30  # seconds for what must happen


@pytest.fixture
def blas_count():
    """A pool of four, whatever the machine has, and a BLAS of four threads; both as they were afterwards."""
    if not blas.can_hold():
        pytest.skip("this NumPy's BLAS does not say how many threads it takes")
    cores.set_num_threads(4)
    yield blas.functions()[0]
    cores.set_num_threads(None)


def meeting(count):
    return threading.Barrier(count, timeout=AT_MOST)


def collected(function, items):
    """What run computes, by item."""
    results = {}
    threads.run(lambda item: results.__setitem__(item, function(item)), items)
    return [results[item] for item in items]


BOTH = pytest.mark.parametrize(
    "compute", [collected, lambda function, items: list(threads.parallel(function, items))], ids=["run", "parallel"]
)


# every part, once, in order


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


def test_parts_begin_in_the_order_given(blas_count):
    begun, lock = [], threading.Lock()
    met = meeting(4)

    def part(n):
        with lock:
            begun.append(n)
        if n < 4:
            met.wait()

    threads.run(part, range(50))
    for at, n in enumerate(begun):
        assert abs(at - n) < 4, "four threads at work: nobody is overtaken by more than three"


# side by side


@BOTH
def test_parts_run_side_by_side_with_one_blas_thread_each(blas_count, compute):
    met = meeting(4)

    def part(_):
        met.wait()
        return blas_count(), threading.get_ident()

    counts, idents = zip(*compute(part, range(4)), strict=True)
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

    def part(_):
        nonlocal now, most
        with lock:
            now += 1
            most = max(most, now)
        never.wait(0.005)  # others come in, if they may
        with lock:
            now -= 1

    threads.run(part, range(24))
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
    threads.run(lambda _: met.wait(), range(4))  # and the next call starts them


def test_a_blas_that_cannot_be_held_gets_the_parts_one_after_another(blas_count, monkeypatch):
    monkeypatch.setattr(blas, "functions", lambda: None)
    begun = []
    threads.run(lambda n: begun.append((n, threading.get_ident())), range(20))
    assert begun == [(n, threading.get_ident()) for n in range(20)]
    assert list(threads.parallel(lambda n: threading.get_ident(), range(20))) == [threading.get_ident()] * 20


def test_a_single_part_of_parallel_may_have_parts_on_all_cores(blas_count):
    met = meeting(4)
    assert list(threads.parallel(lambda _: collected(lambda n: (met.wait(), n)[1], range(4)), [0])) == [[0, 1, 2, 3]]


# nested and concurrent callers


@BOTH
def test_a_call_from_inside_a_part_runs_its_own_parts_in_turn(blas_count, compute):
    met, never = meeting(2), threading.Event()

    def inner(pair):
        never.wait(0.005)  # time for the two threads that are free to take a part too
        return (*pair, threading.get_ident())

    def outer(n):
        met.wait()
        return compute(inner, [(n, m) for m in range(5)]), threading.get_ident()

    for n, (parts, thread) in enumerate(compute(outer, range(2))):
        assert parts == [(n, m, thread) for m in range(5)]
    assert blas_count() == 4


def test_a_helper_leaves_to_a_second_caller_its_core_and_comes_when_one_is_free(blas_count, monkeypatch):
    cores.set_num_threads(2)
    helped_by, help_it = [], pool.Parts.help
    monkeypatch.setattr(pool.Parts, "help", lambda call: helped_by.append(threading.get_ident()) or help_it(call))
    helped, second_is_in, first_is_done, never = threading.Event(), threading.Event(), threading.Event(), threading.Event()
    both_of_first, both_of_second = threading.Barrier(2, helped.set, AT_MOST), meeting(2)

    def part_of_first(n):
        if n < 2:
            both_of_first.wait()
            assert second_is_in.wait(AT_MOST)
        never.wait(0.002)  # time for another thread to take a part too
        return threading.get_ident()

    def part_of_second(n):
        second_is_in.set()
        assert first_is_done.wait(AT_MOST)
        both_of_second.wait()
        return threading.get_ident()

    def first():
        idents = collected(part_of_first, range(30))
        first_is_done.set()
        return idents, threading.get_ident()

    with ThreadPoolExecutor(1) as callers:
        other = callers.submit(first)
        assert helped.wait(AT_MOST)
        idents = collected(part_of_second, range(2))
        assert threading.get_ident() in idents and len(set(idents)) == 2
        idents, caller = other.result()
        assert caller in idents[:2] and len(set(idents[:2])) == 2
        assert set(idents[2:]) == {caller}
    assert len(helped_by) == 2, "a helper that has left sleeps"


def test_many_callers_at_once_all_end(blas_count):
    def call(name):
        return [sum(collected(partial(lambda n, m: n * m, name), range(50))) for _ in range(20)]

    with ThreadPoolExecutor(8) as callers:
        assert list(callers.map(call, range(16))) == [[name * 1225] * 20 for name in range(16)]
    assert blas_count() == 4
    assert (pool._pool.at_work, pool._pool.calls) == (0, [])


def test_callers_in_several_threads_restore_the_blas_when_the_last_one_ends(blas_count):
    both_inside, first_is_done = meeting(2), threading.Event()

    def part(name, n):
        if n == 0:
            both_inside.wait()
        if name == "second":
            assert first_is_done.wait(AT_MOST)
        return blas_count()

    def call(name):
        return collected(partial(part, name), range(3))

    with ThreadPoolExecutor(2) as callers:
        first, second = (callers.submit(call, name) for name in ("first", "second"))
        assert first.result() == [1] * 3
        first_is_done.set()
        assert second.result() == [1] * 3
    assert blas_count() == 4


# the caller's context


def test_the_caller_s_context_reaches_every_part(blas_count):
    variable = contextvars.ContextVar("variable", default="none")
    for value in ("first", "second"):
        variable.set(value)
        met = meeting(4)
        assert collected(lambda _, met=met: (met.wait(), variable.get())[1], range(4)) == [value] * 4


def test_the_caller_s_demands_reach_every_part(blas_count):
    def part(length):
        return type(mha.sinusoidal_positions(length, 4)).__module__.partition(".")[0]

    backend = load("numpy")
    assert set(backend.parallel(part, range(8))) == {"numpy"}
    with mha.use_backend("array_api_strict"):
        assert set(backend.parallel(part, range(8))) == {"array_api_strict"}


def test_a_part_that_changes_its_context_changes_no_other_s(blas_count):
    all_inside = meeting(4)

    def part(n):
        with mha.use_backend("array_api_strict" if n % 2 else "numpy"):
            all_inside.wait()
            return type(mha.sinusoidal_positions(n, 4)).__module__.partition(".")[0]

    assert list(load("numpy").parallel(part, range(8))) == ["numpy", "array_api_strict"] * 4


def test_a_backend_without_threads_of_its_own_runs_parts_in_turn():
    assert list(load("array_api_strict").parallel(str, range(3))) == ["0", "1", "2"]


# what goes wrong


@BOTH
def test_an_exception_in_a_part_is_raised_and_the_blas_restored(blas_count, compute):
    with pytest.raises(ZeroDivisionError):
        compute(lambda n: 1 / n, [2, 1, 0, 3])
    assert blas_count() == 4
    assert (pool._pool.at_work, pool._pool.calls) == (0, [])


@pytest.mark.parametrize("failing", range(4))
@BOTH
def test_an_exception_waits_for_parts_that_have_begun_and_no_other_begins(blas_count, compute, failing):
    met, raised, begun, too_soon = meeting(4), threading.Event(), [], []

    def part(n):
        begun.append(n)
        met.wait()
        if n == failing:
            raise ZeroDivisionError
        too_soon.append(raised.wait(SOON))

    with pytest.raises(ZeroDivisionError):
        compute(part, range(100))
    raised.set()
    assert sorted(begun) == [0, 1, 2, 3]
    assert too_soon == [False] * 3


def test_the_first_of_several_exceptions_is_raised_and_kept_by_nobody(blas_count):
    class First(Exception):
        pass

    met, first = meeting(4), threading.Event()

    def part(n):
        met.wait()
        if n == 2:
            first.set()
            raise First(n)
        assert first.wait(AT_MOST)
        threading.Event().wait(0.01)  # until the first is noted
        raise ValueError(n)

    def raised():
        try:
            threads.run(part, range(4))
        except First as error:
            return weakref.ref(error)

    gc.disable()  # nor is it part of a cycle, which would keep the caller's arrays for a while
    try:
        assert raised()() is None
    finally:
        gc.enable()


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
def test_an_interrupt_waits_for_parts_that_have_begun(blas_count):
    cores.set_num_threads(2)
    main, met, ended = threading.get_ident(), meeting(2), []

    def part(_):
        met.wait()
        if threading.get_ident() == main:
            return
        waiters = pool._pool.calls[0]._changed._waiters
        while not waiters:
            threading.Event().wait(0.001)
        signal.pthread_kill(main, signal.SIGINT)
        threading.Event().wait(SOON)
        ended.append(True)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    try:
        with pytest.raises(KeyboardInterrupt):
            threads.run(part, range(2))
    finally:
        signal.signal(signal.SIGINT, before)
    assert ended == [True]
    assert blas_count() == 2


def test_helpers_asleep_keep_nothing_of_a_caller_s(blas_count):
    class Item:
        pass

    items, met = [Item() for _ in range(4)], meeting(4)
    known = [weakref.ref(item) for item in items]
    threads.run(lambda _: met.wait(), items)
    del items
    while pool._pool.idle < 3:  # they are on their way to sleep
        threading.Event().wait(0.001)
    gc.collect()
    assert [item() for item in known] == [None] * 4


# results as they come


def test_parallel_takes_few_items_ahead_of_what_is_asked_for(blas_count):
    taken = []
    results = threads.parallel(str, (taken.append(n) or n for n in itertools.count()))
    assert [next(results) for _ in range(100)] == [str(n) for n in range(100)]
    assert len(taken) <= 100 + threads._AHEAD * 4
    results.close()
    assert blas_count() == 4
    assert (pool._pool.at_work, pool._pool.calls) == (0, [])


def test_parallel_gives_a_result_while_a_later_part_is_still_computed(blas_count):
    asked = threading.Event()
    results = threads.parallel(lambda n: n == 0 or asked.wait(AT_MOST), range(4))
    assert next(results)
    asked.set()
    assert list(results) == [True] * 3


def test_results_left_unread_hold_nothing(blas_count):
    results = threads.parallel(str, range(10))
    assert next(results) == "0"
    del results
    assert blas_count() == 4
    assert (pool._pool.at_work, pool._pool.calls) == (0, [])


# the BLAS


def test_the_blas_is_held_while_anyone_holds_it(blas_count):
    with blas.one_thread:
        with blas.one_thread:
            assert blas_count() == 1
        assert blas_count() == 1
    assert blas_count() == 4


def test_a_number_that_is_set_meanwhile_holds_afterwards(blas_count):
    with blas.one_thread:
        cores.set_num_threads(3)
        assert blas_count() == 1
    assert blas_count() == 3


def test_the_number_of_threads_is_obeyed_and_taken_back():
    if not blas.can_hold():
        pytest.skip("this NumPy's BLAS does not say how many threads it takes")
    before = blas.functions()[0](), cores.num_threads()
    np.ones(1)
    try:
        for n in (3, 2):
            mha.set_num_threads(n)
            assert (blas.functions()[0](), cores.num_threads()) == (n, n)
    finally:
        mha.set_num_threads(None)
    assert (blas.functions()[0](), cores.num_threads()) == before
