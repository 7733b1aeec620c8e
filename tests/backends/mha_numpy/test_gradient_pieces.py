"""NumPy's kernels for the gradients of pieces: numbers of the algebra in float64, shapes, strides, and NaN and infinity."""

import numpy as np
import pytest

import mha_core as mha
from mha_numpy import tasks

UNIT = 2.0**-24


def pulled(kernel, op, function, *arguments, d):
    """Return the gradients of the arguments by a kernel."""
    _, pullback = mha.vjp(function, *arguments)
    with mha.use_kernel(op, kernel):
        return pullback(d)


def drawn(rng, name, batch=()):
    """Return the operation, its function and the kernel of a case, arrays for it, and a gradient of its result."""
    function, kernel, (x_shape, *shapes) = CASES[name]
    op = f"{name.partition(' ')[0]}_vjp"
    arrays = [rng.normal(size=shape).astype(np.float32) for shape in [(*batch, *x_shape), *shapes]]
    return op, function, kernel, arrays, rng.normal(size=function(*arrays).shape).astype(np.float32)


def wide(*arrays):
    return [x.astype(np.float64) for x in arrays]


def assert_close(actual, exact, tolerance):
    assert actual.dtype == np.float32
    assert np.abs(actual - exact).max() <= tolerance * max(1.0, np.abs(exact).max())


CASES = {
    "linear": (mha.linear, "chunks", [(50, 48), (48, 30), (30,)]),
    "layer_norm": (mha.layer_norm, "chunks", [(50, 48), (48,), (48,)]),
    "rms_norm": (mha.rms_norm, "chunks", [(50, 48), (48,)]),
    "layer_norm without weights": (mha.layer_norm, "chunks", [(50, 33)]),
    "rms_norm without weights": (mha.rms_norm, "chunks", [(50, 33)]),
    "gelu": (mha.gelu, "tiles", [(50, 48)]),
    "relu": (mha.relu, "tiles", [(50, 48)]),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("batch", [(), (3,), (700,)], ids=str)
def test_gradients_equal_those_of_the_algebra_in_float64(rng, name, batch):
    op, function, kernel, arrays, d = drawn(rng, name, batch)
    actual = pulled(kernel, op, function, *arrays, d=d)
    exact = pulled("algebra", op, function, *wide(*arrays), d=d.astype(np.float64))
    for x, y in zip(actual, exact, strict=True):
        assert_close(x, y, 64 * UNIT)


@pytest.mark.parametrize("name", CASES)
def test_any_strides_and_any_number_of_threads_give_the_same_bits(rng, name, set_num_threads):
    op, function, kernel, arrays, d = drawn(rng, name, (300,))
    given = [x.copy() for x in (*arrays, d)]
    results = set()
    for threads in (1, 2, 3, 8):
        set_num_threads(threads)
        x, d_x = (np.ascontiguousarray(y[::-1])[::-1] if threads > 2 else y for y in (arrays[0], d))
        results.add(b"".join(y.tobytes() for y in pulled(kernel, op, function, x, *arrays[1:], d=d_x)))
    assert len(results) == 1
    for x, before in zip((*arrays, d), given, strict=True):
        np.testing.assert_array_equal(x, before)


NAMES = {"linear": ("x", "w", "b"), "layer_norm": ("x", "weight", "bias"), "rms_norm": ("x", "weight")}


@pytest.mark.parametrize(("name", "wanted"), [(name, wanted) for name, every in NAMES.items() for wanted in every])
def test_only_what_is_wanted_is_returned(rng, name, wanted):
    op, function, kernel, arrays, d = drawn(rng, name)
    _, pullback = mha.vjp(function, *arrays, wrt=lambda argument: argument == wanted)
    with mha.use_kernel(op, kernel):
        alone = pullback(d)
    together = pulled(kernel, op, function, *arrays, d=d)
    for argument, x, y in zip(NAMES[name], alone, together, strict=True):
        assert x is None if argument != wanted else x.tobytes() == y.tobytes()


SPECIAL = np.asarray([np.nan, np.inf, -np.inf, 0.0, -0.0, 2.0**-149, -(2.0**-149), 2.0**-126, 1e38, -1e38, 13.0, -13.0])


@pytest.mark.parametrize(("name", "dtype"), [("gelu", np.float32), ("relu", np.float32), ("relu", np.float64)])
def test_nan_infinity_and_tiny_numbers(name, dtype):
    x = np.resize(SPECIAL.astype(dtype), tasks.TILE + 5)
    d = np.resize(np.asarray([1.0, -3.0, 0.5, 2.0, 7.0], dtype=dtype), x.shape)
    function, kernel, _ = CASES[name]
    actual = pulled(kernel, f"{name}_vjp", function, x, d=d)[0]
    exact = pulled("algebra", f"{name}_vjp", function, x.astype(np.float64), d=d.astype(np.float64))[0]
    np.testing.assert_allclose(actual, exact, rtol=16 * UNIT, atol=0 if name == "relu" else 16 * UNIT)


def test_the_slope_of_gelu_in_every_range(rng):
    x = np.concatenate([np.linspace(-14, 14, 100_001), np.geomspace(1e-30, 3e38, 2001), -np.geomspace(1e-30, 3e38, 2001)])
    x, d = x.astype(np.float32), np.ones(x.size, dtype=np.float32)
    actual = pulled("tiles", "gelu_vjp", mha.gelu, x, d=d)[0]
    exact = pulled("algebra", "gelu_vjp", mha.gelu, *wide(x), d=d.astype(np.float64))[0]
    assert np.abs(actual - exact).max() <= 8 * UNIT


def test_relu_of_special_numbers_is_that_of_the_algebra():
    x = np.resize(SPECIAL.astype(np.float32), 3 * tasks.TILE + 1).reshape(1, -1)
    with mha.use_kernel("relu", "tiles"):
        actual = mha.relu(x)
    with mha.use_kernel("relu", "algebra"):
        np.testing.assert_array_equal(actual, mha.relu(x))


@pytest.mark.parametrize("width", [1, 5, 300])
@pytest.mark.parametrize(("count", "num_rows"), [(1, 1), (7, 3), (500, 40), (3000, 5000)])
def test_rows_of_an_embedding_are_summed_by_id(rng, count, num_rows, width):
    ids = rng.integers(-num_rows, num_rows, size=count)
    ids[: count // 2] = ids[0]
    table = np.zeros((num_rows, width))
    d = rng.normal(size=(count, width)).astype(np.float32)
    actual = pulled("sorted", "embedding_vjp", lambda w: mha.embedding(ids, w), table.astype(np.float32), d=d)[0]
    np.add.at(table, ids, d)
    assert_close(actual, table, 4 * count**0.5 * UNIT)
    assert not actual[np.setdiff1d(np.arange(num_rows), ids % num_rows)].any()


def test_nan_stays_in_its_row_of_an_embedding(rng):
    ids = np.asarray([[3, 1, 3], [0, 1, 4]], dtype=np.int32)
    d = np.ones((2, 3, 4), dtype=np.float32)
    d[0, 0] = np.nan
    actual = pulled("sorted", "embedding_vjp", lambda w: mha.embedding(ids, w), np.zeros((6, 4), np.float32), d=d)[0]
    np.testing.assert_array_equal(actual[:, 0], [1, 2, 0, np.nan, 1, 0])
