"""The process in which ``mha conform`` judges."""

import subprocess
import sys
from types import SimpleNamespace

import pytest
from suite import mha_conform

from mha_conformance.cli.conform import conform
from mha_core import MhaError


def environment(monkeypatch, **options):
    """Return the variables of the process that a run starts."""
    seen = {}

    def run(arguments, *, env, check):
        seen.update(env)
        return SimpleNamespace(returncode=3)

    monkeypatch.setattr(subprocess, "run", run)
    assert conform("numpy", {}, **options) == 3
    return seen


def test_idle_threads_sleep_unless_the_user_says_otherwise(monkeypatch):
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    monkeypatch.setenv("OPENBLAS_THREAD_TIMEOUT", "20")
    monkeypatch.setenv("PYTEST_ADDOPTS", "-x")
    variables = environment(monkeypatch)
    assert (variables["OMP_WAIT_POLICY"], variables["OPENBLAS_THREAD_TIMEOUT"]) == ("PASSIVE", "20")
    assert "PYTEST_ADDOPTS" not in variables


def test_several_processes_share_the_cores_unless_the_user_says_otherwise(monkeypatch):
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MKL_NUM_THREADS", "5")
    assert "OMP_NUM_THREADS" not in environment(monkeypatch)
    variables = environment(monkeypatch, processes=1000)
    assert (variables["OMP_NUM_THREADS"], variables["OPENBLAS_NUM_THREADS"], variables["MKL_NUM_THREADS"]) == ("1", "1", "5")


def test_several_processes_run_the_tests_of_one(tmp_path):
    few = ("numpy", "-k", "test_updates", "--quick", "--dtype", "float32")
    alone, shared = (mha_conform(*few, *more, cwd=tmp_path, status=0) for more in ((), ("--processes", 2)))
    assert "2 workers" in shared.stdout
    counts = [done.stdout[done.stdout.index("section ") :].split("error / bound")[0] for done in (alone, shared)]
    assert counts[0] == counts[1]


def test_several_processes_need_pytest_xdist(monkeypatch):
    monkeypatch.setitem(sys.modules, "xdist", None)
    with pytest.raises(MhaError, match=r"^--processes needs pytest-xdist: pip install pytest-xdist$"):
        conform("numpy", {}, processes=2)
