"""Programs that use CuPy without a GPU."""

import sys

from command import PLAIN
from processes import run


def python(code, **environment):
    """Return the standard output of a Python program that sees no GPU."""
    done = run([sys.executable, "-c", code], **PLAIN, CUDA_VISIBLE_DEVICES="", **environment)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout
