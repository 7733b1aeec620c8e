"""Programs that use CuPy without a GPU."""

import os
import subprocess
import sys

from command import PLAIN


def python(code, **environment):
    """Return the standard output of a Python program that sees no GPU."""
    environment = os.environ | PLAIN | {"CUDA_VISIBLE_DEVICES": ""} | environment
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout
