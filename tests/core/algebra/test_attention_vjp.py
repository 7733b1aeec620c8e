"""Gradients of attention that are summed over runs of packed sequences."""

import numpy as np
import pytest
import torch

import mha_core as mha

LENGTHS = tuple(range(1, 41))


@pytest.mark.parametrize("kernel", ["algebra", "blocks"])
def test_the_gradient_of_a_sink_is_rounded_once_over_packed_sequences(kernel):
    """Forty runs of one sequence each, whose terms cancel: rounded before they are added, the sum was five roundings off."""
    rng, length = np.random.default_rng(1), sum(LENGTHS)
    query, key, value = (torch.asarray(rng.normal(size=(4, length, 16))).bfloat16() for _ in range(3))
    sink, d_lse = torch.asarray(rng.normal(size=4)).bfloat16(), torch.asarray(rng.normal(size=(4, length))).float()

    def gradient(dtype):
        arrays = (x.to(dtype) for x in (query, key, value))
        options = {"sink": sink.to(dtype), "mask": mha.packed(LENGTHS)}
        state, pullback = mha.vjp(mha.attention_state, *arrays, wrt=lambda name: name == "sink", **options)
        return pullback(mha.AttentionState(torch.zeros_like(state.out), d_lse)).options["sink"]

    with mha.use_kernel("attention_vjp", kernel):
        half, wide = gradient(torch.bfloat16), gradient(torch.float32)
    assert half.dtype == torch.bfloat16
    assert ((half.float() - wide).abs() <= 2**-8 * wide.abs()).all()
