"""Ranks that fail at random points, over threads, gloo and MPI: all raise, in time, and the group works or says why not."""

import json
import sys

import pytest
from processes import MPIEXEC, finished, together
from rank_tests import threads as rank_threads
from rank_tests.fuzz import fuzz

pytestmark = pytest.mark.full
PROGRAM = "from rank_tests.fuzz import main; main({!r}, {}, {})"


def assert_none(lines):
    faults = [fault for line in lines for fault in json.loads(line)[0]]
    assert not faults, "\n".join(dict.fromkeys(faults))


@pytest.mark.parametrize("size", [2, 3, 4])
def test_ranks_of_threads_that_fail_at_random(size, rng):
    seed = int(rng.integers(2**31))
    assert rank_threads.results(size, lambda group: fuzz(group, seed, 200)) == [[]] * size


def test_ranks_of_gloo_that_fail_at_random(tmp_path, rng):
    pytest.importorskip("torch")
    program = PROGRAM.format("gloo", int(rng.integers(2**31)), 60)
    assert_none(together([[sys.executable, "-c", program, str(rank), str(tmp_path / "store")] for rank in range(4)]))


@pytest.mark.skipif(MPIEXEC is None, reason="mpiexec is not installed")
def test_ranks_of_mpi_that_fail_at_random(rng):
    pytest.importorskip("mpi4py")
    program = PROGRAM.format("mpi", int(rng.integers(2**31)), 60)
    assert_none(finished([MPIEXEC, "-n", "4", sys.executable, "-c", program]).splitlines())
