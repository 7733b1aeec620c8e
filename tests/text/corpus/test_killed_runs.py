"""Runs that are killed anywhere, one after another, and then go on: the folder equals that of a quiet run."""

import os
import random
import sys

import needs
import processes
import pytest
from project import SUPPORT

pytestmark = [
    needs.installed("pyarrow"),
    pytest.mark.full,
    pytest.mark.skipif(not hasattr(os, "fork"), reason="this system lacks os.fork"),
]
COUNT = 60  # folders


def test_a_run_that_is_killed_anywhere_goes_on(tmp_path):
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")
    path = [*processes.ALONE["path"], SUPPORT / "texts"]
    command = [sys.executable, SUPPORT / "texts" / "killed_runs.py", tmp_path, COUNT, seed]
    done = processes.run(command, **processes.ALONE | {"path": path})
    assert done.returncode == 0, done.stderr
    print(done.stdout)
    assert int(done.stdout.split()[0]) > COUNT / 2
