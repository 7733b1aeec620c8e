"""Sums over rows in a fixed order (cuda/columns.cu): gradients of biases and of the weights of norms, and of embeddings."""

from __future__ import annotations

from typing import Any

import cupy
import numpy

from .launch import Launch, run
from .rowwise import dtype_defines, pack, stride, wide

_MIN_ROWS = 64  # rows of a chunk: with fewer, too much of the time goes into adding chunks
_MAX_CHUNKS = 64  # enough thread blocks for a GPU, with a few tiles of columns
_COLUMNS = 32  # packs of columns in a thread block
_THREADS = 256


def column_sums(d: Any, *, x: Any = None, mean: Any = None, factor: Any = None, sums: bool = True) -> tuple[Any, Any]:
    """Return the sum over rows of d, and of d (x - mean) factor; each (length,), or None if not asked for.

    d and x (n, length), x None without the second; mean and factor (n,) in the wide dtype.
    """
    count, length = d.shape
    of_chunk = max(_MIN_ROWS, -(-count // _MAX_CHUNKS))
    chunks = -(-count // of_chunk)
    total, of_products = (
        cupy.empty((chunks, length), dtype=wide(d.dtype)) if asked else None for asked in (sums, x is not None)
    )
    run(of_chunks(d, x, mean, factor, total, of_products, of_chunk))
    return _whole(total, d.dtype), _whole(of_products, d.dtype)


def of_chunks(d: Any, x: Any, mean: Any, factor: Any, sums: Any, products: Any, of_chunk: int) -> Launch:
    """Return the launch that fills ``sums`` and ``products``, (chunks, length) or None, from ``of_chunk`` rows for each."""
    count, length = d.shape
    size, chunks = pack(length, d, x), -(-count // of_chunk)
    args = (d, stride(d), x, stride(x), mean, factor, sums, products, *map(numpy.int32, (count, length, of_chunk)))
    return _launch("column_sums", d.dtype, size, chunks * -(-length // (size * _COLUMNS)), args)


def _launch(kernel: str, dtype: Any, size: int, grid: int, args: tuple[Any, ...]) -> Launch:
    return Launch("columns.cu", kernel, (*dtype_defines(dtype), f"PACK={size}"), grid=grid, block=_THREADS, args=args)


def _whole(parts: Any, dtype: Any) -> Any:
    """(chunks, length) -> (length,); None stays None."""
    if parts is None:
        return None
    count, length = parts.shape
    out = cupy.empty((length,), dtype=dtype)
    run(_launch("add_chunks", dtype, 1, -(-length // _THREADS), (parts, out, numpy.int32(count), numpy.int32(length))))
    return out


def sums_of_runs(d: Any, order: Any, start: Any, out: Any) -> Launch:
    """Return the launch for out[i] = the sum of the rows order[start[i]:start[i + 1]] of d. out is contiguous."""
    num_rows, length = out.shape
    size = pack(length, d, out)
    args = (d, stride(d), order, start, out, numpy.int32(length))
    return _launch("sums_of_runs", d.dtype, size, num_rows * -(-length // (size * _COLUMNS)), args)
