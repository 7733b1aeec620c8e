"""Commands in new processes; also several at once, which are the ranks of one program."""

import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from fnmatch import fnmatch
from functools import partial
from pathlib import Path
from subprocess import PIPE

from project import PATHS, ROOT, SUPPORT

MPIEXEC = shutil.which("mpiexec", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]))
STRICT = [sys.executable, "-W", "error", "-c"]
"""A command that runs a program of Python in which a warning is an error."""
ALONE = {"path": PATHS, "cwd": ROOT, "timeout": 180, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
"""Options of a program that imports all packages of the checkout, and computes on one thread."""


def run(command, *arguments, path=(), without=(), status=None, cwd=None, text=None, timeout=None, stdout=PIPE, **environment):
    """Run a command in a new process, or a program of Python if a string is given.

    It can import modules from ``path``, tests/support and this process's PYTHONPATH; it lacks variables of the environment
    whose names match a pattern in ``without``, and reads ``text``. It must end with ``status``, unless that is None.
    """
    command = [sys.executable, "-c", command] if isinstance(command, str) else command
    folders = [*map(str, path), str(SUPPORT), *filter(None, [os.environ.get("PYTHONPATH")])]
    inherited = {name: value for name, value in os.environ.items() if not any(fnmatch(name, pattern) for pattern in without)}
    done = subprocess.run(
        [str(word) for word in (*command, *arguments)],
        env={**inherited, "PYTHONPATH": os.pathsep.join(folders), "COLUMNS": "200", "TERM": "dumb", **environment},
        stdout=stdout,
        stderr=PIPE,
        input=text,
        encoding="utf-8",
        cwd=cwd,
        timeout=timeout,
        check=False,
    )
    assert status in (None, done.returncode), done.stdout + done.stderr
    return done


def printed(command, *arguments, **options):
    """Return what a command prints that must succeed."""
    return run(command, *arguments, status=0, **options).stdout


finished = partial(printed, **ALONE)


def together(commands, **options):
    """Run commands at the same time; return what each prints, in their order. Errors of any fail the test."""
    with ThreadPoolExecutor(len(commands)) as callers:
        return list(callers.map(partial(finished, **options), commands))
