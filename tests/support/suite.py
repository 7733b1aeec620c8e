"""The conformance suite, run in a process of its own."""

import os
import subprocess
import sys

from project import SUPPORT

SUITE = [sys.executable, "-m", "pytest", "-p", "mha_conformance.plugin", "--pyargs", "mha_conformance"]


MHA = [sys.executable, "-m", "mha_core"]


def run(command, *arguments, cwd, path=(), **environment):
    """Run a command in a new process, which can import modules from tests/, ``path`` and this process's PYTHONPATH."""
    folders = [*map(str, path), str(SUPPORT), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(folders), "COLUMNS": "200", "TERM": "dumb", **environment}
    return subprocess.run(
        [*command, *map(str, arguments)], cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )


def conform(*arguments, cwd, suite=SUITE, **settings):
    """Run the suite by pytest."""
    return run(suite, "-p", "no:cacheprovider", "-q", "--backend", *arguments, cwd=cwd, **settings)


FEW = ("--quick", "--dtype", "float32")


def one_line(done, status, message):
    assert done.returncode == status, done.stdout + done.stderr
    said = [line for line in (done.stdout + done.stderr).splitlines() if line.startswith("ERROR: ")]
    assert len(said) == 1
    assert message in said[0]
    assert "Traceback" not in done.stderr
