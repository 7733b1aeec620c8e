"""The row-wise operations of mha_cupy with their CUDA run on the host, and the error that a correct result may have."""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, settings

import cuda_on_host
from mha_core.conformance.oracle.tolerance import SMALLEST, UNIT_ROUNDOFF, assert_within, compute_dtype
from mha_cupy.activations import activation
from mha_cupy.norms import norm
from mha_cupy.rotary import rotation
from mha_cupy.rowwise import rows

DTYPES = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16, "float32": np.float32, "float64": np.float64}
without_time_limits = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # for busy machines
needs_compiler = pytest.mark.skipif(cuda_on_host.COMPILER is None, reason="needs a C++ compiler, g++ or clang++")


def layer_norm(x, weight=None, bias=None, *, eps=1e-5):
    return _normed(x, weight, bias, eps=eps)


def rms_norm(x, weight=None, *, eps=1e-5):
    return _normed(x, weight, None, eps=eps, centred=False)


def _normed(x, weight, bias, **options):
    out = np.full(x.shape, np.nan, dtype=x.dtype)
    weight, bias = (None if p is None else rows(p) for p in (weight, bias))
    cuda_on_host.run(norm(rows(x), weight, bias, rows(out), **options))
    return out


def active(name, x):
    out = np.full(x.shape, np.nan, dtype=x.dtype)
    cuda_on_host.run(activation(name, rows(x), rows(out)))
    return out


def rotary(x, cos, sin, *, interleaved):
    out = np.full(x.shape, np.nan, dtype=x.dtype)
    cuda_on_host.run(rotation(x, cos, sin, out, interleaved=interleaved))
    return out


OPERATIONS = {
    "layer_norm": layer_norm,
    "rms_norm": rms_norm,
    "gelu": lambda x, *, approximate: active("gelu_tanh" if approximate == "tanh" else "gelu", x),
    "relu": lambda x: active("relu", x),
    "silu": lambda x: active("silu", x),
    "rotary": rotary,
}


def wide(x):
    return None if x is None else x.astype(np.float64)


def assert_rounded_once(name, got, exact, magnitude):
    """Check that errors are at most ``magnitude`` roundings of the compute dtype, and one of the result's dtype."""
    dtype = got.dtype.name
    bound = UNIT_ROUNDOFF[compute_dtype(dtype)] * (magnitude + np.abs(exact)) + UNIT_ROUNDOFF[dtype] * np.abs(exact)
    assert_within(name, got, exact, 2 * bound + SMALLEST[dtype] if dtype == "float64" else bound + SMALLEST[dtype])
