"""Attention over the ranks of MPI: judged with two to four processes, ranks that stall or die, the example.

What ranks hear of each other's faults in layers, and within attention, is tested in tests/core/distributed.
"""

import json
import sys

import pytest
from processes import ALONE, MPIEXEC, finished, run
from rank_tests.faults import assert_heard

pytest.importorskip("mpi4py")
pytestmark = [pytest.mark.full, pytest.mark.skipif(MPIEXEC is None, reason="mpiexec is not installed")]

START = """
import os, sys, time
import numpy as np
from mpi4py import MPI
import mha_core as mha
from mha_core import distributed
from mha_mpi.ranks import Ranks
comm = MPI.COMM_WORLD
x = np.random.default_rng(comm.rank).normal(size=(1, 4, 8))
"""

JUDGED = """
from mha_conformance.ranks import judge
passed = judge(comm, "numpy")
if comm.rank == 0:
    print(len(passed), "checks passed")
"""

FAULTY = """
import json
from functools import partial
from rank_tests.faults import outcomes
received = outcomes(partial(distributed.ring_attention, group=comm), np.ones((1, 4, 2)), comm.rank, 1)
received = comm.gather(received)
if comm.rank == 0:
    print(json.dumps(received))
"""

STALLS = """
group = Ranks(comm, timeout=2)
group.all_gather_text("ready")
if comm.rank == 1:
    try:
        group.shift([x], [(x.shape, x)])()  # rank 0 waits for the next one, this one for nobody
        group.shift([], [(x.shape, x)])()
    except TimeoutError as error:
        print(error, flush=True)
        os._exit(0)
else:
    group.shift([x], [(x.shape, x)])()
    time.sleep(4)
    os._exit(0)
"""

DIES = """
group = Ranks(comm, timeout=60)
if comm.rank == 1 and "before" in sys.argv:
    os.kill(os.getpid(), 9)
group.all_gather_text("ready")
if comm.rank == 1:
    os.kill(os.getpid(), 9)
group.shift([x], [(x.shape, x)])()
"""


def mpi(size, program, *arguments):
    return finished([MPIEXEC, "-n", str(size), sys.executable, "-c", START + program, *arguments])


@pytest.mark.parametrize("size", [2, 3, 4])
def test_the_judge_of_engines_passes_mpi(size):
    assert mpi(size, JUDGED) == "12 checks passed\n"


def test_a_fault_of_one_rank_is_heard_by_the_others():
    assert_heard(json.loads(mpi(3, FAULTY)), 1)


def test_a_rank_that_stalls_makes_the_others_raise_within_the_timeout():
    done = run(
        [MPIEXEC, "-n", "2", sys.executable, "-c", START + STALLS], **ALONE
    )  # which may complain of ranks that just leave
    assert done.stdout.startswith("rank 1 waited 2 s for messages from rank 0\n"), done


@pytest.mark.parametrize("when", ["before", "within"])
def test_mpi_ends_all_ranks_where_one_is_killed(when):
    done = run([MPIEXEC, "-n", "2", sys.executable, "-c", START + DIES, when], **ALONE)
    assert done.returncode != 0
    assert "EXIT CODE: 9" in done.stdout + done.stderr  # as mpich says it


def test_what_mpi_cannot_send_is_refused():
    program = """
import torch
try:
    distributed.split_attention(*[torch.from_numpy(x)] * 3, group=comm)
except TypeError as error:
    print(error)
try:
    Ranks(MPI.COMM_WORLD.Create_intercomm)
except TypeError as error:
    print(error)
"""
    of_torch, of_type = mpi(1, program).splitlines()
    assert of_torch == (
        "an MPI communicator sends arrays of NumPy and CuPy, but this is a torch.Tensor: take an engine of its own library, "
        "such as a process group of torch.distributed"
    )
    assert of_type == "group is method; expected an intracommunicator, such as MPI.COMM_WORLD"


def test_the_example_runs_under_mpiexec():
    out = finished([MPIEXEC, "-n", "2", sys.executable, "examples/ring_mpi.py", "--length", "301"])
    assert "2 ranks, 301 tokens: the greatest difference from one process is" in out
