"""The linear map and its gradients: on all cores for float32 and float64, through float32 for half precision."""

from __future__ import annotations

from collections.abc import Callable, Set
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from mha_core.plugin import Call

from . import blas
from .pool import inside_a_task
from .threads import run

_TOKENS = 512  # tokens in a chunk
_FEW = 4  # chunks of tokens; if there are fewer, the columns are cut instead
_COLUMNS = 64  # columns in a chunk are a multiple of it; products with 31 take 1.6 times as long
_MOST = 16  # chunks of columns
_READ = 16  # multiplications that take as long as to read a weight from memory
_FEATURES = 256  # rows of the weight's gradient in a chunk
_PRODUCT = 1 << 23  # multiplications for which another thread is worth waking


def linear(x: np.ndarray, w: np.ndarray, b: np.ndarray | None) -> np.ndarray:
    """x w + b, with the bias added in place.

    Many tokens are cut into chunks of tokens, few into chunks of columns: a BLAS held at one thread uses one core only. A task
    has one thread, so it does not cut few tokens.
    """
    y = np.empty((*x.shape[:-1], w.shape[1]), dtype=x.dtype)
    tokens, to, columns = as_rows(x), y.reshape(-1, w.shape[1]), w.shape[1]
    by_column = len(tokens) < _FEW * _TOKENS and not inside_a_task()
    work = max(1, len(tokens), _READ) * x.shape[-1] * _COLUMNS
    size = _COLUMNS * max(1, round(_PRODUCT / work), columns // (_MOST * _COLUMNS)) if by_column else _TOKENS

    def chunk(at: int) -> None:
        place = (slice(None), slice(at, at + size)) if by_column else (slice(at, at + size), slice(None))
        np.matmul(tokens[place[0]], w[:, place[1]], out=to[place])
        if b is not None:
            to[place] += b[place[1]]

    with np.errstate(all="ignore"):  # NaN and infinity in, NaN and infinity out
        if x.size * columns <= blas.SMALL:
            size = columns if by_column else len(tokens)
            chunk(0)
        else:
            run(chunk, range(0, columns if by_column else len(tokens), size))
    return y


def as_rows(x: np.ndarray) -> np.ndarray:
    """(..., d) -> (tokens, d): a view, or a copy if the axes cannot be merged or a BLAS could not read it."""
    return np.ascontiguousarray(x).reshape(-1, x.shape[-1])


def linear_vjp(
    x: np.ndarray, w: np.ndarray, b: np.ndarray | None, d_out: np.ndarray, *, wanted: Set[str]
) -> tuple[np.ndarray | None, np.ndarray | None, np.ndarray | None]:
    """dx = d w^T, dw = x^T d, db = sum d, the last two summed over all rows.

    dx is cut into chunks of tokens, dw and db into chunks of rows and columns, all of which are computed together.
    """
    rows, d = as_rows(x), as_rows(d_out)
    gradients: dict[str, np.ndarray] = {}
    tasks: list[Task] = []
    if "w" in wanted:
        gradients["w"] = np.empty(w.shape, dtype=w.dtype)
        tasks += weight_tasks(rows, d, gradients["w"])
    if "x" in wanted:
        dx = gradients["x"] = np.empty(x.shape, dtype=x.dtype)
        to = dx.reshape(-1, x.shape[-1])
        tasks += [partial(np.matmul, d[span], w.T, out=to[span]) for span in _cut(len(d), w.size, _TOKENS)]
    if "b" in wanted:
        gradients["b"] = np.empty(d.shape[1], dtype=d.dtype)
        tasks.append(bias_task(d, gradients["b"]))
    compute(tasks, len(rows) * w.size)
    return gradients.get("x"), gradients.get("w"), gradients.get("b")


Task: TypeAlias = Callable[[], Any]
"""Computes a part of a gradient."""


def weight_tasks(x: np.ndarray, d: np.ndarray, out: np.ndarray) -> list[Task]:
    """Return tasks that write x^T d to ``out``."""
    return [partial(np.matmul, x[:, span].T, d, out=out[span]) for span in _cut(len(out), d.size, _FEATURES)]


def bias_task(d: np.ndarray, out: np.ndarray) -> Task:
    """Return a task that writes the sum of the rows of d to ``out``."""
    return partial(np.matmul, np.ones(len(d), dtype=d.dtype), d, out=out)


def compute(tasks: list[Task], multiplications: int) -> None:
    """Call all tasks, on all cores if a product among them has many multiplications."""

    def call(task: Task) -> None:
        with np.errstate(all="ignore"):  # NaN and infinity in, NaN and infinity out
            task()

    if multiplications > blas.SMALL:
        run(call, tasks)
    else:
        for task in tasks:
            call(task)


def _cut(length: int, other: int, most: int) -> list[slice]:
    """Cut an axis into chunks that are worth a thread, of at most ``most``, all of about the same length."""
    count = max(1, min(-(-length // most), length * other // _PRODUCT))
    each = -(-length // count)
    return [slice(at, min(length, at + each)) for at in range(0, length, each)]


def supports_half(call: Call) -> str | None:
    """Return why ``linear_half`` does not support a call, or None."""
    return None if call.dtype_name in ("float16", "bfloat16") else f"computes in half precision, not {call.dtype}"


def linear_half(x: np.ndarray, w: np.ndarray, b: np.ndarray | None) -> np.ndarray:
    """x w + b in float32, rounded once. NumPy multiplies float16 without the BLAS, which takes 180 times as long."""
    y = x.astype(np.float32) @ w.astype(np.float32)
    if b is not None:
        y += b
    return y.astype(x.dtype)
