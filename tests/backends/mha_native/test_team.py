"""Tasks in Python on torch's threads: exceptions, calls inside of tasks, Ctrl-C, and forked processes."""

import contextvars
import os
import shutil
import signal
import threading
import weakref
from pathlib import Path

import numpy as np
import pytest
import torch
from meeting import meeting
from native import in_process, needs_native, plugin

pytestmark = needs_native
THREADS = 3


@pytest.fixture
def team():
    """The module, with three threads of torch's."""
    plugin()
    from mha_native import team as module

    if not module.team():
        pytest.skip("torch computes with another OpenMP than GNU's")
    before = torch.get_num_threads()
    torch.set_num_threads(THREADS)
    yield module
    torch.set_num_threads(before)


def threads_of(team):
    """Return the threads that compute tasks, each of which waits for the others."""
    met, idents = meeting(THREADS), []
    team.run(lambda _: (met.wait(), idents.append(threading.get_ident())), range(THREADS))
    return idents


def test_all_of_torch_s_threads_compute_in_the_context_of_the_caller(team):
    name, seen = contextvars.ContextVar("name"), []
    name.set("the caller's")
    team.run(lambda n: seen.append((n, name.get(), team.num_threads())), range(50))
    assert sorted(seen) == [(n, "the caller's", 1) for n in range(50)]
    assert team.num_threads() == THREADS
    assert len(set(threads_of(team))) == THREADS and threading.get_ident() in threads_of(team)


def test_a_call_inside_of_a_task_runs_its_own_tasks_in_turn(team):
    seen = []

    def outer(n):
        own = threading.get_ident()
        team.run(lambda m: seen.append((n, m, threading.get_ident() == own)), range(4))

    team.run(outer, range(6))
    assert sorted(seen) == [(n, m, True) for n in range(6) for m in range(4)]


def test_one_thread_computes_tasks_in_order(team):
    torch.set_num_threads(1)
    seen = []
    team.run(lambda n: seen.append((n, threading.get_ident())), range(5))
    assert seen == [(n, threading.get_ident()) for n in range(5)]


def test_scratch_memory_is_asked_for_once_and_ends_with_the_caller(team):
    from mha_numpy.scratch import scratch

    def addresses():
        met, seen = meeting(THREADS), []
        team.run(
            lambda _: (met.wait(), seen.append(scratch("a test", (1000,), np.dtype("float64")).ctypes.data)), range(THREADS)
        )
        return seen

    first = set(addresses())
    assert len(first) == THREADS and all(set(addresses()) == first for _ in range(5))
    references = []

    def call():
        torch.set_num_threads(THREADS)
        team.run(lambda _: references.append(weakref.ref(scratch("a test", (10,), np.dtype("float64")).base)), range(50))

    caller = threading.Thread(target=call)
    caller.start()
    caller.join()
    assert {each() for each in references} == {None}


def test_modes_of_autograd_are_the_caller_s(team):
    for mode in (torch.inference_mode, torch.no_grad, torch.enable_grad):
        met, seen = meeting(THREADS), []
        with mode():
            expected = (torch.is_inference_mode_enabled(), torch.is_grad_enabled())
            team.run(
                lambda _, met=met, seen=seen: (
                    met.wait(),
                    seen.append((torch.is_inference_mode_enabled(), torch.is_grad_enabled())),
                ),
                range(THREADS),
            )
        assert seen == [expected] * THREADS


class Broken(Exception):
    """What a task raises."""


def test_an_exception_is_raised_when_the_tasks_that_have_begun_are_done_and_no_other_begins(team):
    met, never, begun, ended = meeting(THREADS), threading.Event(), [], []

    def task(n):
        begun.append(n)
        if n < THREADS:
            met.wait()
        if n == 1:
            raise Broken
        never.wait(0.001)  # time for the exception
        ended.append(n)

    with pytest.raises(Broken):
        team.run(task, range(500))
    assert {0, 1, 2} <= set(begun) and len(begun) < 500 and sorted([*ended, 1]) == sorted(begun)
    assert len(set(threads_of(team))) == THREADS


def test_an_exception_is_not_kept(team):
    def task(n):
        raise Broken

    try:
        team.run(task, range(10))
    except Broken as error:
        reference = weakref.ref(error)
    assert reference() is None


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="this system lacks POSIX signals")
def test_ctrl_c_ends_a_call(team):
    handler, caller, ended = signal.getsignal(signal.SIGINT), threading.get_ident(), []
    signal.signal(signal.SIGINT, signal.default_int_handler)
    met = meeting(THREADS)

    def task(n):
        met.wait()
        if threading.get_ident() == caller:
            signal.raise_signal(signal.SIGINT)
        ended.append(n)

    try:
        with pytest.raises(KeyboardInterrupt):
            team.run(task, range(THREADS))
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, handler)
    assert len(ended) == THREADS - 1
    assert len(set(threads_of(team))) == THREADS


FORKED = """
import os, torch, mha_core as mha
from mha_native.team import run, num_threads
torch.set_num_threads(3)
layer = mha.EncoderLayer.init(d_model=32, num_heads=4, d_ff=64, seed=0, backend="torch").quantized()
x = torch.randn(4, 100, 32)
seen, expected = [], layer(x)
run(seen.append, range(30))
child = os.fork()
if not child:
    run(seen.append, range(30, 60))
    os._exit(0 if (num_threads(), sorted(seen)) == (1, list(range(60))) and torch.equal(layer(x), expected) else 1)
print(os.waitpid(child, 0)[1], torch.equal(layer(x), expected), num_threads())
"""


SECOND = """
import ctypes, os
ctypes.CDLL(os.environ["BEFORE"])
import torch
from mha_native.team import team
there = ctypes.CDLL(torch.__path__[0] + "/lib/libtorch_cpu.so").GOMP_parallel
before = team()
ctypes.CDLL(os.environ["AFTER"], mode=ctypes.RTLD_GLOBAL)
print(before == team.__wrapped__() == ctypes.cast(there, ctypes.c_void_p).value)
"""


@pytest.mark.full  # imports torch in a process of its own
def test_an_openmp_of_another_package_does_not_hide_torch_s(team, tmp_path):
    lines = Path("/proc/self/maps").read_text().splitlines()
    loaded = next(path for line in lines if "libgomp" in (path := line.split(maxsplit=5)[-1]))
    before, after = (shutil.copy(loaded, tmp_path / name) for name in ("libgomp-before.so", "libgomp-after.so"))
    assert in_process(SECOND, BEFORE=str(before), AFTER=str(after)) == "True"


@pytest.mark.full  # imports torch in a process of its own
@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
def test_a_forked_process_computes_in_its_only_thread(team):
    assert in_process(FORKED) == "0 True 3"
