"""Promise 13 of docs/promises.md: memory. tests/core/test_promises.py has the others."""

import tracemalloc

import numpy as np
import pytest

import mha_core as mha
import mha_core.ops.operation as operation
from mha_core.dispatch.backend import load


@pytest.mark.parametrize("mask", [None, mha.causal(), mha.window(64, 0), mha.prefix(10) | mha.causal()])
@pytest.mark.parametrize("library", ["numpy", "array_api_strict"])
def test_13_memory_grows_with_the_length_not_its_square(rng, mask, library):
    make = load(library).from_numpy

    mha.set_num_threads(1)  # each thread keeps memory for later calls, and it is chance which threads take part

    def peak(length):
        arrays = [make(rng.normal(size=(1, length, 8)).astype(np.float32)) for _ in range(3)]
        tracemalloc.start()
        try:
            mha.scaled_dot_product_attention(*arrays, mask=mask)
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    try:
        first, small, large = peak(4096), peak(2048), peak(4096)  # the first includes memory that is kept for later calls
    finally:
        mha.set_num_threads(None)
    assert large < 1.5 * small + 4096 * 8 * 4 * 4
    assert max(first, large) < 4096 * 4096 * 4 / 4


def test_memory_kept_for_masks_that_are_never_used_again_is_bounded(rng, monkeypatch):
    """Packed texts have other lengths each time, and the lengths are part of what identifies a call."""
    monkeypatch.setattr(operation.PlanStore, "MOST_NUMBERS", 2**12)  # so that few calls exceed it
    x = np.ones((1, 8, 4), dtype=np.float32)

    def call(times):
        for _ in range(times):
            lengths = [0] * 1000
            for at in rng.integers(0, 1000, size=8):
                lengths[at] += 1
            mha.scaled_dot_product_attention(x, x, x, mask=mha.packed(lengths))

    call(10)  # fills what is kept for other reasons
    tracemalloc.start()
    try:
        call(100)
        held = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert held < 100 * 1000 * 8 / 4  # bytes: a quarter of the memory of all lengths


def test_13_an_array_mask_makes_only_blocks(rng):
    length = 3000
    arrays = [rng.normal(size=(4, length, 8)).astype(np.float32) for _ in range(3)]
    mask = rng.random((length, length)) < 0.5
    tracemalloc.start()
    try:
        mha.scaled_dot_product_attention(*arrays, mask=mask)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 4 * length * length * 4 / 4


def test_13_no_array_of_a_long_problem_is_as_large_as_its_scores():
    """On torch, which shows every result of every operation."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    class Largest(TorchDispatchMode):
        elements = 0

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            result = function(*args, **(kwargs or {}))
            if isinstance(result, torch.Tensor):
                self.elements = max(self.elements, result.untyped_storage().nbytes() // result.element_size())
            return result

    query, key, value = torch.randn(3, 1, 4096, 8)
    hides = torch.rand(4096, 4096) < 0.5
    for options in ({}, {"mask": mha.causal()}, {"mask": mha.window(9, 0), "bias": mha.alibi(1)}):
        with Largest() as largest:
            mha.scaled_dot_product_attention(query, key, value, **options)
        assert largest.elements <= 1 << 20
    with Largest() as largest:
        mha.scaled_dot_product_attention(query, key, value, mask=hides)
    assert largest.elements == 4096 * 4096  # views of the mask itself, and nothing else of that size
