"""The promises of docs/promises.md on every backend, as the conformance suite judges them.

Promise 13 is in tests/core/test_promises_at_scale.py.
"""

import pytest
from project import INSTALLED
from suite import SUITE, conform
from tested_backends import EACH_BACKEND

MODULES = ("promises", "refusals", "inputs", "half_precision", "algebra", "weights", "pieces", "layers", "threads")
"""The modules of the suite that judge attention, its promises, pieces and layers; tests/conformance runs all of them."""
GRADIENTS = ("gradients", "layer_gradients")
"""Those that judge gradients: by the algebra, on the backend that has no kernels."""


@pytest.mark.parametrize("name", EACH_BACKEND)
def test_the_suite_finds_nothing_wrong(name, tmp_path):
    """In all dtypes of the backend: by what is chosen, by each kernel, and by the algebra."""
    strict = name == "array_api_strict"
    suite = [*SUITE[:-1], *(f"{SUITE[-1]}.test_{module}" for module in (*MODULES, *(GRADIENTS if strict else ())))]
    more = ["--plugin", "strict_plugin"] if strict else []
    done = conform(name, "--quick", *more, cwd=tmp_path, suite=suite, path=[INSTALLED])
    assert done.returncode == 0 and " passed" in done.stdout, done.stdout + done.stderr
