"""Contenders are timed each in its own process, stopped while others run, in samples that are long enough."""

import os
import select
import signal
import statistics
import sys
import time
from contextlib import ExitStack, suppress
from dataclasses import replace

import processes
import pytest
import sample_contenders as sample

from mha_conformance.bench import machine
from mha_conformance.bench.rounds import Effort, Ratio, ratio, time_in_rounds
from mha_conformance.bench.timing import calibrated
from mha_conformance.bench.worker import Crew, Worker, WorkerFailed

EFFORT = Effort(rounds=4, sample=0.001, processes=1)
SUM = sample.Sum(1000)


def test_each_contender_has_its_own_process():
    with Worker("a", sample.process) as a, Worker("b", sample.process) as b:
        assert len({a.answer(), b.answer(), os.getpid()}) == 3


def test_a_crew_gives_one_process_several_works_and_replaces_a_dead_one():
    with Crew() as crew:
        with crew.worker("a", sample.process) as a:
            first = a.answer()
        with crew.worker("a", sample.builtin, SUM) as a:
            assert a.answer() == sum(range(1000))
        with crew.worker("b", sample.process) as b:
            assert b.answer() != first
        with crew.worker("a", sample.process) as a:
            assert a.answer() == first
        with crew.worker("a", sample.dying, SUM, 3) as a, pytest.raises(WorkerFailed, match="died with exit status 3"):
            a.answer()
        with crew.worker("a", sample.process) as a:
            assert a.answer() != first


def test_a_waiting_contender_is_stopped():
    """Its threads may keep spinning after its work is done, as OpenBLAS's do."""
    with Worker("a", sample.process) as a:
        number = a.answer()
        end, stopped = time.monotonic() + 10, None
        while stopped is None and time.monotonic() < end:  # a signal may arrive late
            stopped = os.waitid(os.P_PID, number, os.WSTOPPED | os.WNOHANG)
        assert stopped is not None and stopped.si_status == signal.SIGSTOP
        assert a.time(1) > 0


KILLED = """
import os, signal, sys
import sample_contenders as sample
from mha_conformance.bench.worker import Worker
if __name__ == "__main__":
    with Worker("a", sample.process) as a:
        print(a.answer(), flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a process with its parent")
def test_a_killed_benchmark_leaves_no_stopped_process(tmp_path):
    (tmp_path / "program.py").write_text(KILLED)
    number = int(processes.run([sys.executable, tmp_path / "program.py"], status=-signal.SIGKILL, timeout=60).stdout)
    with suppress(ProcessLookupError):
        handle = os.pidfd_open(number)
        assert select.select([handle], [], [], 10)[0], "the process is still there"
        os.close(handle)


def test_the_order_of_turns_alternates(tmp_path):
    path = tmp_path / "turns"
    with ExitStack() as stack:
        contenders = [stack.enter_context(Worker(name, sample.recorded, path, name)) for name in "abc"]
        seconds = time_in_rounds(contenders, Effort(rounds=4, sample=0.0))
    turns = path.read_text(encoding="utf-8").split()
    assert "".join(turns[3:]) == "cbaabccbaabc"  # the first three calibrate
    assert {name: len(times) for name, times in seconds.items()} == {"a": 4, "b": 4, "c": 4}


def test_after_the_time_limit_only_the_least_number_of_rounds_is_run():
    with Worker("a", sample.builtin, SUM) as a:
        assert len(time_in_rounds([a], replace(EFFORT, rounds=9, seconds=0.0, least=3))["a"]) == 3


def test_a_sample_is_long_enough():
    with Worker("a", sample.builtin, SUM) as a:
        calls = calibrated(a.time, 0.01)
        assert calls > 50
        assert statistics.median(a.time(calls) for _ in range(5)) > 0.005


def test_a_ratio_is_the_median_of_the_ratios_of_the_same_rounds():
    # the machine was twice as slow in the second half; a ratio of medians would say 1.75
    assert ratio([3, 6, 3, 12], [2, 4, 2, 8]) == Ratio(1.5, 1.5, 1.5)
    assert ratio([1, 2, 3, 4, 5], [1, 1, 1, 1, 1]) == Ratio(3, 2, 4)


def test_the_rounds_are_divided_among_processes():
    shares = Effort(rounds=8, seconds=12.0, least=5, processes=3).shares()
    assert [share.rounds for share in shares] == [3, 3, 2]
    assert {(share.seconds, share.least, share.processes) for share in shares} == {(4.0, 2, 1)}
    assert [share.rounds for share in Effort(rounds=2, processes=3).shares()] == [1, 1]
    assert Effort(rounds=4, processes=1).shares() == [Effort(rounds=4, processes=1)]


def test_environment_variables_that_tune_libraries_are_found():
    given = {"OPENBLAS_CORETYPE": "Haswell", "OMP_NUM_THREADS": "1", "MKL_CBWR": "AVX2", "PATH": "/bin", "HOME": "/"}
    assert machine.tuning_variables(given) == ["MKL_CBWR", "OMP_NUM_THREADS", "OPENBLAS_CORETYPE"]
