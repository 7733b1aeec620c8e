"""The CuPy plugin without a GPU: its error messages, and its functions on dtypes."""

import cupy
import numpy as np
import pytest

import mha_core as mha
import mha_cupy
import mha_cupy.namespace as xp

BFLOAT16 = np.dtype(xp.bfloat16)
DEVICES = mha_cupy._devices()
without_gpu = pytest.mark.skipif(bool(DEVICES), reason="this machine has a CUDA device")
# without a GPU


def test_the_plugin_is_registered_with_or_without_a_gpu():
    row = next(row for row in mha.backends() if row.name == "cupy")
    assert (row.distribution, row.version, row.state) == ("mha-core", mha.__version__, "registered")


@without_gpu
def test_without_a_gpu_the_error_says_what_is_needed():
    with pytest.raises(mha.BackendUnavailable) as error:
        mha.sinusoidal_positions(2, 4, backend="cupy")
    message = str(error.value)
    assert message.startswith(
        f"backend 'cupy' (from mha-core {mha.__version__}) cannot be used: NoDevice: no CUDA device is available: cudaError"
    )
    assert message.endswith(f"; cupy {cupy.__version__} is installed, but needs a CUDA GPU and its driver")
    assert "\n" not in message and "pip install" not in message and error.value.install == ""
    assert isinstance(error.value.__cause__.__cause__, cupy.cuda.runtime.CUDARuntimeError)


def test_arrays_are_recognized_by_the_name_of_their_class():
    (backend,) = mha_cupy.mha_backends()
    assert backend.install == "pip install 'mha-core[cupy]'"
    assert f"{cupy.ndarray.__module__}:{cupy.ndarray.__qualname__}" in backend.types


# dtypes


@pytest.mark.parametrize("dtype", [BFLOAT16, xp.bfloat16], ids=["dtype", "class"])
def test_bfloat16_has_the_kinds_of_floating_dtypes(dtype):
    for kind in ("real floating", "numeric", ("integral", "real floating"), BFLOAT16, (np.dtype("float32"), BFLOAT16)):
        assert xp.isdtype(dtype, kind) is True
    for kind in ("integral", "bool", "complex floating", ("integral", "bool"), np.dtype("float32"), ()):
        assert xp.isdtype(dtype, kind) is False
    with pytest.raises(ValueError, match="not a known kind"):
        xp.isdtype(dtype, "brain floating")


def test_other_dtypes_have_the_kinds_that_numpy_gives_them():
    for name in ("float16", "float32", "float64", "int64", "uint8", "bool", "complex64"):
        for kind in ("real floating", "integral", "numeric", "bool", ("integral", "bool")):
            assert xp.isdtype(np.dtype(name), kind) is np.isdtype(np.dtype(name), kind)
        assert not xp.isdtype(np.dtype(name), BFLOAT16)
    for wrong in (None, 3, "float32"):
        with pytest.raises(TypeError):
            xp.isdtype(wrong, "real floating")


def test_the_limits_of_bfloat16():
    for dtype in (BFLOAT16, xp.bfloat16):
        limits = xp.finfo(dtype)
        assert (limits.bits, float(limits.eps), limits.dtype) == (16, 2.0**-7, BFLOAT16)
        assert float(limits.max) == -float(limits.min) == (2 - 2.0**-7) * 2.0**127
        assert float(limits.smallest_normal) == 2.0**-126
    assert [xp.finfo(dtype).bits for dtype in (xp.float16, xp.float32, xp.float64)] == [16, 32, 64]


def test_result_types_with_bfloat16():
    assert xp.result_type(BFLOAT16, xp.bfloat16) == BFLOAT16
    assert xp.result_type(BFLOAT16, 1.5) == xp.result_type(1, BFLOAT16) == xp.result_type(BFLOAT16, True) == BFLOAT16
    assert xp.result_type(BFLOAT16, xp.float32) == np.float32
    assert xp.result_type(xp.float64, BFLOAT16, 1.0) == np.float64
    assert xp.result_type(xp.float32, 1.0) == np.float32


def test_the_namespace_has_every_function_that_its_parent_has():
    import array_api_compat.cupy as parent

    assert [name for name in parent.__all__ if not hasattr(xp, name)] == []
