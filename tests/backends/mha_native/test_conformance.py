"""The conformance suite judges the compiled kernel, on each level of vector instructions that this processor has."""

import os

import pytest
from native import BUILT, LEVELS, needs_native
from project import INSTALLED
from suite import FEW, conform

pytestmark = needs_native


QUICK = [pytest.param("numpy", LEVELS[0], [*FEW], marks=pytest.mark.quick, id=f"numpy-{LEVELS[0]}-quick")]
TENSORS = [pytest.param("torch", LEVELS[0], ["--quick"], marks=pytest.mark.full, id=f"torch-{LEVELS[0]}-quick")]
FULL = [pytest.param("numpy", LEVELS[0], [], marks=pytest.mark.full, id=f"numpy-{LEVELS[0]}")]  # both libraries call one module
PROGRAMS = [
    pytest.param(
        *("jax", LEVELS[0], [*FEW, "--part", "0.1"]),
        marks=[pytest.mark.full, pytest.mark.rotating],
        id=f"jax-{LEVELS[0]}-quick",
    )
]
HELD_DOWN = [
    pytest.param("numpy", level, ["--quick"], marks=pytest.mark.full, id=f"numpy-{level}-quick") for level in LEVELS[1:]
]


@pytest.mark.parametrize(("backend", "level", "options"), [*QUICK, *TENSORS, *PROGRAMS, *FULL, *HELD_DOWN])
def test_the_compiled_kernel_conforms(tmp_path, backend, level, options):
    path = [BUILT, INSTALLED, *filter(None, [os.environ.get("PYTHONPATH")])]
    done = conform(backend, "-k", "native", *options, cwd=tmp_path, path=path, MHA_NATIVE_LEVEL=level, status=0)
    assert "attention by native" in done.stdout  # the covering design has judged it
