"""The promises of docs/promises.md on every backend, as the conformance suite judges them; and promise 13, memory, here."""

import tracemalloc

import numpy as np
import pytest
from project import INSTALLED
from suite import SUITE, conform
from tested_backends import EACH_BACKEND

import mha_core as mha
import mha_core.ops.operation as operation
from mha_core.dispatch.backend import load

MODULES = ("promises", "refusals", "inputs", "half_precision", "algebra", "weights", "pieces", "layers", "threads")
"""The modules of the suite that judge attention, its promises, pieces and layers; tests/conformance runs all of them."""
GRADIENTS = ("gradients", "layer_gradients")
"""The modules that judge gradients, here by the algebra alone, on the backend that has no kernels."""


@pytest.mark.parametrize("name", EACH_BACKEND)
def test_the_suite_finds_nothing_wrong(name, tmp_path):
    """In all dtypes of the backend: by what is chosen, by each kernel, and by the algebra."""
    strict = name == "array_api_strict"
    suite = [*SUITE[:-1], *(f"{SUITE[-1]}.test_{module}" for module in (*MODULES, *(GRADIENTS if strict else ())))]
    more = ["--plugin", "strict_plugin"] if strict else []
    done = conform(name, "--quick", *more, cwd=tmp_path, suite=suite, path=[INSTALLED])
    assert done.returncode == 0 and " passed" in done.stdout, done.stdout + done.stderr


def traced(function):
    """Return the bytes that Python holds after a call of a function and did not before, and the most that it held meanwhile."""
    tracemalloc.start()
    try:
        function()
        return tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()


MASKS = {
    "none": lambda length: None,
    "causal": lambda length: mha.causal(),
    "window": lambda length: mha.window(64, 0),
    "either": lambda length: mha.prefix(10) | mha.causal(),
    "array": lambda length: np.arange(length)[:, None] % 3 != np.arange(length) % 3,
}


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("library", ["numpy", "array_api_strict"])
def test_13_memory_grows_with_the_length_not_its_square(rng, mask, library, set_num_threads):
    make = load(library).from_numpy
    set_num_threads(1)  # each thread keeps memory for later calls, and it is chance which threads take part

    def peak(length):
        arrays = [make(rng.normal(size=(1, length, 8)).astype(np.float32)) for _ in range(3)]
        visible = MASKS[mask](length)
        visible = make(visible) if mask == "array" else visible
        return traced(lambda: mha.scaled_dot_product_attention(*arrays, mask=visible))[1]

    first, small, large = peak(4096), peak(2048), peak(4096)  # the first includes memory that is kept for later calls
    assert large < 1.5 * small + 4096 * 8 * 4 * 4
    assert max(first, large) < 4096 * 4096 * 4 / 4


def test_memory_kept_for_masks_that_are_never_used_again_is_bounded(rng, monkeypatch):
    """Packed texts have other lengths each time, and the lengths are part of what identifies a call."""
    monkeypatch.setattr(operation.PlanStore, "MOST_NUMBERS", 2**12)  # so that few calls exceed it
    x = np.ones((1, 8, 4), dtype=np.float32)

    def call(times):
        for _ in range(times):
            lengths = np.bincount(rng.integers(0, 1000, size=8), minlength=1000).tolist()
            mha.scaled_dot_product_attention(x, x, x, mask=mha.packed(lengths))

    call(10)  # fills what is kept for other reasons
    assert traced(lambda: call(100))[0] < 100 * 1000 * 8 / 4  # bytes: a quarter of the memory of all lengths


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
