"""Half precision on NumPy: float16, and bfloat16 from ml_dtypes."""

import sys

import ml_dtypes
import numpy as np
import pytest
from judged_attention import normal
from processes import printed
from tiny_models import write_tiny_model

import mha_core as mha
import mha_text as mt
from mha_core.dispatch.backend import load

HALF = {"float16": (np.float16, 2.0**-11), "bfloat16": (ml_dtypes.bfloat16, 2.0**-8)}
half = pytest.mark.parametrize(("dtype", "unit"), HALF.values(), ids=HALF)


# operations


@half
@pytest.mark.parametrize("bias", [True, False])
def test_linear_is_computed_in_float32_and_rounded_once(rng, dtype, unit, bias):
    x, w, b = (normal(rng, *shape).astype(dtype) for shape in ((3, 7, 300), (300, 20), (20,)))
    expected = x.astype(np.float64) @ w.astype(np.float64) + bias * b.astype(np.float64)
    size = np.abs(x.astype(np.float64)) @ np.abs(w.astype(np.float64)) + 1
    y = mha.linear(x, w, b if bias else None)
    assert mha.explain("linear", x, w, b).kernel == "half"
    assert (np.abs(y.astype(np.float64) - expected) <= 1.01 * unit * np.abs(expected) + 2.0**-22 * size).all()


@half
def test_sums_beyond_the_range_of_float16_are_right(dtype, unit):
    x, w = np.full((1, 300), 300, dtype=dtype), np.full((300, 2), 300, dtype=dtype)
    b = np.full(2, -27_000_000 if dtype != np.float16 else -60_000, dtype=dtype)
    y = mha.linear(x / 16, w / 16, b)
    expected = 300.0 * float(x[0, 0] / 16) * float(w[0, 0] / 16) + float(b[0])
    np.testing.assert_allclose(y.astype(np.float64), expected, rtol=2 * unit)


@half
def test_relu_keeps_nan_without_a_warning(dtype, unit):
    """Warnings are errors here, and NumPy warns of a comparison of NaN in bfloat16."""
    x, d = np.asarray([np.nan, -2, 0, 3], dtype=dtype), np.asarray([5, 6, 7, 8], dtype=dtype)
    out, pullback = mha.vjp(mha.relu, x)
    np.testing.assert_array_equal(out.astype(float), [np.nan, 0, 0, 3])
    np.testing.assert_array_equal(pullback(d)[0].astype(float), [np.nan, 0, 0, 8])


def test_verify_judges_bfloat16(rng):
    x, w = normal(rng, 4, 8).astype(ml_dtypes.bfloat16), normal(rng, 8, 8).astype(ml_dtypes.bfloat16)
    with mha.verify() as done:
        mha.linear(x, w)
        mha.scaled_dot_product_attention(x, x, x)
    assert done.calls == 2 and set(done.checked) == {("linear", "half"), ("attention", "tiles")}


# dtype="bfloat16"


def test_layers_take_the_dtype_by_name(rng, tmp_path):
    x = normal(rng, 2, 6, 16)
    whole = mha.EncoderLayer.init(d_model=16, num_heads=4, d_ff=32, seed=0)
    small = mha.EncoderLayer.init(d_model=16, num_heads=4, d_ff=32, seed=0, dtype="bfloat16")
    small.save(tmp_path / "layer.safetensors")
    for layer in (small, whole.to("numpy", dtype="bfloat16"), mha.EncoderLayer.load(tmp_path / "layer.safetensors")):
        assert {array.dtype for array in layer.arrays().values()} == {np.dtype(ml_dtypes.bfloat16)}
        y = layer(x.astype(ml_dtypes.bfloat16))
        assert y.dtype == ml_dtypes.bfloat16
        np.testing.assert_allclose(y.astype(np.float32), whole(x), rtol=0, atol=0.1)
        np.testing.assert_array_equal(y, small(x.astype(ml_dtypes.bfloat16)))


def test_layers_convert_to_torch_and_back_in_bfloat16():
    layer = mha.FeedForward.init(d_model=4, d_ff=8, seed=0, dtype="bfloat16")
    for there in (layer.to("torch"), layer.to("torch").to("numpy")):
        assert {str(array.dtype).rpartition(".")[2] for array in there.arrays().values()} == {"bfloat16"}
    np.testing.assert_array_equal(layer.to("torch").to("numpy").w_1, layer.w_1)


def test_a_text_encoder_computes_in_bfloat16(tmp_path):
    folder = write_tiny_model(tmp_path / "tiny")
    texts = ["a bird sings", "the tree", "at dawn in the tree", ""]
    expected = mt.TextEncoder.from_pretrained(folder).encode(texts)
    encoder = mt.TextEncoder.from_pretrained(folder, dtype="bfloat16")
    assert encoder.model.words.dtype == ml_dtypes.bfloat16
    vectors = encoder.encode(texts)
    assert vectors.dtype == np.float32
    assert ((vectors * expected).sum(axis=1) > 0.99).all()


# the namespace


def test_the_namespace_differs_from_numpy_in_four_functions_only():
    xp = load("numpy").xp
    replaced = {name for name in dir(np) if getattr(xp, name) is not getattr(np, name)}
    assert replaced == {"isdtype", "finfo", "where", "matmul", "__getattr__"}
    assert xp.__name__ == "numpy" and xp.bfloat16 is ml_dtypes.bfloat16
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = xp.nothing


def test_bfloat16_is_a_floating_dtype():
    xp = load("numpy").xp
    narrow = np.dtype(ml_dtypes.bfloat16)
    for kind in ("real floating", "numeric", ("integral", "real floating"), narrow, (np.float32, narrow)):
        assert xp.isdtype(narrow, kind)
    for kind in ("integral", "bool", "complex floating", np.float32, (np.float16, "integral")):
        assert not xp.isdtype(narrow, kind)
    assert xp.isdtype(np.float32, (narrow, "real floating")) and not xp.isdtype(np.float32, narrow)
    assert xp.isdtype(np.dtype(np.int32), "integral") and not xp.isdtype(np.dtype(np.int32), "real floating")


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32, np.float64])
def test_functions_return_the_dtype_of_the_arrays(dtype):
    xp = load("numpy").xp
    x = np.asarray([[1.5, -2.0], [0.5, 4.0]], dtype=dtype)
    for y, expected in (
        (xp.where(x > 0, x, -np.inf), [[1.5, -np.inf], [0.5, 4.0]]),
        (xp.where(x > 0, 0.25, x), [[0.25, -2.0], [0.25, 0.25]]),
        (xp.where(x > 0, x, 0), [[1.5, 0.0], [0.5, 4.0]]),
        (xp.matmul(x, x), [[1.25, -11.0], [2.75, 15.0]]),
        (xp.matmul(x[:, None], x[..., None]), [[[6.25]], [[16.25]]]),
    ):
        assert y.dtype == dtype
        np.testing.assert_array_equal(y.astype(np.float64), expected)
    assert xp.finfo(x).bits == xp.finfo(x.dtype).bits == 8 * x.itemsize


# without ml_dtypes


def test_bfloat16_without_ml_dtypes_says_how_to_install_it(monkeypatch, tmp_path):
    folder = write_tiny_model(tmp_path / "tiny")
    layer = mha.FeedForward.init(d_model=4, d_ff=8, seed=0)
    layer.to("numpy", dtype="bfloat16").save(tmp_path / "layer.safetensors")
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    for ask in (
        lambda: mha.FeedForward.init(d_model=4, d_ff=8, seed=0, dtype="bfloat16"),
        lambda: layer.to("numpy", dtype="bfloat16"),
        lambda: mha.FeedForward.load(tmp_path / "layer.safetensors"),
        lambda: mt.TextEncoder.from_pretrained(folder, dtype="bfloat16"),
        lambda: mha.sinusoidal_positions(3, 4, dtype="bfloat16"),
    ):
        with pytest.raises(
            ModuleNotFoundError, match="NumPy has no bfloat16 by itself; install it with: pip install ml_dtypes"
        ):
            ask()
    with pytest.raises(TypeError, match="dtype is 'bfloat15'"):
        mha.sinusoidal_positions(3, 4, dtype="bfloat15")


def test_ml_dtypes_is_imported_only_for_bfloat16():
    script = """
import sys
import numpy as np
import mha_core as mha
for dtype in ("float16", "float32", "float64"):
    layer = mha.EncoderLayer.init(d_model=8, num_heads=2, d_ff=8, seed=0, dtype=dtype)
    layer(np.ones((3, 8), dtype=dtype), mask=mha.causal())
    mha.explain(layer, np.ones((3, 8), dtype=dtype))
mha.backends()
assert "ml_dtypes" not in sys.modules
"""
    printed(script, timeout=60)
