"""NumPy's threads when processes fork and end; each script runs in a fresh interpreter."""

import os
import sys

import processes
import pytest

from mha_numpy import blas

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="this system lacks os.fork"),
    pytest.mark.skipif(not blas.can_hold(), reason="the thread count of this NumPy's BLAS cannot be set"),
]

START = """
import os, sys, threading
import numpy as np
import mha_core as mha
from mha_numpy import blas, cores, pool, threads

mha.set_num_threads(4)
mha.scaled_dot_product_attention(*[np.ones((1, 2, 2))] * 3)  # loads the NumPy backend, which sets the number
count = blas.functions()[0]
assert (count(), cores.num_threads()) == (4, 4)

def meet(tasks=4):
    "Run tasks that end only if four threads compute them at once; return the BLAS thread counts that they saw."
    met, seen = threading.Barrier(4, timeout=30), []
    threads.run(lambda _: (met.wait(), seen.append(count())), range(tasks))
    return seen

def in_child(function):
    "Call the function in a forked process and return its exit status."
    child = os.fork()
    if child == 0:
        status = 1
        try:
            function()
            status = 0
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
"""


def run(script):
    """Return the words that a script prints. It must not hang or write to standard error."""
    command = [sys.executable, "-W", "error", "-W", "ignore:.*fork:DeprecationWarning", "-c", START + script]
    done = processes.run(command, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.split()


def test_a_forked_process_starts_its_own_threads():
    script = """
meet()
assert pool._pool.helpers == 3

def child():
    assert pool._pool.helpers == 0
    assert meet() == [1] * 4
    assert count() == 4

print(in_child(child))
assert meet() == [1] * 4
"""
    assert run(script) == ["0"]


def test_14_a_forked_process_gives_the_same_bits():
    script = """
from judged_attention import calls, same_bits

asked = calls(np.random.default_rng(0))
expected = [call() for call in asked]

def child():
    for call, state in zip(asked, expected, strict=True):
        same_bits(call(), state)

print(in_child(child), len(asked) > 3)
"""
    assert run(script) == ["0", "True"]


def test_a_process_forked_while_another_thread_computes_has_the_blas_and_all_threads():
    script = """
inside, go_on = threading.Event(), threading.Event()

def task(_):
    inside.set()
    assert go_on.wait(30)

other = threading.Thread(target=threads.run, args=(task, range(6)))
other.start()
assert inside.wait(30)
assert count() == 1

def child():
    assert count() == 4, count()
    assert (pool._pool.at_work, pool._pool.queues) == (0, [])
    assert meet() == [1] * 4
    assert count() == 4

print(in_child(child))
assert count() == 1
go_on.set()
other.join()
assert count() == 4
"""
    assert run(script) == ["0"]


def test_a_process_forked_during_calls_of_other_threads_never_hangs():
    script = """
end = threading.Event()

def call():
    while not end.is_set():
        threads.run(lambda n: n * n, range(8))

callers = [threading.Thread(target=call) for _ in range(3)]
for caller in callers:
    caller.start()
print(*{in_child(meet) for _ in range(40)})
end.set()
for caller in callers:
    caller.join()
assert count() == 4
"""
    assert run(script) == ["0"]


def test_a_call_whose_tasks_are_lost_in_a_fork_raises():
    """Forked inside a task, the new process has the caller, but neither its helpers nor their results."""
    script = """
main, met = threading.get_ident(), threading.Barrier(4, timeout=30)
begin, parent = threading.Event(), os.getpid()

def task(_):
    met.wait()
    if threading.get_ident() != main:
        assert begin.wait(30)
    else:
        global child
        child = os.fork()
        begin.set()

try:
    threads.run(task, range(4))
except RuntimeError as error:
    assert os.getpid() != parent and "forked" in str(error), error
    assert meet() == [1] * 4
    os._exit(7)
assert os.getpid() == parent
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    assert run(script) == ["7"]


def test_results_begun_before_a_fork_are_lost_or_right_in_both_processes():
    script = """
results = threads.parallel(lambda n: n * n, range(1000))
first = [next(results) for _ in range(10)]

def child():
    try:
        later = list(results)
    except RuntimeError as error:
        assert "forked" in str(error), error
    else:
        assert first + later == [n * n for n in range(1000)]

print(in_child(child))
assert first + list(results) == [n * n for n in range(1000)]
"""
    assert run(script) == ["0"]


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_attention_in_worker_processes_gives_the_same_bits(tmp_path, method):
    """Workers of multiprocessing, started by each method while the parent has helper threads."""
    (tmp_path / "work.py").write_text(
        "import numpy as np\n"
        "import mha_core as mha\n"
        "from mha_numpy import threads\n"
        "def attend(seed):\n"
        "    q, k, v = np.random.default_rng(seed).normal(size=(3, 2, 4, 300, 32)).astype(np.float32)\n"
        "    out = []\n"
        "    threads.run(lambda n: out.append(mha.scaled_dot_product_attention(q, k, v).tobytes()), range(4))\n"
        "    assert len(set(out)) == 1\n"
        "    return out[0]\n"
    )
    script = f"""
sys.path.insert(0, {str(tmp_path)!r})
import multiprocessing
from work import attend

if __name__ == "__main__":
    expected = [attend(seed) for seed in range(4)]
    with multiprocessing.get_context({method!r}).Pool(2) as workers:
        assert workers.map(attend, range(4)) == expected
    print(os.path.basename(multiprocessing.__file__))
"""
    assert run(script) == ["__init__.py"]


def test_the_interpreter_ends_while_helpers_sleep():
    assert run("print(len(meet()))") == ["4"]


def test_the_interpreter_ends_while_a_daemon_thread_s_tasks_run():
    script = """
inside = threading.Semaphore(0)

def task(_):
    inside.release()
    threading.Event().wait()

threading.Thread(target=threads.run, args=(task, range(4)), daemon=True).start()
assert all(inside.acquire(timeout=30) for _ in range(4))
print("end")
"""
    assert run(script) == ["end"]


def test_calls_while_the_interpreter_ends_are_computed():
    """Both without helpers and with helpers started before."""
    script = """
import atexit

def last():
    seen = []
    threads.run(seen.append, range(8))
    print(len(seen))

atexit.register(last)
if len(sys.argv) > 1:
    meet()
"""
    assert run(script) == ["8"]
    assert run(script.replace("len(sys.argv) > 1", "True")) == ["8"]
