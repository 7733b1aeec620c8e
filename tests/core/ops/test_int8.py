"""Int8 weights in operations: what takes them, which kernels are chosen, and what is refused."""

import re
from contextlib import nullcontext
from dataclasses import replace

import array_api_strict as strict
import numpy as np
import pytest
import torch
from refusals import refusals
from sample_kernels import a_kernel

import mha_core as mha
from mha_core.dispatch.contract import FEATURES

X, W = np.linspace(-1, 1, 24, dtype=np.float32).reshape(2, 3, 4), np.linspace(-1, 2, 20, dtype=np.float32).reshape(4, 5)
INT8 = mha.quantize_weight(W)
VALUES, SCALE = INT8.values, INT8.scale


def same(a, b):
    np.testing.assert_array_equal(np.asarray(a), np.asarray(b))


test_bad_arguments_are_refused_by_name = refusals(
    {
        TypeError: {
            "w has dtype int8; expected a floating dtype": lambda: mha.quantize_weight(VALUES),
            "w.scale has dtype float64, but x has float32": lambda: mha.linear(X, mha.Int8Weight(VALUES, SCALE.astype(float))),
            "w.values has dtype int64; expected int8: write quantize_weight(w)": lambda: mha.linear(
                X, mha.Int8Weight(VALUES.astype(int), SCALE)
            ),
            "w.values is a array_api_strict": lambda: mha.linear(X, mha.Int8Weight(strict.asarray(VALUES), SCALE)),
            "x is a numpy.ndarray, but w.scale is a torch.Tensor": lambda: mha.linear(
                X, mha.Int8Weight(torch.from_numpy(VALUES), torch.from_numpy(SCALE)), torch.zeros(5)
            ),
            "w_o.values has dtype int64; expected int8": lambda: mha.multi_head_attention(
                X, *[W[:, :4]] * 3, mha.Int8Weight(VALUES[:, :4].astype(int), SCALE[:4]), num_heads=2
            ),
        },
        ValueError: {
            "w has shape (5, 4); expected (n, m) with n = 4": lambda: mha.linear(X, mha.quantize_weight(W.T)),
            "b has shape (4,); expected (m,) = (5,)": lambda: mha.linear(X, INT8, SCALE[:4]),
            "scale has shape (4,); expected (m,) = (5,)": lambda: mha.linear(X, mha.Int8Weight(VALUES, SCALE[:4])),
            "values has shape (20,); expected (n, m) with n at least 1": lambda: mha.linear(
                X, mha.Int8Weight(VALUES.reshape(-1), SCALE)
            ),
            "w has shape (20,); expected (n, m)": lambda: mha.quantize_weight(W.reshape(-1)),
            "w has shape (0, 5); expected (n, m), both at least 1": lambda: mha.quantize_weight(W[:0]),
            "x has shape (); expected at least 1 axes": lambda: mha.linear(np.zeros((), dtype=np.float32), INT8),
        },
    }
)


NO_GRADIENTS = "^int8 weights are for inference, and have no gradients: train the layer that was quantized$"
LAYER = mha.EncoderLayer.init(d_model=4, num_heads=2, d_ff=8, seed=0).quantized()


def total(x):
    return x.__array_namespace__().sum(x)


@pytest.mark.parametrize(
    "call",
    [
        lambda: mha.vjp(mha.linear, X, INT8),
        lambda: mha.vjp(lambda x: mha.linear(x, INT8), X),
        lambda: mha.vjp(LAYER, X),
        lambda: mha.vjp(lambda x: LAYER(x), X),
        lambda: mha.vjp(lambda x: mha.multi_head_attention(x, *[LAYER.attention.w_q] * 4, num_heads=2), X),
        lambda: mha.vjp(lambda w: mha.quantize_weight(w).scale, W),
        lambda: mha.value_and_grad(lambda x: total(LAYER(x)))(X),
        lambda: mha.value_and_grad(lambda layer: total(layer(X)))(LAYER),
        lambda: LAYER.to("torch")(torch.from_numpy(X).requires_grad_()),
        lambda: mha.value_and_grad(lambda x: LAYER.to("torch")(x).sum())(torch.from_numpy(X)),
    ],
)
def test_gradients_are_refused(call):
    with pytest.raises(TypeError, match=NO_GRADIENTS):
        call()


def test_attention_to_rows_in_int8_is_that_of_the_numbers_they_stand_for(backend, rng):
    """The algebra reads blocks of them; elsewhere a kernel, or a kernel of floating numbers that gets them widened."""
    q, k, v = (backend.from_numpy(rng.normal(size=shape)) for shape in ((2, 4, 3, 8), (2, 2, 5, 8), (2, 2, 5, 6)))
    key, value = map(mha.quantize_rows, (k, v))
    wide = [rows.widened(backend.xp, backend.xp.float64) for rows in (key, value)]
    for rows, x in ((key, k), (value, v)):
        error = np.abs(backend.to_numpy(rows.widened(backend.xp, backend.xp.float64) - x))
        assert (error <= backend.to_numpy(rows.scale) * (0.5 + 1e-12)).all() and rows.shape == x.shape
    options = {"mask": mha.causal(), "query_offset": 2}
    for name in ("algebra", None):
        with mha.use_kernel("attention", name) if name else nullcontext():
            results = [mha.attention_state(q, *each, **options) for each in ((key, value), wide)]
        for x, y in zip(*results, strict=True):
            np.testing.assert_allclose(backend.to_numpy(x), backend.to_numpy(y), rtol=0, atol=1e-13)


EYE = np.eye(4)
ROWS = mha.quantize_rows(EYE)


def attend(key, value=ROWS):
    return mha.scaled_dot_product_attention(EYE, key, value)


test_rows_that_do_not_fit_are_refused = refusals(
    {
        TypeError: {
            "key is Int8Rows, value is ndarray: expected arrays, or Int8Rows for both, as quantize_rows": lambda: attend(
                ROWS, EYE
            ),
            "key.values has dtype float64; expected int8: write key=mha.quantize_rows(key)": lambda: attend(
                mha.Int8Rows(EYE, EYE[:, :1])
            ),
            "key.scale has dtype float32; expected float64: quantize key in the query's dtype": lambda: attend(
                mha.Int8Rows(ROWS.values, ROWS.scale.astype("f4"))
            ),
        },
        ValueError: {
            "value.scale has shape (4, 4); expected (4, 1), a number for each row": lambda: attend(
                ROWS, mha.Int8Rows(ROWS.values, EYE)
            ),
            "x has shape (4,); expected (..., n, D) with D at least 1": lambda: mha.quantize_rows(EYE[0]),
            "x has shape (4, 0); expected (..., n, D) with D at least 1": lambda: mha.quantize_rows(EYE[:, :0]),
        },
    }
)


def test_rows_in_int8_have_no_gradients():
    message = re.escape("int8 keys and values are for inference, and have no gradients: give arrays of floating numbers")
    with pytest.raises(TypeError, match=message):
        mha.value_and_grad(lambda x: mha.scaled_dot_product_attention(x, ROWS, ROWS).sum())(EYE)
    with pytest.raises(TypeError, match=message):
        mha.value_and_grad(lambda x: mha.quantize_rows(x).scale.sum())(EYE)
    query = torch.eye(4, requires_grad=True)
    rows = mha.quantize_rows(torch.eye(4))
    with pytest.raises(TypeError, match=message):
        mha.scaled_dot_product_attention(query, rows, rows)


def test_inference_beside_gradients_is_not_refused():
    x = torch.from_numpy(X).requires_grad_()
    with torch.no_grad():
        same(LAYER.to("torch")(x), LAYER.to("torch")(torch.from_numpy(X)))


def test_a_key_tells_weights_of_int8_and_others_apart():
    for w in (W, INT8, W, INT8):
        assert mha.linear(X, w).shape == (2, 3, 5)
    scaled = mha.Int8Weight(VALUES, SCALE * 2)
    same(mha.linear(X, scaled), 2 * mha.linear(X, INT8))


def test_composite_operations_take_their_weights_through_linear(backend, rng):
    x, *weights = (
        backend.from_numpy(rng.normal(size=size).astype(np.float32)) for size in ((5, 8), *[(8, 8)] * 4, (8, 6), (6, 8))
    )
    w_q, w_k, w_v, w_o, w_1, w_2 = map(mha.quantize_weight, weights)
    got = mha.multi_head_attention(x, w_q, w_k, w_v, w_o, num_heads=1)
    attended = mha.scaled_dot_product_attention(*(mha.linear(x, w) for w in (w_q, w_k, w_v)))
    np.testing.assert_allclose(*map(backend.to_numpy, (got, mha.linear(attended, w_o))), rtol=0.02, atol=0.1)
    hidden = mha.relu(mha.linear(x, w_1)) * mha.linear(x, w_1)
    same(backend.to_numpy(mha.feed_forward(x, w_1, None, w_2, None, w_g=w_1)), backend.to_numpy(mha.linear(hidden, w_2)))


@pytest.mark.parametrize("op", ["feed_forward", "multi_head_attention", "encoder_layer"])
def test_a_kernel_of_a_composite_that_does_not_declare_int8_is_not_chosen(installed, op):
    calls = {
        "feed_forward": lambda layer: mha.explain(layer.feed_forward, X),
        "multi_head_attention": lambda layer: mha.explain(layer.attention, X),
        "encoder_layer": lambda layer: mha.explain(layer, X),
    }
    installed(a_kernel(op, handles=FEATURES[op] - {"int8"}, load="nowhere:absent"))
    with pytest.warns(mha.KernelWarning, match="cannot be loaded"):
        calls[op](mha.EncoderLayer.init(d_model=4, num_heads=2, d_ff=8, seed=0))
    for layer in (LAYER, replace(LAYER, norm_first=True)):
        assert ("sample", "does not handle int8") in calls[op](layer).rejected


def unrounded(x, w, b):
    return mha.linear(x, w.values * w.scale, b)


def test_verify_finds_a_kernel_that_does_not_round_its_input(installed):
    installed(a_kernel("linear_int8", name="unrounded", load=f"{__name__}:unrounded"))
    with mha.verify(), pytest.raises(mha.KernelDivergence, match="kernel 'unrounded' for linear_int8 on numpy"):
        mha.linear(X, INT8)


def test_a_right_kernel_passes_verify_although_its_last_bits_differ(installed):
    installed(a_kernel("linear_int8", name="other", load=f"{__name__}:other_order"))
    with mha.verify() as done:
        mha.linear(X, INT8, SCALE)
    assert done.checked == {("linear_int8", "other"): 1}


def other_order(x, w, b):
    top = np.abs(x).max(axis=-1, keepdims=True)
    integers = np.rint(x * (np.float32(127) / top)).astype(np.float64)
    return ((integers @ w.values) * (w.scale.astype(np.float64) * (top / np.float32(127))) + b).astype(np.float32)


def test_a_layer_of_int8_weights_moves_between_backends(backend):
    moved = LAYER.to(backend.name)
    assert moved.attention.w_q.values.dtype == backend.xp.int8 and moved.attention.w_q.scale.dtype == backend.xp.float32
    x = backend.from_numpy(X)
    np.testing.assert_allclose(backend.to_numpy(moved(x)), LAYER(X), rtol=0, atol=0.05)
    if hasattr(backend.xp, "float64"):
        wide = moved.to(backend.name, dtype="float64")
        assert wide.attention.w_q.values.dtype == backend.xp.int8 and wide.attention.w_q.scale.dtype == backend.xp.float64
    same(moved.to("numpy").attention.w_q.values, LAYER.attention.w_q.values)
