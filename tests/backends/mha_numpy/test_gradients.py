"""NumPy's kernel for the gradients of attention: the algebra's numbers, across every boundary of its tiles."""

import ml_dtypes
import numpy as np
import pytest
from judged_attention import inputs, normal

import mha_core as mha
from mha_core.ops.attend_vjp import attention_gradients
from mha_numpy.attention import gradients

EVERY = frozenset({"query", "key", "value"})


def gradients_by(kernel, arrays, d, wanted, **options):
    query, key, value = arrays
    sink = options.pop("sink", None)
    state = mha.attention_state(query, key, value, sink=sink, **options)
    with mha.use_kernel("attention_vjp", kernel):
        return attention_gradients(query, key, value, sink, *state, *d, wanted=wanted, **options)


def drawn(rng, arrays):
    """Return gradients of out and lse."""
    query, _, value = arrays
    shape = (*np.broadcast_shapes(*(x.shape[:-3] for x in arrays)), *query.shape[-3:-1], value.shape[-1])
    return normal(rng, *shape, dtype=query.dtype), normal(rng, *shape[:-1], dtype=np.float64)


def wanted_of(options):
    bias = options.get("bias")
    with_bias = bias is not None and not isinstance(bias, type(mha.alibi(1)))
    return EVERY | ({"bias"} if with_bias else set()) | ({"sink"} if "sink" in options else set())


def judge(rng, *arrays, tolerance=1e-11, **options):
    """Compare all gradients with those of the algebra, relative to the greatest of each array."""
    d, wanted = drawn(rng, arrays), wanted_of(options)
    before = [x.tobytes() for x in (*arrays, *d)]
    actual = gradients_by("tiles", arrays, d, wanted, **options)
    expected = gradients_by("algebra", arrays, d, wanted, **options)
    assert before == [x.tobytes() for x in (*arrays, *d)], "an argument was written to"
    for name, x, exact in zip(actual._fields, actual, expected, strict=True):
        assert (x is None) == (exact is None) == (name not in wanted)
        if x is not None:
            assert x.shape == exact.shape and x.dtype == exact.dtype
            error = np.abs(x - exact).max() / max(1e-3, np.abs(exact).max())
            assert error <= tolerance, f"{name} differs by {error}"


@pytest.fixture
def small_tiles(monkeypatch):
    """Make tiles so small that short problems have many, and tasks of spans of keys."""
    limits = {
        "_ROWS": 24,
        "_COLS": 16,
        "_BAND_COLS": 8,
        "_PAIRS": 24 * 16,
        "_SPAN": 20,
        "_SERIAL": 1000,
        "_MASK_PAIRS": 1 << 12,
    }
    for name, number in limits.items():
        monkeypatch.setattr(gradients, name, number)


SHAPES = [(5, 7, 1, 1), (50, 70, 1, 2), (70, 50, 3, 1), (1, 60, 2, 1), (60, 1, 1, 2), (33, 33, 2, 2)]


@pytest.mark.parametrize(("length", "num_keys", "group", "heads"), SHAPES)
@pytest.mark.parametrize("batch", [(), (3,), (2, 2)], ids=str)
def test_every_option(rng, small_tiles, length, num_keys, group, heads, batch):
    x = inputs(rng, length, num_keys, batch=batch, heads=heads, group=group, dim=6, width=5, dtype=np.float64)
    wide = (30 * x[0], *x[1:])
    count, pairs = heads * group, (length, num_keys)
    table = mha.relative_bias(normal(rng, 16, count, dtype=np.float64), bidirectional=True, max_distance=30)
    sink = normal(rng, count, dtype=np.float64)
    for arrays in (x, wide):
        judge(rng, *arrays, tolerance=1e-10)
        judge(rng, *arrays, tolerance=1e-10, mask=mha.causal(), query_offset=num_keys - length)
        judge(rng, *arrays, tolerance=1e-10, mask=mha.window(9, 2), query_offset=3, sink=sink, softcap=2.0)
    judge(rng, *x, bias=mha.alibi(count), query_offset=2, mask=mha.causal())
    judge(rng, *x, bias=table, query_offset=num_keys - length)
    judge(rng, *x, bias=table, query_offset=0, mask=mha.window(20, 5), softcap=3.0)
    judge(rng, *x, mask=rng.random((count, *pairs)) < 0.5, sink=sink)
    judge(rng, *x, mask=mha.causal() | mha.prefix(7), query_offset=0, bias=normal(rng, count, *pairs, dtype=np.float64))


@pytest.mark.parametrize("shape", ["hls", "ls", "s", "h1s", "hl1", "h11", "", "bhls", "b1ls", "bh1s"])
@pytest.mark.parametrize("mask", [None, mha.causal(), mha.causal() | mha.prefix(5)], ids=["none", "causal", "evaluated"])
def test_an_array_bias_of_any_shape(rng, small_tiles, shape, mask):
    arrays = inputs(rng, 40, 50, batch=(3,), heads=2, group=2, dim=6, dtype=np.float64)
    sizes = {"b": 3, "h": 4, "l": 40, "s": 50, "1": 1}
    options = {} if mask is None else {"mask": mask, "query_offset": 0}
    judge(rng, *arrays, bias=np.asarray(normal(rng, 1, *(sizes[c] for c in shape), dtype=np.float64)[0]), **options)


def test_lengths_and_packed_sequences(rng, small_tiles):
    arrays = inputs(rng, 40, 40, batch=(3,), heads=2, dim=6, dtype=np.float64)
    table = mha.relative_bias(normal(rng, 16, 2, dtype=np.float64), bidirectional=True, max_distance=30)
    lengths = mha.key_lengths(np.asarray([0, 17, 40]))
    judge(rng, *arrays, mask=lengths)
    judge(rng, *arrays, mask=lengths & mha.causal(), query_offset=0, bias=normal(rng, 2, 40, 40, dtype=np.float64))
    judge(rng, *arrays, mask=lengths, query_offset=2, bias=table)
    for sequences in ((40,), (1, 0, 9, 9, 9, 12), (20, 20)):
        judge(rng, *arrays, mask=mha.packed(sequences))
        judge(rng, *arrays, mask=mha.packed(sequences) & mha.causal(), bias=table, softcap=2.0)


def test_batch_axes_that_broadcast(rng, small_tiles):
    q, k, v = inputs(rng, 30, 40, batch=(2, 3), heads=2, dim=6, dtype=np.float64)
    judge(rng, q, k[:1], v[:, :1])
    judge(rng, q[:1], k, v[0])
    judge(rng, q[0, 0], k, v, mask=mha.causal(), query_offset=0)


def test_tiles_of_full_size(rng):
    """Two of queries, of keys, and of heads; several spans of keys."""
    judge(rng, *inputs(rng, 600, 1100, dim=8, dtype=np.float64))
    judge(rng, *inputs(rng, 600, 1100, dim=8, dtype=np.float64), mask=mha.causal(), query_offset=500)
    judge(rng, *inputs(rng, 40, 30, batch=(40,), heads=8, dim=8, dtype=np.float64))


@pytest.mark.parametrize("wanted", [{"query"}, {"key"}, {"value"}, {"sink"}, {"bias"}], ids=str)
def test_one_gradient_alone_has_the_same_bits(rng, small_tiles, wanted):
    arrays = inputs(rng, 40, 50, dim=6)
    d = normal(rng, 1, 2, 40, 6), None
    options = {"sink": normal(rng, 2), "bias": normal(rng, 2, 40, 50)}
    every = gradients_by("tiles", arrays, d, EVERY | {"bias", "sink"}, **options)
    alone = gradients_by("tiles", arrays, d, wanted, **options)
    for name, x in alone._asdict().items():
        assert x is None if name not in wanted else x.tobytes() == getattr(every, name).tobytes()


@pytest.mark.parametrize("mask", [None, mha.causal()], ids=["none", "causal"])
def test_any_number_of_threads_gives_the_same_bits(rng, small_tiles, mask, set_num_threads):
    arrays = inputs(rng, 70, 90, batch=(2,), dim=8)
    d = normal(rng, 2, 2, 70, 8), normal(rng, 2, 2, 70)
    options = {} if mask is None else {"mask": mask, "query_offset": 20}
    results = set()
    for count in (1, 2, 3, 8):
        set_num_threads(count)
        result = gradients_by("tiles", arrays, d, EVERY | {"bias"}, bias=np.zeros((70, 90), np.float32), **options)
        results.add(b"".join(x.tobytes() for x in result if x is not None))
    assert len(results) == 1


@pytest.mark.parametrize("scale", [1.0, 40.0], ids=["plain", "wide"])
@pytest.mark.parametrize("causal", [False, True], ids=["all", "causal"])
def test_float32_is_precise(rng, scale, causal):
    query, key, value = inputs(rng, 150, 150, batch=(2,), dim=16)
    arrays, d = (query * np.float32(scale), key, value), normal(rng, 2, 2, 150, 16)
    options = {"mask": mha.causal(), "query_offset": 0} if causal else {}
    actual = gradients_by("tiles", arrays, (d, None), EVERY, **options)
    wide = [x.astype(np.float64) for x in (*arrays, d)]
    for x, exact in zip(actual[:3], gradients_by("algebra", wide[:3], (wide[3], None), EVERY, **options)[:3], strict=True):
        assert np.abs(x - exact).max() <= 3e-6 * scale * np.abs(exact).max()


def test_pairs_that_do_not_attend_add_exactly_0_whatever_they_hold(rng, small_tiles):
    """A value that some queries do not see; d_out of a query that sees nothing, also beside a sink; another sequence."""
    q, k, v = inputs(rng, 40, 40, dim=6, dtype=np.float64)
    d = normal(rng, 1, 2, 40, 6, dtype=np.float64), None
    mask = np.tril(np.ones((40, 40), dtype=bool))
    mask[7] = False
    poisoned = d[0].copy()
    poisoned[:, :, 7] = np.nan
    for options in ({}, {"sink": np.zeros(2)}):
        wanted = wanted_of(options)
        clean, actual = (gradients_by("tiles", (q, k, v), (x, None), wanted, mask=mask, **options) for x in (d[0], poisoned))
        for name in wanted:
            np.testing.assert_array_equal(getattr(actual, name), getattr(clean, name))
        assert not actual.query[:, :, 7].any()
    infinite, state = v.copy(), mha.attention_state(q, k, v, mask=mha.causal(), query_offset=0)
    infinite[:, :, 30] = state.out[:, :, 30:] = np.nan
    actual = attention_gradients(q, k, infinite, None, *state, *d, wanted=EVERY, mask=mha.causal(), query_offset=0)
    clean = gradients_by("tiles", (q, k, v), d, EVERY, mask=mha.causal(), query_offset=0)
    np.testing.assert_array_equal(actual.query[:, :, :30], clean.query[:, :, :30])
    assert np.isnan(actual.query[:, :, 30:]).all()
    sequences = mha.packed((10, 13, 17))
    clean, actual = (gradients_by("tiles", (q, k, x), d, EVERY, mask=sequences) for x in (v, infinite))
    assert np.isnan(actual.query[:, :, 23:]).all()
    for x, y in zip(actual[:3], clean[:3], strict=True):
        np.testing.assert_allclose(x[:, :, :23], y[:, :, :23], rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_is_rounded_once(rng, dtype):
    if dtype == "bfloat16":
        dtype = ml_dtypes.bfloat16
    arrays = tuple(x.astype(dtype) for x in inputs(rng, 50, 60, dim=8))
    d = normal(rng, 1, 2, 50, 8).astype(dtype)
    actual = gradients_by("tiles", arrays, (d, None), EVERY)
    exact = gradients_by("algebra", tuple(x.astype(np.float64) for x in arrays), (d.astype(np.float64), None), EVERY)
    for x, y in zip(actual[:3], exact[:3], strict=True):
        assert x.dtype == dtype
        assert np.abs(x.astype(np.float64) - y).max() <= 4 * float(2.0 ** (-11 if dtype == "float16" else -8)) * np.abs(y).max()


def test_a_gradient_of_a_relative_bias_for_several_offsets_is_refused(rng):
    arrays = inputs(rng, 5, 6, batch=(2,), dim=4)
    table = mha.relative_bias(normal(rng, 8, 2), bidirectional=True, max_distance=9)
    d = normal(rng, 2, 2, 5, 4), None
    options = {"bias": table, "query_offset": np.asarray([0, 1])}
    with pytest.raises(mha.KernelUnsupported, match="query_offset for each batch element"):
        gradients_by("tiles", arrays, d, frozenset({"bias"}), **options)
    assert gradients_by("tiles", arrays, d, EVERY, **options).query is not None
