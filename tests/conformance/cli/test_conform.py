"""The process in which ``mha conform`` judges."""

import subprocess
from types import SimpleNamespace

from mha_conformance.cli.conform import conform


def environment(monkeypatch):
    """Return the variables of the process that a run starts."""
    seen = {}

    def run(arguments, *, env, check):
        seen.update(env)
        return SimpleNamespace(returncode=3)

    monkeypatch.setattr(subprocess, "run", run)
    assert conform("numpy", {}) == 3
    return seen


def test_idle_threads_sleep_unless_the_user_says_otherwise(monkeypatch):
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    monkeypatch.setenv("OPENBLAS_THREAD_TIMEOUT", "20")
    monkeypatch.setenv("PYTEST_ADDOPTS", "-x")
    variables = environment(monkeypatch)
    assert (variables["OMP_WAIT_POLICY"], variables["OPENBLAS_THREAD_TIMEOUT"]) == ("PASSIVE", "20")
    assert "PYTEST_ADDOPTS" not in variables
