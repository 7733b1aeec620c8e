"""Every array-API function that the algebra calls exists and gives NumPy's answer on small inputs.

If a test fails here, others fail too: read these failures first.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from mha_core.shared import compute_dtype, device_of, dtype_name

from .backend import BackendUnderTest
from .judge.held import Judge, noted
from .judge.layouts import NUMPY_VIEWS, VIEWS

pytestmark = pytest.mark.promise(0)

X = np.asarray([[1.5, -2.0, 0.25], [0.5, 4.0, -0.125]])
Y = np.asarray([[2.0, 0.5, -1.0], [-0.5, 1.0, 8.0]])
I = np.asarray([2, 0, 1])  # noqa: E741


def _softmax(xp: Any, x: Any) -> Any:
    e = xp.exp(x - xp.max(x, axis=-1, keepdims=True))
    return e / xp.sum(e, axis=-1, keepdims=True)


# name: (namespace, x, y, integers) -> result; NumPy gives the expected one, and x and y are exact in every dtype
FUNCTIONS: dict[str, Callable[[Any, Any, Any, Any], Any]] = {
    "abs": lambda xp, x, y, i: xp.abs(x),
    "all": lambda xp, x, y, i: xp.all(x > 1, axis=-1, keepdims=True),
    "any": lambda xp, x, y, i: xp.any(x > 1, axis=-1, keepdims=True),
    "arange": lambda xp, x, y, i: x[0, :] + xp.astype(xp.arange(3, device=device_of(x)), x.dtype),
    "argmax": lambda xp, x, y, i: xp.argmax(x, axis=-1),
    "argsort": lambda xp, x, y, i: xp.argsort(-x, axis=-1),
    "asarray": lambda xp, x, y, i: xp.asarray([0.5, 1.5, 2.5], dtype=x.dtype, device=device_of(x)),
    "astype": lambda xp, x, y, i: xp.astype(xp.astype(x, xp.float32, copy=False), x.dtype),
    "bitwise_and": lambda xp, x, y, i: xp.bitwise_and(i * 0x735A2D97, 0xFFFF),
    "bitwise_right_shift": lambda xp, x, y, i: xp.bitwise_right_shift(i * 1000, 3),
    "bitwise_xor": lambda xp, x, y, i: xp.bitwise_xor(i, 5),
    "bool": lambda xp, x, y, i: xp.asarray([True, False], dtype=xp.bool, device=device_of(x)),
    "broadcast_to": lambda xp, x, y, i: xp.broadcast_to(x[:, None, :], (2, 4, 3)),
    "clip": lambda xp, x, y, i: xp.clip(i, 0, 1),
    "concat": lambda xp, x, y, i: xp.concat([x, y], axis=-2),
    "exp": lambda xp, x, y, i: xp.exp(x),
    "flip": lambda xp, x, y, i: xp.flip(x, axis=-2),
    "floor": lambda xp, x, y, i: xp.floor(x),
    "full": lambda xp, x, y, i: xp.full((2, 3), -math.inf, dtype=x.dtype, device=device_of(x)),
    "int16": lambda xp, x, y, i: xp.astype(xp.astype(i, xp.int16) - 128, xp.int8),
    "int64": lambda xp, x, y, i: xp.astype(i, xp.int64),
    "int8": lambda xp, x, y, i: xp.astype(i, xp.int8),
    "isfinite": lambda xp, x, y, i: xp.isfinite(xp.where(x > 1, x, math.inf)),
    "isnan": lambda xp, x, y, i: xp.isnan(xp.where(x > 1, x, math.nan)),
    "log": lambda xp, x, y, i: xp.log(xp.abs(x)),
    "matmul": lambda xp, x, y, i: xp.matmul(x[:, None, None, :], y[None, :, :, None]),
    "matrix_transpose": lambda xp, x, y, i: xp.matrix_transpose(x),
    "max": lambda xp, x, y, i: xp.max(x, axis=-1, keepdims=True),
    "maximum": lambda xp, x, y, i: xp.maximum(x, y),
    "mean": lambda xp, x, y, i: xp.mean(x, axis=-1, keepdims=True),
    "min": lambda xp, x, y, i: xp.min(x, axis=0),
    "minimum": lambda xp, x, y, i: xp.minimum(xp.abs(x), 1),
    "ones_like": lambda xp, x, y, i: xp.ones_like(x),
    "ones": lambda xp, x, y, i: xp.ones((2, 3), dtype=x.dtype, device=device_of(x)),
    "permute_dims": lambda xp, x, y, i: xp.permute_dims(x[:, None, :], (1, 2, 0)),
    "reshape": lambda xp, x, y, i: xp.reshape(x, (3, 1, 2)),
    "round": lambda xp, x, y, i: xp.round(x),
    "searchsorted": lambda xp, x, y, i: xp.searchsorted(xp.sort(i), i),
    "sqrt": lambda xp, x, y, i: xp.sqrt(xp.abs(x)),
    "stack": lambda xp, x, y, i: xp.stack([x, y], axis=-1),
    "sum": lambda xp, x, y, i: xp.sum(x, axis=-1, keepdims=True),
    "take": lambda xp, x, y, i: xp.take(x, i, axis=-1),
    "take_along_axis": lambda xp, x, y, i: xp.take_along_axis(x, xp.argsort(x, axis=-1), axis=-1),
    "tanh": lambda xp, x, y, i: xp.tanh(x),
    "uint8": lambda xp, x, y, i: xp.sum(xp.astype(i, xp.uint8), axis=-1, keepdims=True, dtype=xp.uint8),
    "where": lambda xp, x, y, i: xp.where(x > y, x, -math.inf),
    "zeros": lambda xp, x, y, i: xp.zeros((0, 3), dtype=x.dtype, device=device_of(x)),
    "zeros_like": lambda xp, x, y, i: xp.zeros_like(x),
    # operators and indexing
    "arithmetic": lambda xp, x, y, i: (x + y) * 0.5 - x / y + (1 - x) - (-y) + 2 / y,
    "matmul_operator": lambda xp, x, y, i: x @ xp.matrix_transpose(y),
    "floor_division": lambda xp, x, y, i: i // 2,
    "comparisons": lambda xp, x, y, i: (x < y) | ((x >= 1) & ~(x == y)) | (x > 3),
    "ellipsis": lambda xp, x, y, i: x[..., 1:],
    "new_axis": lambda xp, x, y, i: x[..., None, :],
    "one_row": lambda xp, x, y, i: x[0, ...],
    "stepped": lambda xp, x, y, i: x[..., ::2],
    "take, one index": lambda xp, x, y, i: xp.take(x, xp.asarray([0], device=device_of(i)), axis=-1),
    # functions of results of others, which a library may hold in another form, such as sparse arrays that are 1 elsewhere
    "exp, then matmul": lambda xp, x, y, i: xp.matmul(_softmax(xp, x), xp.matrix_transpose(y)),
    "exp, then concat": lambda xp, x, y, i: xp.concat([x, xp.exp(x)], axis=-2),
    "where, then where": lambda xp, x, y, i: xp.where(xp.isfinite(xp.where(x > 1, x, -math.inf)), y, 0) * xp.exp(x),
}
# an array's own operators may widen half precision in products and with a Python float, as NumPy's and CuPy's do for
# bfloat16; the algebra widens before or casts back
OPERATORS = ("arithmetic", "matmul_operator")


@pytest.mark.parametrize("function", FUNCTIONS)
def test_function(judge: Judge, function: str) -> None:
    call = FUNCTIONS[function]
    x, y, i = judge.array(X), judge.array(Y), judge.array(I)
    result = call(judge.xp, x, y, i)
    # NumPy does not have bfloat16; float64 is exact for these inputs, so its answer is right in every dtype
    expected = np.asarray(call(np, X, Y, I))
    widened = function in OPERATORS and result.dtype == compute_dtype(judge.xp, x.dtype)
    judge.assert_like(result, x, dtype=None if expected.dtype.kind == "f" and not widened else result.dtype)
    unit = {"float64": 2.0**-50, "float32": 2.0**-21, "float16": 2.0**-8, "bfloat16": 2.0**-5}[judge.dtype]
    np.testing.assert_allclose(judge.numpy(result).astype(np.float64), expected.astype(np.float64), rtol=unit, atol=unit)
    assert tuple(result.shape) == expected.shape and result.ndim == expected.ndim


def test_dtypes_are_told_apart(judge: Judge) -> None:
    xp, x = judge.xp, judge.array(X)
    assert xp.isdtype(x.dtype, "real floating") and judge.loaded.is_floating(x.dtype)
    assert not judge.loaded.is_floating(judge.array(I).dtype)
    assert xp.isdtype(judge.array(I).dtype, "integral")
    limits = xp.finfo(x.dtype)
    expected = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 2.0**-23, "float64": 2.0**-52}
    assert float(limits.eps) == expected[judge.dtype] and 0 < float(limits.smallest_normal) < 1e-4
    assert limits.bits == {"float16": 16, "bfloat16": 16, "float32": 32, "float64": 64}[judge.dtype]
    assert dtype_name(x.dtype) == judge.dtype and x.dtype == getattr(xp, judge.dtype)


def test_integers_have_limits(backend: BackendUnderTest) -> None:
    for name in ("int8", "int16", "int64", "uint8", "uint32"):
        limits, expected = backend.xp.iinfo(getattr(backend.xp, name)), np.iinfo(name)
        assert (limits.bits, limits.min, limits.max) == (expected.bits, expected.min, expected.max), name


def test_the_default_integers_hold_positions(backend: BackendUnderTest) -> None:
    assert backend.xp.isdtype(backend.xp.arange(3).dtype, "signed integer")


def test_arrays_travel_to_numpy_and_back(judge: Judge) -> None:
    for shape in [(), (3,), (2, 0, 4), (2, 3, 4)]:
        x = judge.normal(shape)
        assert (judge.numpy(judge.array(x)) == x).all()
    for x in (np.asarray([True, False]), np.arange(4), np.asarray([[3, -1]], dtype=np.int32)):
        there = judge.numpy(judge.array(x))
        assert there.dtype.kind == x.dtype.kind and (there == x).all()


@pytest.mark.promise(12)
def test_asarray_leaves_its_argument_alone(judge: Judge) -> None:
    x = judge.array(X)
    kind, bits = type(x), judge.bits(x)
    judge.xp.asarray(x)
    assert type(x) is kind and judge.bits(x) == bits


def test_special_numbers_travel(judge: Judge) -> None:
    x = np.asarray([np.nan, np.inf, -np.inf, 0.0, -0.0])
    np.testing.assert_array_equal(judge.numpy(judge.array(x)).astype(np.float64), x)


@pytest.mark.promise(12)
def test_read_only_arrays_can_come_in(backend: BackendUnderTest) -> None:
    x = np.ones((2, 3), dtype=np.float32)
    x.flags.writeable = False
    assert (backend.numpy(backend.loaded.from_numpy(x, backend.device)) == 1).all()


DTYPES = ("float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "bool")


def every_number(dtype: str, rng: np.random.Generator) -> np.ndarray:
    """Return (2, 3, 8) numbers of a dtype: the greatest, the least, special ones, and random ones of any size."""
    if dtype == "bool":
        return rng.random((2, 3, 8)) < 0.5
    if dtype.startswith("float"):
        info = np.finfo(dtype)
        first = [0.0, -0.0, np.nan, np.inf, -np.inf, info.max, info.min, info.tiny, info.smallest_subnormal, 1 / 3]
        rest = rng.normal(size=48 - len(first)) * 2.0 ** rng.integers(-12, 12, size=48 - len(first))
        return np.concatenate([np.asarray(first, dtype=dtype), rest.astype(dtype)]).reshape(2, 3, 8)
    limits = np.iinfo(dtype)
    x = rng.integers(limits.min, limits.max, size=(2, 3, 8), dtype=dtype, endpoint=True)
    x[0, 0, :6] = [limits.min, limits.max, 0, 1, limits.max - 1, limits.min // 2]
    return x


def brought(backend: BackendUnderTest, x: np.ndarray, view: Callable[[np.ndarray], np.ndarray]) -> tuple[Any, np.ndarray]:
    """Bring a view of x into the library; return it with the numbers that it must hold.

    A library may hold integers of 64 bits in 32, as JAX does: they are then small enough.
    """
    given = view(x)
    there = backend.loaded.from_numpy(given, backend.device)
    if dtype_name(there.dtype) != x.dtype.name and x.dtype.kind in "iu":
        given = view((x % 100).astype(x.dtype))
        there = backend.loaded.from_numpy(given, backend.device)
    return there, np.array(given)


def assert_holds(backend: BackendUnderTest, there: Any, expected: np.ndarray) -> None:
    """Raise AssertionError unless to_numpy returns these numbers, bit for bit, in the dtype that the library holds them in."""
    got = backend.loaded.to_numpy(there)
    assert isinstance(got, np.ndarray) and got.shape == expected.shape == tuple(there.shape)
    assert got.dtype.name == dtype_name(there.dtype), f"to_numpy made {got.dtype} of {dtype_name(there.dtype)}"
    assert got.dtype.kind == expected.dtype.kind
    assert got.tobytes() == expected.astype(got.dtype).tobytes(), f"{expected.dtype} came back with other bits"


@pytest.fixture(params=DTYPES)
def numbers(request: pytest.FixtureRequest, backend: BackendUnderTest, rng: np.random.Generator) -> np.ndarray:
    """Numbers (2, 3, 8) of every dtype that the library has."""
    name: str = request.param
    if name not in (*backend.dtypes, "bool") and (name.startswith("float") or not hasattr(backend.xp, name)):
        pytest.skip(f"the library lacks {name}, or it is not judged")
    return every_number(name, rng)


@pytest.mark.promise(0, 12)
def test_numbers_of_every_dtype_come_in_and_go_out_bit_for_bit(backend: BackendUnderTest, numbers: np.ndarray) -> None:
    before = numbers.tobytes()
    for layout, view in NUMPY_VIEWS.items():
        with noted(f"the layout: {layout}"):
            there, expected = brought(backend, numbers, view)
            assert_holds(backend, there, expected)
            assert_holds(backend, there, expected)
    assert numbers.tobytes() == before, "the array that was given was written to"


@pytest.mark.promise(0, 12)
def test_views_of_every_dtype_go_out_bit_for_bit(backend: BackendUnderTest, numbers: np.ndarray) -> None:
    there, expected = brought(backend, numbers, NUMPY_VIEWS["contiguous"])
    for name, view in VIEWS.items():
        with noted(f"the view: {name}"):
            assert_holds(backend, view(backend.xp, there), expected)
    assert_holds(backend, there[:, 1, ...], expected[:, 1])
    assert_holds(backend, there[..., ::3], expected[..., ::3])
