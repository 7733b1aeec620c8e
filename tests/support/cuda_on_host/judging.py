"""Checks of mha_cupy's attention kernels on the host against the oracle."""

from functools import partial

import numpy as np

import mha_core as mha
from mha_conformance.cases.problems import Limits, random_problem
from mha_conformance.oracle.attention_gradients import attention_gradients
from mha_conformance.oracle.tolerance import assert_within, exact_attention


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


def gradients_on_host(kernel, query, key, value, d_out, d_lse, *, wanted=("query", "key", "value"), **options):
    """Return the wanted gradients by name, from a state that NumPy's own kernels compute."""
    fixed = {name: options.pop(name) for name in ("bias", "sink") if name in options and name not in wanted}
    operation = partial(mha.attention_state, **fixed)
    _, pullback = mha.vjp(operation, query, key, value, wrt=lambda name: name in wanted, **options)
    with mha.use_kernel("attention_vjp", kernel):
        gradients = pullback(mha.AttentionState(d_out, d_lse))
    named = dict(zip(("query", "key", "value"), gradients, strict=True)) | dict(gradients.options)
    return {name: x for name, x in named.items() if x is not None}


def judge_gradients(kernel, rng, query, key, value, *, allowed=None, whole_bias=None, of_bias=None, **options):
    """Check the wanted gradients for random d_out and d_lse, and that they are the same bits a second time; return them."""
    batch = np.broadcast_shapes(*(x.shape[:-3] for x in (query, key, value)))
    lse = (*batch, *query.shape[-3:-1])
    d_out = rng.normal(size=(*lse, value.shape[-1])).astype(query.dtype)
    d_lse = rng.normal(size=lse).astype(np.float64 if query.dtype == np.float64 else np.float32)
    gradients = gradients_on_host(kernel, query, key, value, d_out, d_lse, **options)
    known = {name: options[name] for name in ("scale", "softcap", "sink") if name in options}
    arrays = (x.astype(np.float64) for x in (query, key, value, d_out, d_lse))
    name, wide = query.dtype.name, frozenset({"bias", "sink"} & gradients.keys())
    exact = attention_gradients(
        *arrays, dtype=name, rounds_weights=True, of_bias=of_bias, allowed=allowed, bias=whole_bias, wide=wide, **known
    )
    for argument, gradient in gradients.items():
        assert_within(f"d_{argument}", gradient, *exact[argument])
    again = gradients_on_host(kernel, query, key, value, d_out, d_lse, **options)
    assert gradients.keys() == again.keys()
    assert all(x.tobytes() == again[argument].tobytes() for argument, x in gradients.items())
    return gradients
