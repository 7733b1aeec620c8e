"""Dtypes of mha_cupy's CUDA kernels, and the error that a correct result may have."""

import cuda_on_host
import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, settings

from mha_conformance.oracle.tolerance import SMALLEST, UNIT_ROUNDOFF, assert_within, compute_dtype

DTYPES = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16, "float32": np.float32, "float64": np.float64}
each_dtype = pytest.mark.parametrize("dtype", DTYPES)
without_time_limits = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # for busy machines
needs_compiler = pytest.mark.skipif(cuda_on_host.COMPILER is None, reason="needs a C++ compiler, g++ or clang++")


def wide(x):
    return None if x is None else x.astype(np.float64)


def assert_rounded_once(name, got, exact, magnitude):
    """Check that errors are at most ``magnitude`` roundings of the compute dtype, and one of the result's dtype."""
    dtype = got.dtype.name
    bound = UNIT_ROUNDOFF[compute_dtype(dtype)] * (magnitude + np.abs(exact)) + UNIT_ROUNDOFF[dtype] * np.abs(exact)
    assert_within(name, got, exact, 2 * bound + SMALLEST[dtype] if dtype == "float64" else bound + SMALLEST[dtype])
