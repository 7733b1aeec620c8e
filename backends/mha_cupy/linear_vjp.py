"""Gradients of the linear map and of the embedding: cuBLAS products in the dtype of the arrays, and sums in a fixed order."""

from __future__ import annotations

from collections.abc import Set
from math import prod
from typing import Any

import cupy

from mha_core.plugin import Call

from . import products, rowwise
from .columns import column_sums, sums_of_runs
from .launch import run
from .rowwise import rows


def supports(call: Call) -> str | None:
    return rowwise.supports(call) or products.missing()


def linear_vjp(x: Any, w: Any, b: Any, d_out: Any, *, wanted: Set[str]) -> tuple[Any | None, Any | None, Any | None]:
    """dx = d w^T, dw = x^T d, db = sum d, the last two summed over all rows in float32 or float64, and rounded once."""
    d = rows(d_out)
    dx = dw = db = None
    if "x" in wanted:
        dx = cupy.empty(x.shape, dtype=x.dtype)
        products.product(d, w.T, dx.reshape(-1, x.shape[-1]))
    if "w" in wanted:
        dw = cupy.empty(w.shape, dtype=w.dtype)
        products.product(rows(x).T, d, dw)
    if "b" in wanted:
        db, _ = column_sums(d)
    return dx, dw, db


def supports_embedding(call: Call) -> str | None:
    d_out, ids = call.shape("d_out"), call.shape("ids")
    assert d_out is not None and ids is not None
    table = call.option("num_rows"), d_out[-1]
    return rowwise.reason_against(call, d_out, ids, table, elements=max(prod(d_out), prod(table)))


def embedding_vjp(d_out: Any, ids: Any, *, num_rows: int) -> Any:
    """Return (num_rows, d): row i is the sum of the rows of ``d_out`` whose id is i. Ids below 0 count from the end."""
    d, at = rows(d_out), ids.reshape(-1).astype(cupy.int64)
    at = cupy.where(at < 0, at + num_rows, at)
    order = cupy.argsort(at)  # CuPy's is stable, so the sums have a fixed order
    start = cupy.searchsorted(at[order], cupy.arange(num_rows + 1, dtype=cupy.int64))
    out = cupy.empty((num_rows, d.shape[1]), dtype=d.dtype)
    run(sums_of_runs(d, order.astype(cupy.int64, copy=False), start.astype(cupy.int64, copy=False), out))
    return out
