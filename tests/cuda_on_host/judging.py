"""Checks of mha_cupy's attention kernels on the host against the oracle."""

import numpy as np
import pytest

import mha_core as mha
from cuda_on_host import plugin
from mha_core.conformance.cases.problems import Limits, random_problem
from mha_core.conformance.oracle.tolerance import assert_within, exact_attention
from mha_core.plugin import register, unregister


@pytest.fixture(autouse=True)
def kernels(monkeypatch):
    """Replace the device by the host in every test of a module that imports this fixture."""
    plugin.stand_in(monkeypatch.setattr)
    register(plugin)
    yield
    unregister(plugin)


def on_host(kernel, query, key, value, **options):
    with mha.use_kernel("attention", kernel):
        return mha.attention_state(query, key, value, **options)


def drawn(kernel, rng, count, *, dtype=None, **limits):
    """Yield random problems that the kernel supports, in float64 or ``dtype``."""
    for _ in range(count):
        p = random_problem(rng, Limits(**limits))
        if dtype is not None:
            p = p.map(lambda x: x.astype(dtype))
        try:
            on_host(kernel, p.query, p.key, p.value, **p.options(lambda x: x))
        except mha.KernelUnsupported as refusal:
            if "does not support empty axes" not in str(refusal) and "does not handle mask" not in str(refusal):
                raise
        else:
            yield p


def judge(kernel, query, key, value, *, allowed=None, whole_bias=None, **options):
    """Check out and lse; return the state. ``allowed`` and ``whole_bias``: the options ``mask`` and ``bias`` as full arrays."""
    state = on_host(kernel, query, key, value, **options)
    known = {name: options[name] for name in ("scale", "softcap", "sink") if name in options}
    arrays = (x.astype(np.float64) for x in (query, key, value))
    exact = exact_attention(*arrays, dtype=query.dtype.name, rounds_weights=True, allowed=allowed, bias=whole_bias, **known)
    assert_within("out", state.out, exact.out, exact.out_bound)
    assert_within("lse", state.lse, exact.lse, exact.lse_bound)
    return state
