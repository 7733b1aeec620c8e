"""Kernels prepared for a signature: prepared once, then called with arrays only."""

import numpy as np
import pytest
from sample_kernels import ANSWER, WIDTH, a_kernel, received

import mha_core as mha
from mha_conformance.probes.recorder import recorded


@pytest.fixture
def prepared(installed):
    """An installed kernel whose prepared form returns twice the result of its plain form."""
    kernel = a_kernel(prepare="sample_kernels:prepare")
    installed(kernel)
    return kernel


@pytest.fixture
def x(rng):
    return rng.normal(size=(2, 4, 6, WIDTH))


def steps():
    return [op for op, _, _ in received]


def test_a_kernel_is_prepared_once_per_signature(prepared, x):
    for _ in range(3):
        assert (mha.scaled_dot_product_attention(x, x + 1, x + 2) == 2 * ANSWER).all()
    assert steps() == ["prepare", "prepared", "prepared", "prepared"]
    mha.scaled_dot_product_attention(x, x, x, mask=mha.causal())
    mha.scaled_dot_product_attention(x, x, x, scale=2.0)
    mha.attention_state(x, x, x)
    mha.scaled_dot_product_attention(x[:, :, 1:], x, x)
    assert steps()[4:] == 4 * ["prepare", "prepared"]


def test_if_prepare_declines_the_plain_kernel_computes(prepared, x):
    for _ in range(2):
        assert (mha.scaled_dot_product_attention(x, x, x, sink=np.ones(4)) == ANSWER).all()
    assert steps() == ["prepare", "attention", "attention"]


def test_a_mask_with_arrays_is_never_prepared(prepared, x):
    for lengths in ([3, 6], [6, 2]):
        mask = mha.key_lengths(np.asarray(lengths))
        assert (mha.scaled_dot_product_attention(x, x, x, mask=mask) == ANSWER).all()
    assert steps() == ["attention", "attention"]


def test_verify_checks_prepared_kernels(prepared, x):
    mha.scaled_dot_product_attention(x, x, x)
    with mha.verify(), pytest.raises(mha.KernelDivergence, match="is 14"):
        mha.scaled_dot_product_attention(x, x, x)


def test_the_suite_counts_prepared_kernels(prepared, x):
    with recorded(prepared, prepared.handles) as recording:
        mha.scaled_dot_product_attention(x, x, x)
        mha.scaled_dot_product_attention(x, x, x, sink=np.ones(4))
    assert recording.runs == 2
    assert steps() == ["prepare", "prepared", "prepare", "attention"]


def test_if_prepare_cannot_be_imported_another_kernel_computes(installed, x):
    expected = mha.scaled_dot_product_attention(x, x, x)
    installed(a_kernel(prepare="sample_kernels:absent"))
    with pytest.warns(mha.KernelWarning, match="cannot be loaded: AttributeError"):
        np.testing.assert_array_equal(mha.scaled_dot_product_attention(x, x, x), expected)
