"""Checks of the NumPy kernel ``tiles``, element by element, with the bounds of the conformance suite."""

import pickle
from functools import lru_cache, partial

import numpy as np

import mha_core as mha
from mha_conformance.oracle.tolerance import assert_within, exact_attention

NOTHING = 2.0**-99
"""A weight below this, relative to the largest weight of its row or the sink, may have any value below this, such as 0."""


def by(kernel, query, key, value, **options):
    """Return the kernel's state; raise KernelUnsupported if the kernel does not support the call."""
    with mha.use_kernel("attention", kernel):
        return mha.attention_state(query, key, value, **options)


tiles, algebra = partial(by, "tiles"), partial(by, "algebra")


def normal(rng, *shape, dtype=np.float32, times=1.0):
    return (rng.normal(size=shape) * times).astype(dtype)


def inputs(rng, length, num_keys, *, batch=(1,), heads=2, group=1, dim=16, width=None, dtype=np.float32, times=1.0):
    """Return query, key and value. The keys have ``heads`` heads, the query ``group`` times as many."""
    query = normal(rng, *batch, heads * group, length, dim, dtype=dtype, times=times)
    key = normal(rng, *batch, heads, num_keys, dim, dtype=dtype)
    return query, key, normal(rng, *batch, heads, num_keys, dim if width is None else width, dtype=dtype)


def judge(query, key, value, *, allowed=None, whole_bias=None, **options):
    """Check the state, and the result without lse, against float64.

    allowed and whole_bias are mask and bias as full arrays for the oracle; whole_bias may be left out if bias is an array.
    """
    passed = [x for x in (query, key, value, *options.values()) if isinstance(x, np.ndarray)]
    before = [x.copy() for x in passed]
    shape = (*np.broadcast_shapes(*(x.shape[:-3] for x in (query, key, value))), *query.shape[-3:-1], value.shape[-1])
    for _ in range(2):  # memory that a kernel fails to write may then hold NaN
        np.full(shape, np.nan, dtype=query.dtype)
    state = tiles(query, key, value, **options)
    with mha.use_kernel("attention", "tiles"):
        out = mha.scaled_dot_product_attention(query, key, value, **options)

    for x, y in zip(passed, before, strict=True):
        assert x.tobytes() == y.tobytes(), "an input was written to"
    assert state.out.dtype == out.dtype == query.dtype
    assert state.lse.dtype == (np.float64 if query.dtype == np.float64 else np.float32)
    if whole_bias is None and isinstance(options.get("bias"), np.ndarray):
        whole_bias = options["bias"].astype(np.float64)
    known = {name: options[name] for name in ("scale", "softcap", "sink") if name in options}
    arrays = {name: None if x is None else np.ascontiguousarray(x) for name, x in (("allowed", allowed), ("bias", whole_bias))}
    exact = _exact(
        pickle.dumps(([x.astype(np.float64, order="C") for x in (query, key, value)], query.dtype.name, arrays | known))
    )
    lost = NOTHING * np.abs(value.astype(np.float64)).sum(axis=-2, keepdims=True)
    lost = np.repeat(lost, query.shape[-3] // value.shape[-3], axis=-3)
    for got in (state.out, out):
        assert_within("out", got, exact.out, exact.out_bound + lost)
        assert (got[exact.lse == -np.inf] == 0).all(), "a fully masked query must give exactly 0"
    assert_within("lse", state.lse, exact.lse, exact.lse_bound)


@lru_cache(maxsize=1)
def _exact(call):
    """Return exact attention from pickled arguments. Cached: the same numbers are judged in several memory layouts."""
    arrays, dtype, options = pickle.loads(call)
    return exact_attention(*arrays, dtype=dtype, **options)


def assert_lowest_numbers_are_only_numbers(rng, length):
    """The lowest finite bias and sink: in a base other than e they would become infinite.

    Transformers adds this bias where a mask is False: a row of it has equal weights.
    """
    lowest, (query, key, value) = np.finfo(np.float32).min, inputs(rng, length, 90)
    bias = np.zeros((length, 90), dtype=np.float32)
    bias[-1] = lowest
    out, lse = mha.attention_state(query, key, value, bias=bias)
    np.testing.assert_allclose(out[..., -1, :], value.mean(axis=-2), atol=1e-6)
    assert (lse[..., -1] == lowest).all()
    sink = np.asarray([lowest, 1], dtype=np.float32)
    out, lse = mha.attention_state(query, key, value, sink=sink, mask=mha.prefix(0))
    assert (out == 0).all() and (lse == sink[:, None]).all()


def same_bits(first, *states):
    for other in states:
        for name, a, b in zip(("out", "lse"), first, other, strict=True):
            assert a.tobytes() == b.tobytes(), f"{name} differs"


def calls(rng):
    """Return calls of the kernel that must give the same bits."""
    wide = inputs(rng, 600, 700, batch=(2,), group=2, times=5)
    small = inputs(rng, 20, 30, batch=(4,), heads=12)
    mask = rng.random((600, 700)) < 0.5
    return [
        lambda: tiles(*wide),
        lambda: tiles(*wide, mask=mha.causal(), query_offset=100),
        lambda: tiles(*wide, mask=mha.window(90, 3) & mask, query_offset=0, bias=mha.alibi(4)),
        lambda: tiles(*wide, mask=mha.key_lengths(np.asarray([5, 650])), softcap=3.0),
        lambda: tiles(*small),
        lambda: tiles(*small, mask=mha.causal() | mha.prefix(3), query_offset=0),
    ]
