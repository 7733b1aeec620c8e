"""The conformance suite on every kernel of mha_cupy, with its CUDA run on the host."""

import subprocess
import sys

from cuda_kernels import needs_compiler
from project import SUPPORT

pytestmark = needs_compiler


def test_conformance_finds_nothing_wrong():
    """Covers every feature, declared and undeclared, layouts, poison, threads, and bounds on each element in four dtypes."""
    options = ["--quick", "-k", "on_host", "--plugin", "cuda_on_host.installed"]
    command = [sys.executable, "-m", "mha_core", "conform", "numpy", *options]
    done = subprocess.run(command, cwd=SUPPORT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:]
    assert "attention lse" in done.stdout and "bfloat16" in done.stdout
