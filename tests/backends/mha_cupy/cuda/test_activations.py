"""Activations of mha_cupy, with their CUDA run on the host: each result is rounded once."""

import cuda_on_host
import mpmath
import numpy as np
import pytest
from cuda_kernels import DTYPES, assert_rounded_once, each_dtype, needs_compiler, wide

import mha_core as mha
from mha_conformance.cases.pieces import PIECES, piece_problems
from mha_conformance.oracle import reference
from mha_cupy.activations import activation
from mha_cupy.rowwise import rows

pytestmark = needs_compiler
EXACT = {
    "identity": lambda x: x,
    "relu": reference.relu,
    "gelu": reference.gelu,
    "gelu_tanh": lambda x: reference.gelu(x, approximate="tanh"),
    "silu": reference.silu,
}


def active(name, x):
    out = np.full(x.shape, np.nan, dtype=x.dtype)
    cuda_on_host.run(activation(name, rows(x), rows(out)))
    return out


@each_dtype
@pytest.mark.parametrize("op", sorted({*PIECES} - {"linear", "linear_int8"}))
def test_the_calls_of_the_conformance_suite_are_rounded_once(dtype, rng, op):
    for problem in piece_problems(op, rng):
        floats = {name: x.astype(DTYPES[dtype]) for name, x in problem.floats.items()}
        if any(0 in x.shape for x in floats.values()):
            continue  # the kernels refuse empty axes
        with mha.use_kernel(op, "fused_on_host"):
            got = problem.call(floats)[op]
        floats = {name: wide(x) for name, x in floats.items()}
        assert_rounded_once(str(problem), got, problem.exact(floats)[op], problem.magnitude(floats))


@pytest.mark.parametrize("name", EXACT)
@pytest.mark.parametrize(("dtype", "length"), [*((dtype, 64) for dtype in DTYPES), ("float32", 7), ("bfloat16", 7)])
def test_bias_gate_and_residual(dtype, rng, name, length):
    x, gate, residual = (rng.normal(size=(5, length)).astype(DTYPES[dtype]) for _ in range(3))
    b, gate_b = (rng.normal(size=(1, length)).astype(DTYPES[dtype]) for _ in range(2))
    for more in (
        {},
        {"b": b},
        {"gate": gate},
        {"b": b, "gate": gate[::-1], "gate_b": gate_b},
        {"b": b, "residual": residual},
        {"b": b, "gate": gate, "gate_b": gate_b, "residual": residual[:1].repeat(5, axis=0)},
    ):
        exact = EXACT[name](wide(x) + (wide(b) if "b" in more else 0))
        size = 16 * (np.abs(wide(x)) + np.abs(wide(b)))
        if "gate" in more:
            factor = wide(more["gate"]) + (wide(gate_b) if "gate_b" in more else 0)
            exact, size = exact * factor, size * (np.abs(wide(more["gate"])) + np.abs(wide(gate_b)))
        if "residual" in more:
            exact, size = exact + wide(more["residual"]), size + np.abs(wide(more["residual"]))
        out = np.full_like(x, np.nan)
        cuda_on_host.run(activation(name, x, out, **more))
        assert_rounded_once(name, out, exact, size)
        place = x.copy()
        cuda_on_host.run(activation(name, place, place, **more))
        np.testing.assert_array_equal(place, out)


@each_dtype
def test_rows_of_any_stride_and_nothing_is_written_beyond_them(dtype, rng):
    whole = rng.normal(size=(7, 3, 34)).astype(DTYPES[dtype])
    for x in (whole[:, 1], whole[::-1, 0, 1:18], whole[:, 2, ::2], whole.swapaxes(0, 1)):
        np.testing.assert_array_equal(active("silu", x), active("silu", x.copy()))
    room = np.full((300, 34), 7, dtype=whole.dtype)  # more packs than a thread block has threads, not a multiple of them
    x = rng.normal(size=(290, 34)).astype(whole.dtype)
    cuda_on_host.run(activation("relu", x, room[:290]))
    np.testing.assert_array_equal(room[:290], np.maximum(x, 0))
    assert (room[290:] == 7).all()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_gelu_is_accurate_in_the_lower_tail(dtype):
    x = np.linspace(-12, 0, 400, dtype=dtype)
    with mpmath.workdps(40):
        exact = np.asarray([float(mpmath.mpf(float(value)) * mpmath.ncdf(float(value))) for value in x])
    np.testing.assert_allclose(active("gelu", x), exact, rtol=4 * np.finfo(dtype).eps)


@each_dtype
def test_nan_infinities_and_large_numbers(dtype):
    x = np.asarray([np.inf, -np.inf, np.nan, 1e4, -1e4, 100, -100], dtype=DTYPES[dtype])
    for name in ("relu", "gelu", "gelu_tanh", "silu"):
        got = active(name, x).astype(np.float64)
        np.testing.assert_array_equal(got[[0, 3, 5]], x[[0, 3, 5]].astype(np.float64), err_msg=name)
        np.testing.assert_allclose(got[[1, 4, 6]], 0, atol=1e-40, err_msg=name)
        assert np.isnan(got[2]), name


def test_every_16_bit_float_is_unchanged_by_the_identity():
    """They are widened and narrowed again, subnormal numbers, infinities and both zeros included. NaN stays NaN."""
    bits = np.arange(2**16, dtype=np.uint16)
    for dtype in (DTYPES["float16"], DTYPES["bfloat16"]):
        x = bits.view(dtype)
        got = active("identity", x)
        number = ~np.isnan(x.astype(np.float32))
        np.testing.assert_array_equal(got.view(np.uint16)[number], bits[number])
        assert np.isnan(got.astype(np.float32)[~number]).all()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_is_rounded_to_nearest_even(dtype, rng):
    """x + b is exact in float32 and float64, so NumPy rounds it once."""
    x, b = (rng.integers(-(2**9), 2**9, size=(1, 4096)) / 2.0**6 for _ in range(2))
    x, b = x.astype(DTYPES[dtype]), b.astype(DTYPES[dtype])
    out = np.full_like(x, np.nan)
    cuda_on_host.run(activation("identity", x, out, b=b))
    np.testing.assert_array_equal(out, (wide(x) + wide(b)).astype(DTYPES[dtype]))
