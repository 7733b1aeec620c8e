"""Programs whose ranks are processes, started at once by hand or by mpiexec."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from project import PATHS, ROOT

MPIEXEC = shutil.which("mpiexec", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]))
LIMIT = 180  # seconds for one program


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
    found = [process.communicate(timeout=LIMIT) for process in started]
    for process, (_, errors) in zip(started, found, strict=True):
        assert process.returncode == 0, errors
    return [out for out, _ in found]
