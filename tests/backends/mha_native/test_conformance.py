"""The conformance suite judges the compiled kernel, on each level of vector instructions that this processor has."""

import os

import pytest
from native import BUILT, LEVELS, needs_native
from project import INSTALLED
from suite import FEW, conform

pytestmark = needs_native


ROTATING = [pytest.mark.full, pytest.mark.rotating]
RUNS = [
    pytest.param("numpy", LEVELS[0], [*FEW], id=f"numpy-{LEVELS[0]}-quick"),
    pytest.param("numpy", LEVELS[0], [], marks=ROTATING, id=f"numpy-{LEVELS[0]}"),
    pytest.param("torch", LEVELS[0], ["--quick"], marks=ROTATING, id=f"torch-{LEVELS[0]}-quick"),
    pytest.param("jax", LEVELS[0], [*FEW, "--part", "0.1"], marks=ROTATING, id=f"jax-{LEVELS[0]}-quick"),
    *(pytest.param("numpy", level, ["--quick"], marks=ROTATING, id=f"numpy-{level}-quick") for level in LEVELS[1:]),
]


@pytest.mark.parametrize(("backend", "level", "options"), RUNS)
def test_the_compiled_kernel_conforms(tmp_path, backend, level, options):
    path = [BUILT, INSTALLED, *filter(None, [os.environ.get("PYTHONPATH")])]
    done = conform(backend, "-k", "native", *options, cwd=tmp_path, path=path, MHA_NATIVE_LEVEL=level, status=0)
    assert "attention by native" in done.stdout  # the covering design has judged it
