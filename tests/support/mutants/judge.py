"""Judge one mutant in a process of its own, forked from one that has imported NumPy, but nothing of ours."""

from __future__ import annotations

import ast
import builtins
import contextlib
import multiprocessing
import os
import resource
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.machinery import SourceFileLoader
from multiprocessing.connection import Connection, wait
from pathlib import Path
from types import CodeType
from typing import Any

from project import ROOT

from .effects import EFFECTS, happened
from .table import ALGEBRA, Judged

DTYPES = ("float32", "float64", "float16", "bfloat16")
LAST = 20.0
"""Seconds of CPU time for imports."""
DESIGN = 600.0
"""Seconds of CPU time for the problems of a design, which take a tenth of it if they end at all."""
LARGE = 90.0
"""Seconds of CPU time for large problems."""
SUITE = 900.0
"""Seconds of CPU time for the suite as users run it."""
ASLEEP = 300.0
"""Seconds after which a process counts as asleep for ever."""

FORK = multiprocessing.get_context("fork")
Step = tuple[Judged, str]
"""A kernel, and the dtype that it is judged in."""


@dataclass(frozen=True)
class Verdict:
    """The fate of a mutant."""

    killed: str
    """The way it was found: by an exception, a crash, a timeout, or because the kernel refused everything; "" if it lives."""
    step: str
    """The kernel and dtype that were judged last."""
    message: str
    """The error; for a mutant that lives, whether the change ran at all, as far as that is known."""
    seconds: float


def steps_of(judged: Sequence[Judged], dtypes: Sequence[str] = DTYPES) -> list[Step]:
    """Return the steps of a judgement: float32 first, in which nearly every mutant that is found is found."""
    return [(one, dtype) for dtype in dtypes for one in judged]


def source_of(module: str) -> Path:
    """Return the file of a module of this repository."""
    folder = ROOT / "backends" if module.partition(".")[0] != "mha_core" else ROOT
    return folder.joinpath(*module.split(".")).with_suffix(".py")


def prepare(backends: set[str]) -> None:
    """Import what all judgements share, so that a fork of this process begins at once."""
    os.environ["OPENBLAS_NUM_THREADS"] = os.environ["OMP_NUM_THREADS"] = "1"
    sys.path[:0] = [str(ROOT), str(ROOT / "backends")]
    import numpy  # noqa: F401
    import pluggy  # noqa: F401

    with contextlib.suppress(ImportError):
        import ml_dtypes  # noqa: F401
    if "torch" in backends:
        import array_api_compat.torch  # noqa: F401
    ours = [name for name in sys.modules if name.partition(".")[0] in ("mha_core", "mha_numpy", "mha_torch")]
    assert not ours, f"already imported, so mutants would not be: {ours}"


def _judge_design(judged: Judged, dtype: str, *, quick: bool) -> bool:
    """Judge a kernel; return whether it computed anything, or the backend lacks the dtype. Raise what the suite raises."""
    import numpy as np

    import mha_core as mha
    from mha_conformance.find import find
    from mha_conformance.judge import designed
    from mha_conformance.judge.attention import judge_large_gradients
    from mha_conformance.judge.held import judge_of
    from mha_core.dispatch.contract import FEATURES
    from mha_core.dispatch.registry import registry

    _limit(DESIGN)
    backend = find(judged.backend, None, None, quick=quick)
    if dtype not in backend.dtypes:
        return True
    kernels = {kernel.name: kernel for kernel in registry().kernels.get((judged.backend, judged.op), ())}
    features = FEATURES.get(judged.op, ()) if judged.kernel == ALGEBRA else kernels[judged.kernel].handles
    if judged.op == "attention":
        _judge_small_problems(backend, kernels.get(judged.kernel), features, dtype)
    judge = judge_of(backend, dtype, np.random.default_rng(0))
    result = designed.judge_design(judge, judged.op, judged.kernel, features)
    if judged.kernel == ALGEBRA and dtype == DTYPES[0]:
        if judged.op == "attention":
            _judge_large_problems(backend, dtype)
        elif judged.op == "attention_vjp":
            with mha.use_kernel(judged.op, ALGEBRA):
                judge_large_gradients(judge, features)
    return bool(result.computed)


def _judge_large_problems(backend: Any, dtype: str) -> None:
    """Judge the algebra on problems that it computes in blocks."""
    import numpy as np

    import mha_core as mha
    from mha_conformance.judge.attention import judge_large_batch
    from mha_conformance.judge.held import judge_of
    from mha_conformance.probes.attention_memory import CASES, measured

    _limit(LARGE)
    wrong = {case: found["wrong"] for case in CASES if (found := measured(backend, dtype, ALGEBRA, case)) is not None}
    assert not any(wrong.values()), wrong
    with mha.use_kernel("attention", ALGEBRA):
        for seed in range(2):
            judge_large_batch(judge_of(backend, dtype, np.random.default_rng(seed)))


def _judge_small_problems(backend: Any, kernel: Any, features: frozenset[str], dtype: str) -> None:
    """Judge a kernel, None: the algebra, as other sections of the suite do: on single features."""
    import numpy as np

    from mha_conformance.cases.features import FEATURES, problem_with
    from mha_conformance.judge.held import judge_of
    from mha_conformance.probes.recorder import recorded
    from mha_conformance.test_kernels import SHAPES

    judge = judge_of(backend, dtype, np.random.default_rng(0))
    with recorded(kernel) if kernel else contextlib.nullcontext():
        for chosen in [[], *([name] for name in FEATURES if name in features)]:
            for shape in SHAPES:
                lse = {"lse"} & features
                judge.judge_once(problem_with({*chosen, *lse}, judge.rng, *shape))


def _judge_by_suite(backend: str) -> None:
    """Raise AssertionError if a test of the quick suite, with two threads, fails."""
    import pytest

    import mha_core as mha

    class FirstFailure:
        found = ""

        def pytest_runtest_logreport(self, report: Any) -> None:
            if report.failed:
                self.found = self.found or f"{report.nodeid}: {str(report.longrepr).strip().splitlines()[-1]}"

    first, where = FirstFailure(), Path(__file__).parent
    options = [
        "-x",
        "-q",
        "--noconftest",
        "-p",
        "no:cacheprovider",
        "-p",
        "mha_conformance.plugin",
        "--pyargs",
        "mha_conformance",
    ]
    _limit(SUITE)
    mha.set_num_threads(2)
    status = pytest.main([*options, "--backend", backend, "--quick", "--rootdir", str(where)], plugins=[first])
    assert status == 0, first.found or f"pytest ended with status {int(status)}"


def _limit(seconds: float) -> None:
    """End this process when it has used so much more CPU time."""
    hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
    resource.setrlimit(resource.RLIMIT_CPU, (int(time.process_time() + seconds) + 1, hard))


class Child:
    """A forked process that judges one mutant, or the module itself if the tree is None."""

    def __init__(
        self, module: str, tree: ast.Module | None, steps: Sequence[Step], *, quick: bool, suite: bool = False
    ) -> None:
        self.step, self.began = "import", time.monotonic()
        self._renewed = self.began
        self.pipe, end = FORK.Pipe(duplex=False)
        self._process = FORK.Process(target=_run, args=(module, tree, steps, end), kwargs={"quick": quick, "suite": suite})
        self._process.start()
        end.close()

    def verdict(self) -> Verdict | None:
        """Return the verdict if there is one by now, else None."""
        try:
            while self.pipe.poll():
                message = self.pipe.recv()
                if not isinstance(message, str):
                    return self._end(*message)
                self.step, self._renewed = message, time.monotonic()
        except EOFError:
            self._process.join()
            status = self._process.exitcode
            return self._end("timeout" if status == -signal.SIGXCPU else "crash", f"the process ended with status {status}")
        if time.monotonic() - self._renewed > ASLEEP:
            return self._end("timeout", f"the process gave no sign for {ASLEEP:.0f} seconds")
        return None

    def stop(self) -> None:
        """End the process, and wait for it."""
        self.pipe.close()
        self._process.kill()
        self._process.join()

    def _end(self, killed: str, message: str) -> Verdict:
        self.stop()
        return Verdict(killed, self.step, message, round(time.monotonic() - self.began, 2))


def _run(module: str, tree: ast.Module | None, steps: Sequence[Step], pipe: Connection, *, quick: bool, suite: bool) -> None:
    """Judge in this process, which ends here, and send each step, and the arguments of ``Child._end``, to a pipe.

    With ``suite``, what lives is then judged by ``mha conform --quick`` on the backends of these steps.
    """

    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends its children
        _limit(LAST)
        nothing = os.open(os.devnull, os.O_RDWR)
        for at in range(3):
            os.dup2(nothing, at)
        if tree is not None:
            _replace(module, tree)
        computed: dict[Judged, bool] = {}
        for judged, dtype in steps:
            pipe.send(f"{judged.op} {judged.kernel} {dtype}")
            computed[judged] = _judge_design(judged, dtype, quick=quick) or computed.get(judged, False)
        for backend in dict.fromkeys(judged.backend for judged, _ in steps) if suite else ():
            pipe.send(f"suite of {backend}")
            _judge_by_suite(backend)
        refusing = [f"{one.op} {one.kernel}" for one, any_dtype in computed.items() if not any_dtype]
        pipe.send(("refuses", f"refuse every problem: {refusing}") if refusing else ("", _idle(tree)))
    except BaseException as error:
        lines = str(error).strip().splitlines() or [""]
        notes = [note for note in getattr(error, "__notes__", ()) if note.startswith("the problem")]
        pipe.send((type(error).__name__, " | ".join([lines[0][:300], *notes[:1]])))
    finally:
        os._exit(0)


def _idle(tree: ast.Module | None) -> str:
    """Return what is known about a change that was not found."""
    calls = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)} & set(EFFECTS) if tree else set()
    if "_mutant_ran" in calls and "ran" not in happened:
        return "it never ran"
    return "it never had an effect" if calls - {"_mutant_ran"} and "effect" not in happened else ""


def _replace(module: str, tree: ast.Module) -> None:
    """Let a mutated tree run when a module is imported; the names of EFFECTS, which it may call, are built in."""
    vars(builtins).update(EFFECTS)
    original = SourceFileLoader.get_code

    def get_code(self: SourceFileLoader, name: str) -> CodeType | None:
        return compile(tree, self.path, "exec") if name == module else original(self, name)

    SourceFileLoader.get_code = get_code  # type: ignore[method-assign]


def judged_all(jobs: Iterator[tuple[Any, Child]], at_a_time: int) -> Iterator[tuple[Any, Verdict]]:
    """Yield each job with its verdict, as soon as it is known. A child begins when the iterator of jobs is asked for it."""
    running: list[tuple[Any, Child]] = []
    try:
        while True:
            while len(running) < at_a_time and (job := next(jobs, None)) is not None:
                running.append(job)
            if not running:
                return
            wait([child.pipe for _, child in running], 0.5)
            for job in list(running):
                if (verdict := job[1].verdict()) is not None:
                    running.remove(job)
                    yield job[0], verdict
    finally:
        for _, child in running:
            child.stop()
