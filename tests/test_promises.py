"""The promises of docs/promises.md by number, on every backend; 13 and 14 are in tests/test_promises_at_scale.py."""

import numpy as np
import pytest

import mha_core as mha
from mha_core.conformance import oracle
from mha_core.conformance.cases.bad_inputs import BAD_INPUTS, SHAPES, UNBROADCASTABLE
from mha_core.conformance.cases.problems import random_problem


@pytest.fixture
def xyz(rng):
    """query (2, 4, 5, 6), key and value (2, 2, 7, ...), float64."""
    return tuple(rng.normal(size=shape) for shape in SHAPES.values())


def state_of(backend, query, key, value, **options):
    state = mha.attention_state(*map(backend.from_numpy, (query, key, value)), **options)
    return backend.to_numpy(state.out), backend.to_numpy(state.lse)


def test_1_fully_masked_row_is_zero(backend, xyz):
    allowed = np.ones((5, 7), dtype=bool)
    allowed[3] = False
    mask = backend.from_numpy(allowed)
    out, lse = state_of(backend, *xyz, mask=mask)
    assert (out[..., 3, :] == 0).all() and (lse[..., 3] == -np.inf).all()
    assert np.isfinite(lse[..., :3]).all() and (out[..., :3, :] != 0).all()
    weights = mha.attention_weights(*map(backend.from_numpy, xyz[:2]), mask=mask)
    assert (backend.to_numpy(weights)[..., 3, :] == 0).all()


def test_1_with_a_sink_the_lse_of_a_fully_masked_row_is_the_sink(backend, xyz, rng):
    sink = rng.normal(size=4)
    out, lse = state_of(backend, *xyz, mask=mha.prefix(0), sink=backend.from_numpy(sink))
    assert (out == 0).all()
    assert (lse == sink[:, None]).all()


def test_1_a_value_of_nan_that_others_see_stays_out_of_a_fully_masked_row(backend, xyz):
    query, key, value = xyz
    value[..., 0, :] = np.nan
    allowed = np.ones((5, 7), dtype=bool)
    allowed[3] = False
    out, _ = state_of(backend, query, key, value, mask=backend.from_numpy(allowed))
    assert (out[..., 3, :] == 0).all() and np.isnan(out[..., 2, :]).all()


def test_2_lse_is_a_natural_logarithm_in_float32_at_least(backend, xyz):
    for dtype, expected in [(np.float16, np.float32), (np.float32, np.float32), (np.float64, np.float64)]:
        if dtype is np.float16 and backend.name == "array_api_strict":
            continue  # the strict namespace does not have float16
        arrays = [x.astype(dtype) for x in xyz]
        out, lse = state_of(backend, *arrays)
        assert out.dtype == dtype and lse.dtype == expected
        np.testing.assert_allclose(lse, oracle.attention(*arrays)[1], atol=1e-14 if dtype is np.float64 else 2e-6)


def test_3_a_finite_bias_is_only_a_bias(backend, xyz):
    """A row of the lowest float32 is a row like any other: the common shift cancels."""
    query, key, value = (x.astype(np.float32) for x in xyz)
    lowest = np.full((5, 7), -1e38, dtype=np.float32)
    out, lse = state_of(backend, query * 0, key, value, bias=backend.from_numpy(lowest))
    groups = np.repeat(value.mean(axis=-2, keepdims=True), 2, axis=1)
    np.testing.assert_allclose(out, np.broadcast_to(groups, out.shape), atol=1e-6)
    assert np.isfinite(lse).all()


def test_4_true_means_attend_and_an_integer_mask_is_refused(backend, xyz):
    allowed = np.zeros((5, 7), dtype=bool)
    allowed[:, 2] = True
    out, _ = state_of(backend, *xyz, mask=backend.from_numpy(allowed))
    expected = np.repeat(xyz[2][:, :, 2:3], 2, axis=1)
    np.testing.assert_allclose(out, np.broadcast_to(expected, out.shape), rtol=1e-12)
    with pytest.raises(TypeError, match=r"mask has dtype .*int64; expected a boolean array.*write mask != 0"):
        state_of(backend, *xyz, mask=backend.from_numpy(allowed.astype(np.int64)))


@pytest.mark.parametrize("mask", [mha.causal(), mha.window(1, 1), mha.chunks(2), ~mha.causal() | mha.prefix(1)])
def test_5_alignment_is_never_guessed(backend, xyz, mask):
    with pytest.raises(
        ValueError, match=r"5 queries and 7 keys.*query_offset=0 \(at the start\) or query_offset=2 \(at the end\)"
    ):
        state_of(backend, *xyz, mask=mask)
    state_of(backend, *xyz, mask=mask, query_offset=2)
    state_of(backend, *xyz, mask=mha.prefix(3), bias=None)
    with pytest.raises(ValueError, match="bias depends on the position of the query"):
        state_of(backend, *xyz, bias=mha.alibi(4))


def test_6_options_compose(backend, rng):
    """All options at once; tests/test_attention.py tries random combinations."""
    query, key, value = rng.normal(size=(1, 2, 4, 4)), rng.normal(size=(1, 1, 6, 4)), rng.normal(size=(1, 1, 6, 4))
    q, k = np.arange(4)[:, None] + 2, np.arange(6)[None, :]
    bias, sink = rng.normal(size=(2, 4, 6)), rng.normal(size=2)
    out, lse = state_of(
        backend, query, key, value, mask=mha.causal() & ~mha.prefix(1), bias=backend.from_numpy(bias), scale=0.7, softcap=1.5,
        sink=backend.from_numpy(sink), query_offset=2,
    )  # fmt: skip
    expected, expected_lse, _ = oracle.attention(
        query, key, value, allowed=(k <= q) & (k >= 1), bias=bias, scale=0.7, softcap=1.5, sink=sink
    )
    np.testing.assert_allclose(out, expected, atol=1e-14)
    np.testing.assert_allclose(lse, expected_lse, atol=1e-14)


def test_7_poison_changes_no_bit(backend, rng):
    for _ in range(150):
        p = random_problem(rng)
        clean = state_of(backend, p.query, p.key, p.value, **p.options(backend.from_numpy))
        poisoned = state_of(backend, p.query, *p.poisoned(), **p.options(backend.from_numpy))
        for a, b in zip(clean, poisoned, strict=True):
            assert a.tobytes() == b.tobytes()


def test_8_empty_axes_work(backend, rng):
    out, lse = state_of(backend, rng.normal(size=(2, 3, 4)), np.zeros((2, 0, 4)), np.zeros((2, 0, 5)))
    assert out.shape == (2, 3, 5) and (out == 0).all() and (lse == -np.inf).all()
    out, lse = state_of(
        backend, np.zeros((2, 0, 4)), np.zeros((2, 3, 4)), np.zeros((2, 3, 5)), mask=mha.causal(), query_offset=0
    )
    assert out.shape == (2, 0, 5) and lse.shape == (2, 0)
    out, lse = state_of(backend, np.zeros((0, 2, 3, 4)), np.zeros((0, 2, 3, 4)), np.zeros((0, 2, 3, 4)), mask=mha.causal())
    assert out.shape == (0, 2, 3, 4) and lse.shape == (0, 2, 3)
    none = backend.from_numpy(np.zeros(0, dtype=np.int64))
    out, lse = state_of(backend, np.ones((0, 2, 3, 4)), np.ones((2, 3, 4)), np.ones((2, 3, 4)), mask=mha.key_lengths(none))
    assert out.shape == (0, 2, 3, 4)
    out, lse = state_of(backend, np.ones((0, 3, 4)), np.ones((0, 3, 4)), np.ones((0, 3, 4)), mask=mha.causal())
    assert out.shape == (0, 3, 4) and lse.shape == (0, 3)
    value = rng.normal(size=(1, 3, 2))
    out, lse = state_of(backend, np.zeros((1, 2, 0)), np.zeros((1, 3, 0)), value)
    np.testing.assert_allclose(out, np.broadcast_to(value.mean(axis=1, keepdims=True), out.shape))
    np.testing.assert_allclose(lse, np.log(3))


def test_9_float16_scores_do_not_overflow(backend):
    if backend.name == "array_api_strict":
        return  # the strict namespace does not have float16
    query, key = np.full((1, 2, 64), 300, dtype=np.float16), np.full((1, 3, 64), 300, dtype=np.float16)
    value = np.asarray([[[1.0], [2.0], [3.0]]], dtype=np.float16)
    out, lse = state_of(backend, query, key, value)
    assert out.dtype == np.float16
    np.testing.assert_allclose(out, 2.0)
    np.testing.assert_allclose(lse, 300 * 300 * 64 / 8 + np.log(3), rtol=1e-6)  # 16 unit roundoffs, of 64 products


def test_9_bfloat16_is_computed_in_float32(rng):
    import torch

    query, key, value = (torch.asarray(rng.normal(size=(1, 4, 64)) * 3).to(torch.bfloat16) for _ in range(3))
    out, lse, weights = oracle.attention(*(x.double().numpy() for x in (query, key, value)))
    with mha.use_kernel("attention", "algebra"):
        state = mha.attention_state(query, key, value)
    np.testing.assert_allclose(state.out.double().numpy(), out, rtol=2**-8, atol=1e-6)  # rounded once, at the end
    fused = mha.scaled_dot_product_attention(query, key, value)  # torch's kernel rounds the weights too
    moved = 2**-8 * (np.abs(out) + weights @ np.abs(value.double().numpy())) + 1e-6
    assert (np.abs(fused.double().numpy() - out) <= moved).all()
    for given in (state, mha.attention_state(query, key, value)):
        assert given.out.dtype == torch.bfloat16 and given.lse.dtype == torch.float32
        np.testing.assert_allclose(given.lse.numpy(), lse, rtol=1e-6)


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


def test_10_mixed_libraries_are_type_errors(xyz):
    import array_api_strict

    query, key, value = xyz
    with pytest.raises(
        mha.BackendMismatch,
        match=r"key is a array_api_strict.*, but query is a numpy\.ndarray: write key = numpy\.from_dlpack\(key\)",
    ):
        mha.scaled_dot_product_attention(query, array_api_strict.asarray(key), value)
    with pytest.raises(mha.BackendMismatch, match="mask is a array_api_strict"):
        mha.scaled_dot_product_attention(query, key, value, mask=array_api_strict.ones((5, 7), dtype=array_api_strict.bool))


def test_10_mixed_devices_are_type_errors():
    import torch

    here, elsewhere = torch.ones(2, 3), torch.ones(2, 3, device="meta")
    with pytest.raises(mha.BackendMismatch, match="key is on device meta, but query is on cpu: move it there first"):
        mha.scaled_dot_product_attention(here, elsewhere, here)
    with pytest.raises(mha.BackendMismatch, match="mask is on device meta, but query is on cpu"):
        mha.scaled_dot_product_attention(here, here, here, mask=torch.ones(2, 2, dtype=torch.bool, device="meta"))


def test_11_masks_and_biases_broadcast(backend, xyz, rng):
    for shape in [(), (7,), (5, 1), (1, 7), (4, 1, 7), (2, 1, 5, 7), (2, 4, 1, 1), (1, 1, 1, 1)]:
        allowed, bias = rng.random(shape) < 0.7, rng.normal(size=shape)
        out, _ = state_of(
            backend, *xyz, mask=backend.from_numpy(np.asarray(allowed)), bias=backend.from_numpy(np.asarray(bias))
        )
        expected, _, _ = oracle.attention(*xyz, allowed=allowed, bias=bias)
        np.testing.assert_allclose(out, expected, atol=1e-14)
    for shape in UNBROADCASTABLE:
        with pytest.raises(
            ValueError, match=r"mask has shape .*; expected a shape that broadcasts to \(\.\.\., H, L, S\) = \(2, 4, 5, 7\)"
        ):
            state_of(backend, *xyz, mask=backend.from_numpy(np.ones(shape, dtype=bool)))
        with pytest.raises(ValueError, match="bias has shape"):
            state_of(backend, *xyz, bias=backend.from_numpy(np.ones(shape)))


VIEWS = {
    "numpy": {
        "permuted": lambda x: np.moveaxis(np.moveaxis(x, -2, 0).copy(), 0, -2),
        "stepped": lambda x: np.repeat(x, 2, axis=-1)[..., ::2],
        "reversed": lambda x: x[..., ::-1, ::-1].copy()[..., ::-1, ::-1],
        "read-only": lambda x: np.frombuffer(x.tobytes(), dtype=x.dtype).reshape(x.shape),
    },
    "torch": {
        "permuted": lambda x: x.permute(2, 0, 1, 3).contiguous().permute(1, 2, 0, 3),
        "stepped": lambda x: x.repeat_interleave(2, dim=-1)[..., ::2],
        "with a gradient": lambda x: x.clone().requires_grad_(),
    },
    "array_api_strict": {"reversed twice": lambda x: x[..., ::-1][..., ::-1]},
    "frozen_v1": {"reversed": lambda x: type(x)(x.data[..., ::-1].copy()[..., ::-1])},
}


def test_12_strides_do_not_matter_and_inputs_are_never_written(backend, xyz):
    plain = [backend.from_numpy(x) for x in xyz]
    expected = backend.to_numpy(mha.scaled_dot_product_attention(*plain, mask=mha.prefix(6)))
    for view in VIEWS.get(backend.name, {}).values():
        arrays = [view(x) for x in plain]
        got = backend.to_numpy(mha.scaled_dot_product_attention(*arrays, mask=mha.prefix(6)))
        np.testing.assert_allclose(got, expected, rtol=1e-13)
        for x, before in zip(arrays, xyz, strict=True):
            assert (backend.to_numpy(x) == before).all()
    one = backend.xp.broadcast_to(plain[1][:1, ...], xyz[1].shape)
    got = backend.to_numpy(mha.scaled_dot_product_attention(plain[0], one, plain[2]))
    np.testing.assert_allclose(got, oracle.attention(xyz[0], xyz[1][:1], xyz[2])[0], atol=1e-14)


@pytest.mark.parametrize("bad", BAD_INPUTS, ids=[bad.message[:40] for bad in BAD_INPUTS])
def test_15_bad_input_names_the_argument(backend, xyz, bad):
    arguments = dict(zip(SHAPES, map(backend.from_numpy, xyz), strict=True))
    with pytest.raises(bad.error) as raised:
        mha.attention_state(**(arguments | {name: make(backend.from_numpy) for name, make in bad.change.items()}))
    assert bad.message in str(raised.value)
