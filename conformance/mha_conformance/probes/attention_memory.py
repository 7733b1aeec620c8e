"""Memory that attention takes beyond its arguments at length 8192, and whether its numbers are right."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

import mha_core as mha

from ..backend import BackendUnderTest
from .peak_memory import peak, reset_peak

LENGTH = 8192  # scores of one head are 256 MB in float32, far more than everything else in the process
WIDTH = 16
ROWS = 13  # of the result are compared with the oracle


@dataclass(frozen=True)
class MemoryCase:
    """Options of a call, in which all heads and batch elements share arrays."""

    options: Callable[[BackendUnderTest, str, int], dict[str, Any]]
    """Function of the backend, the dtype and L = S."""
    oracle: Callable[[np.ndarray, np.ndarray, int], dict[str, Any]]
    """Function of query positions (rows, 1), key positions (S) and S; returns the options as the oracle takes them."""


CASES = {
    "plain": MemoryCase(lambda backend, dtype, n: {}, lambda q, k, n: {}),
    "causal": MemoryCase(lambda backend, dtype, n: {"mask": mha.causal()}, lambda q, k, n: {"allowed": k <= q}),
    "window": MemoryCase(
        lambda backend, dtype, n: {"mask": mha.window(n // 4, n // 4)}, lambda q, k, n: {"allowed": abs(k - q) <= n // 4}
    ),
    "packed": MemoryCase(
        lambda backend, dtype, n: {"mask": mha.packed(_sequences(n)) & mha.causal()},
        lambda q, k, n: {"allowed": (_sequence_ids(n)[q] == _sequence_ids(n)[k]) & (k <= q)},
    ),
    "key_lengths": MemoryCase(
        lambda backend, dtype, n: {"mask": mha.key_lengths(backend.array(np.asarray(n - n // 8)))},
        lambda q, k, n: {"allowed": k + 0 * q < n - n // 8},
    ),
    "alibi": MemoryCase(lambda backend, dtype, n: {"bias": mha.alibi(1)}, lambda q, k, n: {"bias": -(2.0**-8) * abs(k - q)}),
    "array_mask": MemoryCase(
        lambda backend, dtype, n: {"mask": _stripes(backend, n)}, lambda q, k, n: {"allowed": q % 3 != k % 3}
    ),
    "array_bias": MemoryCase(
        lambda backend, dtype, n: {"bias": _ramp(backend, dtype, n)},
        lambda q, k, n: {"bias": np.linspace(-1.0, 1.0, n) + 0 * q},
    ),
}


def _sequences(n: int) -> list[int]:
    """Return the lengths of packed sequences: several equal ones, one of a single token, an empty one, and a long one."""
    equal = [n // 16] * 6
    return [*equal, 1, 0, n - sum(equal) - 1]


def _sequence_ids(n: int) -> np.ndarray:
    lengths = _sequences(n)
    return np.repeat(np.arange(len(lengths)), lengths)


def _stripes(backend: BackendUnderTest, n: int) -> Any:
    """Return an array mask, made on the backend; every query sees two thirds of the keys."""
    third = backend.array(np.arange(n) % 3)
    mask = ~(third[:, None] == third[None, :])
    backend.numpy(mask[-1:, :])
    return mask


def _ramp(backend: BackendUnderTest, dtype: str, n: int) -> Any:
    """Return a bias of n rows, made from one row on the backend."""
    row = backend.array(np.linspace(-1.0, 1.0, n), dtype)
    bias = backend.xp.broadcast_to(row[None, :], (n, n)) + backend.array(np.zeros((n, 1)), dtype)
    backend.numpy(bias[-1:, :])  # a lazy library computes it when its numbers are read
    return bias


def limit(length: int = LENGTH) -> int:
    """Return the limit in bytes: a quarter of the float32 scores of one head. Blocks of the algebra take a tenth of that."""
    return length * length * 4 // 4


Call = Callable[[BackendUnderTest, str, str, int], tuple[int, bool, str]]
"""Makes a call of a backend, in a dtype, of a case, of a length.

Returns the growth in bytes, whether the peak could be reset before it, and what is wrong with the numbers.
"""


def measured_call(call: Call, backend: BackendUnderTest, dtype: str, case: str) -> dict[str, Any] | None:
    """Return by how many bytes the peak grew during a call, and what is wrong with its numbers; None if it is refused."""
    with suppress(mha.KernelUnsupported):
        call(backend, dtype, case, 64)  # the library and its kernels load code on first use
    try:
        growth, was_reset, wrong = call(backend, dtype, case, LENGTH)
        if growth > limit() and was_reset:  # call again, now that everything is compiled
            growth = min(growth, call(backend, dtype, case, LENGTH)[0])
    except mha.KernelUnsupported:
        return None
    return {"bytes": growth, "wrong": wrong}


def measured(backend: BackendUnderTest, dtype: str, kernel: str, case: str) -> dict[str, Any] | None:
    """Measure attention by a kernel."""
    with mha.use_kernel("attention", kernel):
        return measured_call(_call, backend, dtype, case)


def numbers(length: int) -> np.ndarray:
    """Return numbers (1, length, WIDTH); query, key and value are these plus 0, 1 and 2."""
    return np.sin(np.arange(length * WIDTH).reshape(1, length, WIDTH))


def rows(length: int) -> np.ndarray:
    """Return the indices of the queries whose results are compared."""
    compared: np.ndarray = np.unique(np.linspace(0, length - 1, ROWS).astype(int))
    return compared


def oracle_options(backend: BackendUnderTest, dtype: str, case: MemoryCase, length: int) -> dict[str, Any]:
    """Return the options for the oracle, of the queries that are compared; a bias holds numbers of the dtype."""
    options = case.oracle(rows(length)[:, None], np.arange(length), length)
    return options if case is not CASES["array_bias"] else {"bias": backend.rounded(options["bias"], dtype)}


def _call(backend: BackendUnderTest, dtype: str, case: str, length: int) -> tuple[int, bool, str]:
    query, key, value = (backend.array(numbers(length) + at, dtype) for at in range(3))
    options = CASES[case].options(backend, dtype, length)
    was_reset, before = reset_peak(), peak()
    # a lazy library computes when its numbers are read
    out = backend.numpy(mha.scaled_dot_product_attention(query, key, value, **options))
    growth, compared = peak() - before, rows(length)
    oracle = oracle_options(backend, dtype, CASES[case], length)
    exact = backend.exact_attention(
        backend.numpy(query)[:, compared], backend.numpy(key), backend.numpy(value), dtype=dtype, **oracle
    )
    try:
        exact.assert_near(out[:, compared])
    except AssertionError as error:
        return growth, was_reset, str(error)
    return growth, was_reset, ""
