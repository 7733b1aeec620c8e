"""Commands in new processes; also several at once, which are the ranks of one program."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from project import PATHS, ROOT, SUPPORT

MPIEXEC = shutil.which("mpiexec", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]))
LIMIT = 180  # seconds for one program


def run(command, *arguments, cwd=None, path=(), **environment):
    """Run a command in a new process, which can import modules from tests/support, ``path`` and this process's PYTHONPATH."""
    folders = [*map(str, path), str(SUPPORT), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(folders), "COLUMNS": "200", "TERM": "dumb", **environment}
    return subprocess.run(
        [str(word) for word in (*command, *arguments)], cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )


def printed(command, *arguments, **options):
    """Return what a command prints, or a program of Python if a string is given. Its errors fail the test."""
    done = run([sys.executable, "-c", command] if isinstance(command, str) else command, *arguments, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def environment(**more):
    path = os.pathsep.join(map(str, PATHS))
    return {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", **more}


def finished(command, **more):
    """Run a command; return what it prints. Its errors fail the test."""
    done = subprocess.run(
        command, cwd=ROOT, env=environment(**more), capture_output=True, text=True, check=False, timeout=LIMIT
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def together(commands, **more):
    """Run commands at the same time; return what each prints, by command. Errors of any fail the test."""
    started = [
        subprocess.Popen(command, env=environment(**more), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for command in commands
    ]
    outputs = [process.communicate(timeout=LIMIT) for process in started]
    for process, (_, errors) in zip(started, outputs, strict=True):
        assert process.returncode == 0, errors
    return [out for out, _ in outputs]
