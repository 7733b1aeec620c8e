"""The benchmarks that asv runs: how they are timed, on how many threads, and that no wrong answer is timed.

Each test runs in its own process, because importing the benchmarks sets the number of threads of the whole process.
"""

import os
import textwrap

import pytest
from processes import STRICT, printed
from project import BENCHES, INSTALLED

pytestmark = pytest.mark.asv
START = """
import sys
sys.argv = ["run", "folder", {benchmark!r}]
import os, time
import numpy, pytest  # as asv does before it imports the benchmarks
import benchmarks
from benchmarks import all_cores, backends, memory, one_thread
from mha_conformance.bench import asv
from dataclasses import dataclass, replace
from mha_conformance.bench.attention import Attention
from mha_conformance.bench.cases import ALL_CORES, CASES, LONG
from mha_conformance.bench.timing import Work
import mha_core
"""


def process(code, benchmark="one_thread.Time.time_call-0", also=()):
    program = START.format(benchmark=benchmark) + textwrap.dedent(code)
    return printed(STRICT, program, path=[BENCHES, *also], without=["*_NUM_THREADS"])


def test_all_benchmarks_use_one_core_except_those_of_all_cores():
    """The BLAS too, which asv has loaded before it imports the benchmarks."""
    code = """
    from mha_numpy import blas
    print(len(os.sched_getaffinity(0)), blas.functions()[0](), len(os.listdir("/proc/self/task")))
    """
    assert process(code).split() == ["1", "1", "1"]
    cores = len(os.sched_getaffinity(0))
    assert process(code, benchmark="all_cores.Time.time_call-3").split() == [str(cores), str(cores), str(cores)]


def test_backends_are_the_known_ones_first_and_then_all_that_are_installed():
    process(
        """
        assert backends.BACKENDS[:3] == ["numpy", "torch", "cupy"]
        assert "jax" in backends.BACKENDS[3:] and backends.BACKENDS[3:] == sorted(backends.BACKENDS[3:])
        from benchmarks import instructions

        timed = (one_thread.Time, one_thread.Cost, all_cores.Time, memory.Memory)
        for one in (*timed, instructions.Instructions):
            assert one.params[0] == backends.BACKENDS and one.param_names[0] == "backend" and one.version
        assert one_thread.Time.params[1] == list(CASES)
        assert set(all_cores.Time.params[1]) - set(CASES) == set(ALL_CORES)
        assert set(LONG) < set(memory.Memory.params[1])
        with pytest.raises(NotImplementedError, match="no backend is named 'nobody'"):
            one_thread.Time().setup("nobody", "tiny call 1x1x8x8")
        with pytest.raises(NotImplementedError, match="backend 'cupy' .* cannot be used"):
            one_thread.Time().setup("cupy", "tiny call 1x1x8x8")
        """,
        also=[INSTALLED],
    )


def test_instructions_are_counted_once_for_both_figures():
    process(
        """
        case = "dispatch of gelu"

        class Instructions(asv.Instructions, backends=["numpy", "cupy"], cases=[case]):
            pass

        one = Instructions()
        figures = one.setup_cache()
        assert list(figures) == ["numpy"]
        one.setup(figures, "numpy", case)
        count = one.track_instructions(figures, "numpy", case)
        assert 5000 < count < one.track_cycles(figures, "numpy", case)
        with pytest.raises(NotImplementedError, match="cupy does not have this"):
            one.setup(figures, "cupy", case)
        """
    )


def test_a_subclass_has_the_backends_and_cases_of_its_base_unless_it_names_others():
    process(
        """
        class First(asv.Time, backends=["mine"], cases=["a", "b"]):
            pass

        class Second(First, cases=["c"]):
            repeat = 3

        assert First.params == (["mine"], ["a", "b"]) and Second.params == (["mine"], ["c"])
        with pytest.raises(TypeError, match="backends is 'mine'; expected a list"):
            class Third(asv.Time, backends="mine"):
                pass
        """
    )


def test_a_case_whose_model_is_missing_is_skipped():
    process(
        """
        from mha_conformance.bench import texts

        texts.MODEL = "no_such_package"
        for one in (one_thread.Time, one_thread.Cost, memory.Memory):
            with pytest.raises(NotImplementedError, match="no_such_package is not installed"):
                one().setup("numpy", "text encoder, 32 real texts")
        counted = ["text encoder of one layer, 2 real sentences", "dispatch of gelu"]

        class Instructions(asv.Instructions, backends=["numpy"], cases=counted):
            pass

        one = Instructions()
        figures = one.setup_cache()
        assert list(figures["numpy"]) == counted[1:]
        with pytest.raises(NotImplementedError, match="numpy does not have this"):
            one.setup(figures, "numpy", counted[0])
        """
    )


def test_a_wrong_answer_is_refused_by_every_benchmark():
    process(
        """
        @dataclass(frozen=True)
        class Off(Attention):
            def ours(self, backend):
                work = super().ours(backend)
                return replace(work, read=lambda answer: work.read(answer) + 0.01)

        asv.PROBLEMS = asv.IN_MEMORY = {"off": Off(1, 2, 16, 8)}
        timed = one_thread.Time()
        for call in (lambda: timed.setup("numpy", "off"), lambda: one_thread.Cost().setup("numpy", "off"),
                     lambda: memory.Memory().track_peak("numpy", "off")):
            with pytest.raises(AssertionError, match="times the bound"):
                call()
        assert not hasattr(timed, "work")
        """
    )


def test_a_sample_has_several_calls_and_its_time_is_that_of_one():
    process(
        """
        case = "tiny call 1x1x8x8"
        benchmark = one_thread.Time()
        benchmark.setup("numpy", case)
        work = benchmark.work
        benchmark.setup("numpy", case)  # as asv does before each sample
        assert benchmark.work is work and benchmark.calls > 50
        before, clock, after = time.perf_counter(), benchmark.timer() * benchmark.calls, time.perf_counter()
        assert before <= clock * (1 + 1e-12) and clock * (1 - 1e-12) <= after  # the clock is slower by the number of calls
        calls = []
        benchmark.work = replace(work, call=lambda: calls.append(1))
        benchmark.time_call("numpy", case)
        assert len(calls) == benchmark.calls
        """
    )


def test_a_check_times_the_small_problem_of_each_case(monkeypatch):
    code = """
    for case, problem in {{**CASES, **ALL_CORES}}.items():
        assert asv.PROBLEMS[case] == {expected}
    assert all(problem.small() != problem for problem in ALL_CORES.values())
    """
    process(code.format(expected="problem"))
    monkeypatch.setenv("MHA_BENCH_CHECK", "1")
    process(code.format(expected="problem.small()"))


def test_memory_counts_what_a_call_takes_and_not_what_its_setup_took():
    process(
        """
        from mha_conformance.bench.memory import grown

        @dataclass(frozen=True)
        class Plain(Attention):
            def ours(self, backend):
                return self.plain()

        problem = Attention(1, 4, 2048, 64)
        out, scores = 4 * 4 * 2048 * 64, 4 * 4 * 2048**2
        assert out <= grown(problem, "numpy") < scores / 2
        assert grown(Plain(1, 4, 2048, 64), "numpy") > 2 * scores  # scores, and their exponentials
        assert out <= grown(problem, "numpy") < scores / 2  # what is free again is not held
        """
    )


def test_what_an_older_mha_core_lacks_is_skipped_and_other_errors_are_raised():
    process(
        """
        with pytest.raises(NotImplementedError, match="this mha_core has no Nothing"), asv.skip_missing():
            mha_core.Nothing
        with pytest.raises(AttributeError), asv.skip_missing():
            "text".nothing
        """
    )


def test_another_mha_core_than_that_of_the_commit_is_not_measured(monkeypatch):
    monkeypatch.setenv("ASV_COMMIT", "0" * 40)
    monkeypatch.setenv("ASV_ENV_TYPE", "installed")
    with pytest.raises(AssertionError, match=r"ImportError: .*expected that of commit 0000000000"):
        process("")
