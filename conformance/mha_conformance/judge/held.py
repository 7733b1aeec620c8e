"""Calls of one kernel, each held to every promise that a call can break."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any

import numpy as np
import pytest

import mha_core as mha
from mha_core.shared import ALGEBRA, FEATURES

from ..backend import BackendUnderTest
from ..cases.problem import Problem
from ..oracle import tolerance
from ..oracle.tolerance import is_half
from ..probes.watched import watched
from ..report.sections import REFUSED_EVERY_CALL
from .layouts import WRITABLE, laid_out

WATCHED = 4
"""The number of calls of each kernel in which the arguments are watched while they run."""
SMALL = 2**14
"""The bytes of all arguments of such a call, at most."""


@contextmanager
def noted(note: str) -> Iterator[None]:
    """Add a note to any error."""
    try:
        yield
    except Exception as error:
        error.add_note(note)
        raise


@dataclass
class Called:
    """A call that was judged, its results, and their bits."""

    problem: Problem
    compute: Callable[[], dict[str, Any]]
    results: dict[str, Any]
    bits: bytes


@dataclass(eq=False)
class Judge(BackendUnderTest):
    """A backend in one dtype, with random numbers, and the checks of calls."""

    rng: np.random.Generator = field(default_factory=np.random.default_rng)
    triples: bool = False
    """Whether the designs of this dtype have triples: those of float32 and float16, or of the first dtype of each width."""

    def normal(self, shape: int | Sequence[int]) -> np.ndarray:
        """Return random numbers of the dtype."""
        return self.rounded(self.rng.normal(size=shape))

    def of(self, op: str, kernel: str) -> KernelJudge:
        """Return the judge of one kernel."""
        return KernelJudge(**_fields(self), op=op, kernel=kernel)

    def judge_once(self, problem: Problem, *, poison: bool = False, layouts: Mapping[str, str] | None = None) -> dict[str, Any]:
        """Judge a call, also that it writes to no input; return the results.

        poison: put NaN and inf where the results do not depend on them.
        layouts: of some arrays by name, in place of their own.
        """
        arrays, floats = self.arrays(problem, poison=poison)
        arrays |= {name: laid_out(self, arrays[name], layout) for name, layout in (layouts or {}).items()}
        with self.unchanged(arrays):
            results = problem.call(arrays)
            self.assert_right(results, arrays[problem.first], problem, floats)
        return results

    def work(self, problem: Problem) -> Callable[[], bytes]:
        """Return a function that computes a problem from the same arrays, and returns the bits of the results."""
        arrays, _ = self.arrays(problem, poison=False)
        return lambda: self.bits(problem.call(arrays))

    def assert_poison_changes_no_bit(self, problem: Problem) -> dict[str, Any]:
        """Compute with NaN and inf where the results must not depend on them, and without; return the latter's results."""
        clean, poisoned = (problem.call(self.arrays(problem, poison=poison)[0]) for poison in (False, True))
        for name, x in clean.items():
            assert self.bits(x) == self.bits(poisoned[name]), f"keys or values that no query may see changed {name}"
        return clean

    def arrays(self, problem: Problem, *, poison: bool = True) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """Return the arrays of a problem on the backend, and the numbers that the oracle sees.

        poison: put NaN and inf where the results do not depend on them.
        """
        floats = {name: self.rounded(x, self.dtype_of(problem, name)) for name, x in problem.floats.items()}
        floats |= {name: self.rounded(x, self.dtype_of(problem, name)) for name, x in problem.derived(floats).items()}
        numbers = problem.with_poison(floats) if poison else floats
        given = {name: self.array(x, self.dtype_of(problem, name)) for name, x in numbers.items()}
        given |= {name: self.array(x) for name, x in problem.others.items()}
        arrays = {}
        for name, x in given.items():
            arrays[name] = laid_out(self, x, *problem.layout(name))
        return arrays, floats

    def dtype_of(self, problem: Problem, name: str) -> str:
        return tolerance.compute_dtype(self.dtype) if name in problem.wide else self.dtype

    def dtype_of_result(self, name: str) -> str:
        return tolerance.compute_dtype(self.dtype) if name == "lse" else self.dtype

    def assert_right(self, results: Mapping[str, Any], given: Any, problem: Problem, floats: Mapping[str, np.ndarray]) -> None:
        """Raise AssertionError if a result is wrong, or not of the kind of ``given``."""
        dtypes = {name: tolerance.compute_dtype(self.dtype) if name in problem.wide_results else self.dtype for name in results}
        for name, x in results.items():
            self.assert_like(x, given, dtype=getattr(self.xp, dtypes[name]))
        numbers = {name: (self.numpy(x), tolerance.LARGEST[dtypes[name]]) for name, x in results.items()}
        for expected in problem.bounds(floats, self.dtype, rounds_weights=self.rounds_weights):
            assert expected.keys() == results.keys(), f"the results are {', '.join(results)}; expected {', '.join(expected)}"
            compared = [tolerance.compared(name, x, *expected[name], largest) for name, (x, largest) in numbers.items()]
            if not any(each.wrong.any() for each in compared):
                break
        for each in compared:
            each.assert_within()


@dataclass(eq=False)
class KernelJudge(Judge):
    """Judges the calls of one kernel.

    It remembers the last call, since later calls must not change its results. Every call is made a second time: at once, after
    the next call, or then in another thread, in turn. It must give the same bits.
    """

    op: str = ""
    kernel: str = ""
    refused: dict[str, int] = field(default_factory=dict)
    """Number of refused calls by the reason that the kernel gave."""
    computed: int = 0
    watched: int = 0
    """Number of calls in which arguments were watched while they ran."""
    last: Called | None = None

    @cached_property
    def _other_thread(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(1)

    def judge(self, problem: Problem, other: Problem | None = None) -> bool:
        """Raise AssertionError if a promise is broken; return whether the kernel computed the problem.

        ``other`` differs from the problem in the numbers only, and is judged in its place, after a call with the problem's own:
        what a kernel remembers about arrays must not outlive their numbers, and the result of the first call must not change.
        """
        arrays, floats = self.arrays(problem)
        assert self.op in FEATURES or self.kernel == ALGEBRA, f"no kernel computes {self.op}"

        def compute() -> dict[str, Any]:
            with mha.use_kernel(self.op, self.kernel) if self.op in FEATURES else nullcontext():
                return problem.call(arrays)

        earlier: dict[str, Any] = {}
        if other is not None:
            with suppress(mha.KernelUnsupported):  # and so are the other numbers
                earlier = compute()
            before = self.bits(earlier)
            other = self._with_some_of(problem, other)
            fresh, floats = self.arrays(other)
            if self._can_write(problem, arrays):
                self._write(fresh, into=arrays)
            else:
                arrays = fresh
            problem.others.update(other.others)
            problem = other
        with self.unchanged(arrays):
            try:
                with self._watching(arrays):
                    results = compute()
            except mha.KernelUnsupported as error:
                self.refuse(error)
                return False
            self.computed += 1
            bits = self.bits(results)
            assert not earlier or self.bits(earlier) == before, "a call with other numbers changed the result of the first"
            self.assert_right(results, arrays[problem.first], problem, floats)
            if self.computed % 3 == 0:
                assert self.bits(compute()) == bits, "a second, equal call gave other bits"
            self._call_the_last_again()
        self.last = Called(problem, compute, results, bits)
        return True

    def refuse(self, error: mha.KernelUnsupported) -> None:
        """Remember the reason for which the kernel refused a call."""
        reason = str(error).partition(": it ")[2].partition(";")[0]
        self.refused[reason] = self.refused.get(reason, 0) + 1

    def assert_computed(self) -> None:
        """Skip the test if the kernel refused every problem; raise AssertionError if it computed none for another reason."""
        if self.refused and not self.computed:
            pytest.skip(f"{REFUSED_EVERY_CALL}: {'; '.join(sorted(self.refused))}")
        assert self.computed, "the kernel computed no problem"

    def _watching(self, arrays: Mapping[str, Any]) -> AbstractContextManager[None]:
        """Return a context in which the arguments of the first small calls are watched, where they are host memory.

        Those in bfloat16 are not, since NumPy has no such dtype of its own.
        """
        if self.watched >= WATCHED or self.dtype == "bfloat16":
            return nullcontext()
        views = {name: self.loaded.to_numpy(x) for name, x in arrays.items()}
        if not views or sum(x.nbytes for x in views.values()) > SMALL or self.on_host is not True:
            return nullcontext()
        self.watched += 1
        return watched(views)

    def _can_write(self, problem: Problem, names: Iterable[str]) -> bool:
        return self.writes and all(problem.layout(name)[0] in WRITABLE for name in names)

    def _with_some_of(self, problem: Problem, other: Problem) -> Problem:
        """Return the other problem with some floating arrays of the first, but not with all."""
        names = [*problem.floats]
        kept = [name for name in names if self.rng.random() < 0.5]
        floats = {name: problem.floats[name] for name in kept[: len(names) - 1]}
        return replace(other, floats={**other.floats, **floats})

    def _write(self, fresh: Mapping[str, Any], *, into: Mapping[str, Any]) -> None:
        """Write other numbers into arrays, where they differ."""
        for name, x in into.items():
            # some libraries raise an error if there is nothing to write
            if 0 not in x.shape and self.bits(x) != self.bits(fresh[name]):
                x[...] = fresh[name]

    def _call_the_last_again(self) -> None:
        last = self.last
        if last is None:
            return
        assert self.bits(last.results) == last.bits, f"a later call changed the result of: {last.problem}"
        if self.computed % 3 == 1:  # the last was made again at once
            return

        def again() -> bytes:
            return self.bits(last.compute())

        bits = again() if self.computed % 3 == 2 else self._other_thread.submit(again).result()
        assert bits == last.bits, f"after another call, other bits are the result of: {last.problem}"


def judge_of(backend: BackendUnderTest, dtype: str, rng: np.random.Generator | None = None) -> Judge:
    """Return the judge of a backend in one dtype."""
    alike = [name for name in backend.dtypes if is_half(name) == is_half(dtype)]
    triples = not backend.quick and dtype in alike[:1]
    return Judge(**{**_fields(backend), "dtypes": (dtype,), "rng": rng or np.random.default_rng(0), "triples": triples})


def _fields(backend: BackendUnderTest) -> dict[str, Any]:
    return {field.name: getattr(backend, field.name) for field in fields(backend)}
