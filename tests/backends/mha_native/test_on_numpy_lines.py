"""The compiled GELU, its gradient, and norms: their error bounds, odd widths, and what the binding refuses."""

import numpy as np
import pytest
from gelu_ranges import RANGES, assert_close
from native import LEVELS, in_process, needs_native, plugin

import mha_core as mha

pytestmark = needs_native
OPS = {"gelu": 0, "gelu_vjp": 1, "layer_norm": 2, "rms_norm": 3}  # as in problem.h


@pytest.fixture(params=LEVELS)
def native(request):
    plugin()
    from mha_native.level import native as module

    module.use_level(request.param)
    yield module
    module.use_level(None)


def lines(native, op, x, a=None, bias=None, eps=0.0):
    y = np.empty_like(x)
    native.lines(OPS[op], x, a, bias, eps, y)
    return y


@pytest.mark.parametrize("name", RANGES)
@pytest.mark.parametrize("sign", [1, -1])
def test_gelu_is_within_the_bound_of_the_numpy_kernel(native, name, sign):
    x = (sign * RANGES[name]).astype(np.float32)
    assert_close(lines(native, "gelu", x[None])[0], x)


def test_gelu_of_infinity_and_nan(native):
    y = lines(native, "gelu", np.asarray([[np.inf, -np.inf, np.nan, 0.0, -3e38]], np.float32))[0]
    assert y[0] == np.inf and abs(y[1]) < 1e-15 and np.isnan(y[2]) and y[3] == 0 and abs(y[4]) < 1e-15
    d = lines(native, "gelu_vjp", np.asarray([[np.inf, -np.inf, np.nan, 0.0]], np.float32), np.ones((1, 4), np.float32))[0]
    assert d[0] == 1 and abs(d[1]) < 1e-15 and np.isnan(d[2]) and d[3] == 0.5


def test_the_slope_of_gelu(native):
    """Against central differences of the exact function in float64."""
    from gelu_ranges import exact_gelu

    x = np.linspace(-12, 12, 4001).astype(np.float32)
    step = 1e-5
    exact = (exact_gelu(x + np.float64(step)) - exact_gelu(x - np.float64(step))) / (2 * step)
    slope = lines(native, "gelu_vjp", x[None], np.ones((1, x.size), np.float32))[0]
    np.testing.assert_allclose(slope, exact, rtol=0, atol=4e-7)


@pytest.mark.parametrize("width", [1, 3, 15, 16, 17, 64, 100, 1000])
@pytest.mark.parametrize("op", ["layer_norm", "rms_norm"])
def test_rows_of_any_width_are_normed(native, rng, op, width):
    wide = rng.normal(size=(5, width + 3)).astype(np.float32) + 100
    x, (weight, bias) = wide[:, 1 : width + 1], rng.normal(size=(2, width)).astype(np.float32)
    bias = bias if op == "layer_norm" else None
    expected = getattr(mha, op)(*(v.astype(np.float64) for v in (x, weight, bias) if v is not None), eps=1e-3)
    y = np.full((5, width + 2), 7, np.float32)
    native.lines(OPS[op], x, weight, bias, 1e-3, y[:, 1:-1])
    np.testing.assert_allclose(y[:, 1:-1], expected, rtol=0, atol=3e-4)  # a mean of 100 has an error of 2^-18
    assert (y[:, [0, -1]] == 7).all()  # nothing is written beside the rows


def test_a_wrong_array_is_refused(native):
    x, y = np.zeros((2, 16), np.float32), np.zeros((2, 16), np.float32)
    for name, arguments in (
        ("x", (x.astype(np.float64), None, None, 0.0, y)),
        ("x", (x.T, None, None, 0.0, y)),
        ("x", (x[:1], None, None, 0.0, y)),
        ("a", (x, x[0, ::2], None, 0.0, y)),
        ("bias", (x, None, x[:, :8], 0.0, y)),
        ("y", (x, None, None, 0.0, y[0])),
    ):
        rows = "rows of" if name == "y" else "2 rows of 16"
        with pytest.raises(ValueError, match=f"{name}: expected {rows} float32 numbers without gaps"):
            native.lines(0, *arguments)
    with pytest.raises(TypeError, match="x and y are required"):
        native.lines(0, None, None, None, 0.0, y)
    y.flags.writeable = False
    with pytest.raises((ValueError, BufferError), match=r"read-only|not writable"):
        native.lines(0, x, None, None, 0.0, y)


def test_layers_are_computed_by_it_where_it_is_installed():
    code = """
import numpy as np, mha_core as mha
layer = mha.EncoderLayer.init(d_model=32, num_heads=4, d_ff=64, seed=0)
x = np.random.default_rng(0).normal(size=(2, 5, 32)).astype(np.float32)
print(str(mha.explain(layer, x)).splitlines()[0])
with mha.use_kernel("encoder_layer", "chunks"):
    expected = layer(x)
assert abs(layer(x) - expected).max() < 2e-6
y = mha.gelu(x)
with mha.use_kernel("gelu", "native"):
    assert np.array_equal(mha.gelu(x), y)
"""
    assert in_process(code).startswith("encoder_layer: native")
