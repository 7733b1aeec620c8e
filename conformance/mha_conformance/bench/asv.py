"""Benchmarks for asv over this package's cases. A project subclasses them and names its backends: ``backends=["mine"]``."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from .cases import ALL_CORES, CASES, LONG, Problem
from .cost import cost
from .instructions.callgrind import missing
from .instructions.cases import COUNTED
from .instructions.count import Count, counts
from .memory import grown
from .texts import missing as missing_texts
from .timing import Work, calibrated, timed

TIMEOUT = 300.0  # seconds per process; JAX compiles once for each length of the texts
COUNTING = 1200.0  # seconds for all cases of all backends
SAMPLE = 0.01  # seconds; shorter samples rank backends wrongly

CHECK = "MHA_BENCH_CHECK" in os.environ
"""Set to ask only whether each benchmark runs and is right: then problems are short ones of the same kind."""


def sized(problems: Mapping[str, Problem]) -> dict[str, Problem]:
    """Return the problems; in a check, short ones of the same kind."""
    return {name: problem.small() if CHECK else problem for name, problem in problems.items()}


PROBLEMS = sized({**CASES, **ALL_CORES})
IN_MEMORY = sized({**LONG, **{name: problem for name, problem in CASES.items() if not name.startswith(("tiny", "import"))}})


def ready(name: str) -> None:
    """Load a backend. Raises NotImplementedError, with which asv skips a benchmark, if the backend or its device is missing."""
    from mha_core.dispatch.backend import load
    from mha_core.dispatch.errors import BackendUnavailable, UnknownBackend
    from mha_core.dispatch.selection import check_name

    try:
        load(check_name(name))
    except (UnknownBackend, BackendUnavailable) as error:
        raise NotImplementedError(str(error)) from error


@contextmanager
def skip_missing() -> Iterator[None]:
    """Skip a benchmark, instead of failing, if this mha_core does not yet have a name that it uses."""
    import mha_core

    try:
        yield
    except AttributeError as error:
        if error.obj is not mha_core:
            raise
        raise NotImplementedError(f"this mha_core has no {error.name}") from error


def check_available(problem: Problem, backend: str) -> None:
    """Skip a benchmark, by NotImplementedError, if its backend, texts or model are missing."""
    ready(backend)
    if why := missing_texts(problem):
        raise NotImplementedError(why)


def verified(problem: Problem, backend: str, *others: Work) -> Work:
    """Return the work on a backend, after checking its answer and those of the other works against float64.

    Raises AssertionError for a wrong answer, NotImplementedError if this mha_core lacks the backend or the operation.
    """
    check_available(problem, backend)
    check = problem.judge()  # before loading the work: OpenBLAS's threads keep spinning afterwards
    with skip_missing():
        work = problem.ours(backend)
    for each in (work, *others):
        check(each.read(each.call()))
    return work


class OnBackends:
    """A benchmark with a backend and a case as parameters. A subclass names them, or has those of its base class."""

    version = "1"
    timeout = TIMEOUT
    param_names = ("backend", "case")
    params: tuple[list[str], ...]
    all_cases: ClassVar[Iterable[str]] = CASES

    def __init_subclass__(
        cls, backends: Sequence[str] | None = None, cases: Sequence[str] | None = None, **options: Any
    ) -> None:
        super().__init_subclass__(**options)
        if isinstance(backends, str):
            raise TypeError(f"backends is {backends!r}; expected a list, such as [{backends!r}]")
        of_base: tuple[list[str], ...] = getattr(cls, "params", ([], list(cls.all_cases)))
        cls.params = tuple(of if given is None else list(given) for given, of in zip((backends, cases), of_base, strict=True))


class Time(OnBackends):
    """Seconds per call of a case on a backend."""

    rounds = 2
    repeat = (4, 10, 0.6)  # two rounds give at least eight samples: with fewer than seven, asv's test finds no difference
    warmup_time = 0.0  # the calibration warms up

    def setup(self, backend: str, case: str) -> None:
        """Prepare the work once, although asv calls this before each sample.

        asv times single calls of ``time_call``. Each makes several calls of the work, and the timer divides by their number.
        """
        if hasattr(self, "work"):
            return
        work = verified(PROBLEMS[case], backend)
        calls = self.calls = calibrated(partial(timed, work), SAMPLE)
        self.timer = lambda: time.perf_counter() / calls
        self.work = work

    def time_call(self, backend: str, case: str) -> None:
        timed(self.work, self.calls)

    time_call.pretty_name = "time, one thread"  # type: ignore[attr-defined]


class Cost(OnBackends):
    """Time divided by that of plain NumPy, timed in turns; both answers are checked."""

    unit = "x"

    def setup(self, backend: str, case: str) -> None:
        check_available(PROBLEMS[case], backend)
        self.plain = PROBLEMS[case].plain()
        self.ours = verified(PROBLEMS[case], backend, self.plain)

    def track_cost(self, backend: str, case: str) -> float:
        return cost(self.ours, self.plain, seconds=0 if CHECK else 1)

    track_cost.pretty_name = "cost relative to plain NumPy"  # type: ignore[attr-defined]


class Memory(OnBackends):
    """Bytes by which the peak of the process grows in a call."""

    unit = "bytes"
    all_cases = IN_MEMORY

    def setup(self, backend: str, case: str) -> None:
        check_available(IN_MEMORY[case], backend)
        with skip_missing():  # here, because the call itself cannot be skipped
            IN_MEMORY[case].small().ours(backend)

    def track_peak(self, backend: str, case: str) -> int:
        return grown(IN_MEMORY[case], backend)

    track_peak.pretty_name = "peak memory beyond the arguments"  # type: ignore[attr-defined]


class Instructions(OnBackends):
    """Instructions and estimated cycles of a call by callgrind: neither a busy machine nor another processor changes them.

    One program in callgrind counts all cases of a backend, once for both figures. A project has one subclass: asv would give
    the figures of the first to all.
    """

    timeout = COUNTING
    all_cases = COUNTED

    def setup_cache(self) -> dict[str, dict[str, Count]]:
        """Return the figures of each backend that is ready, by case."""
        import mha_core

        figures = {}
        cases = [case for case in self.params[1] if not missing_texts(COUNTED[case].problem)]
        for backend in self.params[0] if not missing() else ():
            try:
                ready(backend)
            except NotImplementedError:
                continue
            figures[backend] = counts(backend, cases, [Path(mha_core.__file__).parents[1]])
        return figures

    setup_cache.timeout = COUNTING  # type: ignore[attr-defined]

    def setup(self, figures: dict[str, dict[str, Count]], backend: str, case: str) -> None:
        if why := missing():
            raise NotImplementedError(why)
        if case not in figures.get(backend, {}) or figures[backend][case].skipped:
            raise NotImplementedError(f"{backend} does not have this")
        assert not figures[backend][case].wrong, figures[backend][case].wrong

    def track_instructions(self, figures: dict[str, dict[str, Count]], backend: str, case: str) -> int | None:
        return figures[backend][case].instructions

    def track_cycles(self, figures: dict[str, dict[str, Count]], backend: str, case: str) -> int | None:
        return figures[backend][case].cycles

    track_instructions.unit = "instructions"  # type: ignore[attr-defined]
    track_instructions.pretty_name = "instructions"  # type: ignore[attr-defined]
    track_cycles.unit = "cycles"  # type: ignore[attr-defined]
    track_cycles.pretty_name = "estimated cycles"  # type: ignore[attr-defined]
