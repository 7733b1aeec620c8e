"""The conformance suite, run in a process of its own."""

import sys

from processes import run

SUITE = [sys.executable, "-m", "pytest", "-p", "mha_conformance.plugin", "--pyargs", "mha_conformance"]
MHA = [sys.executable, "-m", "mha_core"]


def conform(*arguments, cwd, suite=SUITE, **settings):
    """Run the suite by pytest."""
    return run(suite, "-p", "no:cacheprovider", "-q", "--backend", *arguments, cwd=cwd, **settings)


def mha_conform(*arguments, cwd, **settings):
    """Run the suite by ``mha conform``."""
    return run(MHA, "conform", *arguments, cwd=cwd, **settings)


FEW = ("--quick", "--dtype", "float32")


def one_line(done, status, message):
    assert done.returncode == status, done.stdout + done.stderr
    said = [line for line in (done.stdout + done.stderr).splitlines() if line.startswith("ERROR: ")]
    assert len(said) == 1
    assert message in said[0]
    assert "Traceback" not in done.stderr
