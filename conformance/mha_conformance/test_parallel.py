"""``Backend.parallel`` yields the results of a function in the order of its items, whoever calls it and however."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import ContextVar
from typing import Any

import numpy as np
import pytest

from .backend import BackendUnderTest

SECTION = "namespace"
pytestmark = pytest.mark.promise(0)
SECONDS = 60.0
"""A call that takes longer hangs."""
AHEAD = 5_000
"""Number of items that may be read before the first result is known."""


def finished(work: Callable[[], Any]) -> Any:
    """Return the result of ``work``, or raise its error; fail if it hangs."""
    result: Future[Any] = Future()

    def run() -> None:
        try:
            result.set_result(work())
        except BaseException as error:
            result.set_exception(error)

    threading.Thread(target=run, daemon=True).start()  # unlike those of a pool, it does not keep the process alive
    try:
        return result.result(timeout=SECONDS)
    except TimeoutError:
        raise AssertionError(f"parallel did not return within {SECONDS:g} s") from None


@pytest.mark.parametrize("count", [0, 1, 2, 3, 100])
@pytest.mark.parametrize("kind", [list, tuple, iter], ids=lambda kind: str(kind.__name__))
def test_results_come_in_order(backend: BackendUnderTest, count: int, kind: Callable[[Any], Any]) -> None:
    """Earlier items take longer, so that results are known in another order."""

    def square(n: int) -> int:
        time.sleep(0.002 * (n % 7 == 0) + 0.001 * (n % 2 == 0))
        return n * n

    got = finished(lambda: list(backend.loaded.parallel(square, kind(range(count)))))
    assert got == [n * n for n in range(count)]


def test_arrays_are_computed(backend: BackendUnderTest, rng: np.random.Generator) -> None:
    arrays = [rng.normal(size=(n % 5 + 1, 4)) for n in range(30)]
    there = [backend.array(x) for x in arrays]
    got = finished(lambda: [backend.numpy(y) for y in backend.loaded.parallel(lambda x: x + x, there)])
    for y, x in zip(got, there, strict=True):
        np.testing.assert_array_equal(y, 2 * backend.numpy(x))


@pytest.mark.parametrize("at", [0, 1, 57, 99])
def test_an_exception_reaches_the_caller(backend: BackendUnderTest, at: int) -> None:
    """So do the results before it; and the next call is not affected."""

    def fail(n: int) -> int:
        if n == at:
            raise ArithmeticError(f"item {n}")
        return n

    def collect() -> None:
        for result in backend.loaded.parallel(fail, range(100)):
            got.append(result)

    got: list[int] = []
    with pytest.raises(ArithmeticError, match=f"^item {at}$"):
        finished(collect)
    assert got == list(range(len(got))) and len(got) <= at
    assert finished(lambda: list(backend.loaded.parallel(abs, range(-3, 3)))) == [3, 2, 1, 0, 1, 2]


def test_an_exception_of_the_items_reaches_the_caller(backend: BackendUnderTest) -> None:
    def items() -> Iterator[int]:
        yield from range(5)
        raise ArithmeticError("no more")

    with pytest.raises(ArithmeticError, match="no more"):
        finished(lambda: list(backend.loaded.parallel(abs, items())))


def test_items_are_read_as_results_are_asked_for(backend: BackendUnderTest) -> None:
    """A generator may be long, or hold much memory: it is not read to its end before the first result."""
    read: list[int] = []

    def items() -> Iterator[int]:
        for n in range(2 * AHEAD):
            read.append(n)
            yield n

    def first() -> list[int]:
        results = iter(backend.loaded.parallel(lambda n: n + 1, items()))
        return list(itertools.islice(results, 3))

    assert finished(first) == [1, 2, 3]
    assert len(read) <= AHEAD, f"{len(read)} items were read for 3 results"


def test_nested_calls_return(backend: BackendUnderTest) -> None:
    def outer(n: int) -> int:
        return sum(backend.loaded.parallel(lambda m: n * m, range(20)))

    assert finished(lambda: list(backend.loaded.parallel(outer, range(20)))) == [190 * n for n in range(20)]


@pytest.mark.promise(14)
def test_several_threads_may_call_at_once(backend: BackendUnderTest) -> None:
    def work(start: int) -> list[int]:
        return list(backend.loaded.parallel(lambda n: start + n, range(50)))

    def together() -> list[list[int]]:
        with ThreadPoolExecutor(6) as threads:
            return list(threads.map(work, range(0, 600, 100)))

    assert finished(together) == [list(range(start, start + 50)) for start in range(0, 600, 100)]


@pytest.mark.promise(14)
def test_the_function_runs_in_the_callers_context(backend: BackendUnderTest) -> None:
    """``use_kernel`` and ``use_backend`` hold inside it, and no item changes the context of another."""
    variable: ContextVar[str] = ContextVar("variable", default="unset")

    def function(n: int) -> str:
        value = variable.get()
        variable.set(f"set by item {n}")
        return value

    def call() -> list[str]:
        variable.set("the caller's")
        return list(backend.loaded.parallel(function, range(20)))

    if backend.loaded.record.parallel is None:
        pytest.skip("items are computed one after another, in the caller's own context")
    assert finished(call) == ["the caller's"] * 20
