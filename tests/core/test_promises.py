"""The promises of docs/promises.md on every backend: the conformance suite judges them; what it does not try is here.

13 is in tests/core/test_promises_at_scale.py.
"""

import array_api_strict
import numpy as np
import pytest
import torch
from project import INSTALLED
from suite import SUITE, conform
from tested_backends import EACH_BACKEND

import mha_core as mha
from mha_conformance import oracle
from mha_conformance.cases.bad_inputs import SHAPES

MODULES = ("promises", "refusals", "inputs", "half_precision", "algebra", "weights", "pieces", "layers", "threads")
"""The modules of the suite that judge attention, its promises, pieces and layers; tests/conformance runs all of them."""


@pytest.mark.parametrize("name", EACH_BACKEND)
def test_the_suite_finds_nothing_wrong(name, tmp_path):
    """In all dtypes of the backend: by what is chosen, by each kernel, and by the algebra."""
    suite = [*SUITE[:-1], *(f"{SUITE[-1]}.test_{module}" for module in MODULES)]
    more = ["--plugin", "strict_plugin"] if name == "array_api_strict" else []
    done = conform(name, "--quick", *more, cwd=tmp_path, suite=suite, path=[INSTALLED])
    assert done.returncode == 0 and " passed" in done.stdout, done.stdout + done.stderr


@pytest.fixture
def xyz(rng):
    """query (2, 4, 5, 6), key and value (2, 2, 7, ...), float64."""
    return tuple(rng.normal(size=shape) for shape in SHAPES.values())


def test_4_an_integer_mask_is_refused_with_what_to_write(backend, xyz):
    mask = backend.from_numpy(np.ones((5, 7), dtype=np.int64))
    with pytest.raises(TypeError, match=r"mask has dtype .*int64; expected a boolean array.*write mask != 0"):
        mha.attention_state(*map(backend.from_numpy, xyz), mask=mask)


def test_9_bfloat16_is_rounded_once_at_the_end(rng):
    query, key, value = (torch.asarray(rng.normal(size=(1, 4, 64)) * 3).to(torch.bfloat16) for _ in range(3))
    out, _, _ = oracle.attention(*(x.double().numpy() for x in (query, key, value)))
    with mha.use_kernel("attention", "algebra"):
        state = mha.attention_state(query, key, value)
    np.testing.assert_allclose(state.out.double().numpy(), out, rtol=2**-8, atol=1e-6)


def test_10_wrong_dtypes_are_type_errors_that_name_the_argument(backend, xyz):
    query, key, value = map(backend.from_numpy, xyz)
    integers = backend.from_numpy(np.ones((2, 4, 5, 6), dtype=np.int64))
    narrow = backend.from_numpy(xyz[1].astype(np.float32))
    written = r"write {0} = ({0}\.(astype|to)\(|[\w.]+\.astype\({0}, ).*{1}'?\)$"  # test_advice.py runs what is written
    expected = "query has dtype .*int64; expected a floating dtype: " + written.format("query", "float32")
    with pytest.raises(TypeError, match=expected):
        mha.scaled_dot_product_attention(integers, key, value)
    expected = "key has dtype .*float32, but query has .*float64: " + written.format("key", "float64")
    with pytest.raises(TypeError, match=expected):
        mha.scaled_dot_product_attention(query, narrow, value)
    for name in ("bias", "sink"):
        with pytest.raises(TypeError, match=f"{name}.* has dtype .*float32, but query has"):
            mha.scaled_dot_product_attention(query, key, value, **{name: backend.from_numpy(np.ones(4, dtype=np.float32))})


def test_10_mixed_libraries_and_devices_are_type_errors(xyz):
    query, key, value = xyz
    with pytest.raises(mha.BackendMismatch, match=r"key is a array_api_strict.*numpy\.ndarray: write key = numpy\.from_dlpack"):
        mha.scaled_dot_product_attention(query, array_api_strict.asarray(key), value)
    here, elsewhere = torch.ones(2, 3), torch.ones(2, 3, device="meta")
    with pytest.raises(mha.BackendMismatch, match="key is on device meta, but query is on cpu: move it there first"):
        mha.scaled_dot_product_attention(here, elsewhere, here)


def test_11_the_shape_that_a_mask_broadcasts_to_is_named(backend, xyz):
    mask = backend.from_numpy(np.ones((3, 5, 7), dtype=bool))
    with pytest.raises(ValueError, match=r"mask has shape .*; expected .* broadcasts to \(\.\.\., H, L, S\) = \(2, 4, 5, 7\)"):
        mha.attention_state(*map(backend.from_numpy, xyz), mask=mask)
