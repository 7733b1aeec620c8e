"""The cuBLAS functions that mha_cupy calls, on the host: the same arguments, with pointers into the host's memory."""

import ctypes
import threading

import ml_dtypes
import numpy as np

TYPES = {0: np.float32, 1: np.float64, 2: np.float16, 14: ml_dtypes.bfloat16}  # cudaDataType


class HostBlas:
    """cuBLAS in NumPy. Matrices are column-major. ``calls`` counts the products."""

    CUBLAS_COMPUTE_32F, CUBLAS_COMPUTE_64F, CUBLAS_GEMM_DEFAULT = 68, 70, -1

    def __init__(self):
        self.calls = 0
        self.of_thread = threading.local()  # CuPy has one handle for each thread

    @property
    def mode(self):
        return getattr(self.of_thread, "mode", 0)

    def getMathMode(self, handle):  # noqa: N802
        return self.mode

    def setMathMode(self, handle, mode):  # noqa: N802
        self.of_thread.mode = mode

    def gemmStridedBatchedEx(  # noqa: N802
        self, handle, trans_a, trans_b, m, n, k, alpha, a, type_a, lda, step_a, b, type_b, ldb, step_b,
        beta, c, type_c, ldc, step_c, count, compute, algorithm,
    ):  # fmt: skip
        self.calls += 1
        wide = np.float64 if compute == self.CUBLAS_COMPUTE_64F else np.float32
        alpha, beta = (np.frombuffer((ctypes.c_char * np.dtype(wide).itemsize).from_address(x), wide)[0] for x in (alpha, beta))
        assert self.mode & 16 or np.dtype(TYPES[type_c]).itemsize > 2, "partial sums may be rounded to half precision"
        assert beta in (0, 1) and count >= 1 and min(step_a, step_b, step_c) >= 0
        assert beta == 0 or type_c in (0, 1), "a sum over several products is rounded to half precision after each"
        for at in range(count):
            x = _matrix(a, type_a, lda, step_a * at, (k, m) if trans_a else (m, k)).astype(wide)
            y = _matrix(b, type_b, ldb, step_b * at, (n, k) if trans_b else (k, n)).astype(wide)
            z = _matrix(c, type_c, ldc, step_c * at, (m, n))
            product = alpha * ((x.T if trans_a else x) @ (y.T if trans_b else y))
            z[...] = (product + z if beta else product).astype(z.dtype)


def _matrix(address, kind, leading, offset, shape):
    """Return a view of a column-major matrix (rows, columns)."""
    rows, columns = shape
    assert leading >= max(1, rows)
    dtype = np.dtype(TYPES[kind])
    size = (leading * (columns - 1) + rows) * dtype.itemsize
    memory = (ctypes.c_char * size).from_address(address + offset * dtype.itemsize)
    flat = np.frombuffer(memory, dtype=dtype)
    return np.lib.stride_tricks.as_strided(flat, shape, (dtype.itemsize, leading * dtype.itemsize))
