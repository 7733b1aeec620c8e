"""Memory that attention takes beyond its arguments at length 8192, in a new process, and whether its numbers are right.

    python -m mha_core.conformance.probes.attention_memory BACKEND DTYPE [DEVICE] [--plugin MODULE] ...

prints JSON: for each kernel and the algebra, for each case, by how many bytes the process grew after its arguments were made,
and what is wrong with the numbers; null if the kernel refuses the case. If the system cannot reset the peak, a case counts only
memory beyond that of earlier cases: excessive memory shows in the first.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

import mha_core as mha

from ..backend import BackendUnderTest
from ..oracle.tolerance import assert_within, exact_attention
from .each_kernel import report
from .peak_memory import peak, reset_peak

LENGTH = 8192  # scores of one head are 256 MB in float32, far more than everything else in the process
WIDTH = 16
ROWS = 13  # of the result are compared with the oracle


@dataclass(frozen=True)
class Case:
    """Options of a call, in which all heads and batch elements share arrays."""

    options: Callable[[BackendUnderTest, str, int], dict[str, Any]]
    """Function of the backend, the dtype and L = S."""
    oracle: Callable[[np.ndarray, np.ndarray, int], dict[str, Any]]
    """Function of query positions (rows, 1), key positions (S) and S; returns the options as the oracle takes them."""


CASES = {
    "plain": Case(lambda backend, dtype, n: {}, lambda q, k, n: {}),
    "causal": Case(lambda backend, dtype, n: {"mask": mha.causal()}, lambda q, k, n: {"allowed": k <= q}),
    "window": Case(
        lambda backend, dtype, n: {"mask": mha.window(n // 4, n // 4)}, lambda q, k, n: {"allowed": abs(k - q) <= n // 4}
    ),
    "packed": Case(
        lambda backend, dtype, n: {"mask": mha.packed(_sequences(n)) & mha.causal()},
        lambda q, k, n: {"allowed": (_sequence_ids(n)[q] == _sequence_ids(n)[k]) & (k <= q)},
    ),
    "key_lengths": Case(
        lambda backend, dtype, n: {"mask": mha.key_lengths(backend.array(np.asarray(n - n // 8)))},
        lambda q, k, n: {"allowed": k + 0 * q < n - n // 8},
    ),
    "alibi": Case(lambda backend, dtype, n: {"bias": mha.alibi(1)}, lambda q, k, n: {"bias": -(2.0**-8) * abs(k - q)}),
    "array_mask": Case(lambda backend, dtype, n: {"mask": _stripes(backend, n)}, lambda q, k, n: {"allowed": q % 3 != k % 3}),
    "array_bias": Case(
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


def measured(backend: BackendUnderTest, dtype: str, kernel: str, case: str) -> dict[str, Any] | None:
    """Return by how many bytes the peak grew during a call, and what is wrong with its numbers; None if it is refused."""
    with mha.use_kernel("attention", kernel):
        with suppress(mha.KernelUnsupported):
            _call(backend, dtype, case, 64)  # the library and its kernels load code on first use
        try:
            growth, was_reset, wrong = _call(backend, dtype, case, LENGTH)
            if growth > limit() and was_reset:  # call again, now that everything is compiled
                growth = min(growth, _call(backend, dtype, case, LENGTH)[0])
        except mha.KernelUnsupported:
            return None
    return {"bytes": growth, "wrong": wrong}


def _call(backend: BackendUnderTest, dtype: str, case: str, length: int) -> tuple[int, bool, str]:
    """Return the growth in bytes during one call, whether the peak could be reset before it, and what is wrong."""
    numbers = np.sin(np.arange(length * WIDTH).reshape(1, length, WIDTH))
    query, key, value = (backend.array(numbers + at, dtype) for at in range(3))
    options = CASES[case].options(backend, dtype, length)
    was_reset, before = reset_peak(), peak()
    # a lazy library computes when its numbers are read
    out = backend.numpy(mha.scaled_dot_product_attention(query, key, value, **options))
    growth = peak() - before
    rows = np.unique(np.linspace(0, length - 1, ROWS).astype(int))
    exact = exact_attention(
        backend.numpy(query)[:, rows],
        backend.numpy(key),
        backend.numpy(value),
        dtype=dtype,
        rounds_weights=backend.rounds_weights,
        **_oracle(backend, dtype, case, rows[:, None], length),
    )
    try:
        assert_within("out", out[:, rows], exact.out, exact.out_bound)
    except AssertionError as error:
        return growth, was_reset, str(error)
    return growth, was_reset, ""


def _oracle(backend: BackendUnderTest, dtype: str, case: str, rows: np.ndarray, length: int) -> dict[str, Any]:
    """Return the options for the oracle; a bias that is an array holds numbers of the dtype."""
    options = CASES[case].oracle(rows, np.arange(length), length)
    return options if case != "array_bias" else {"bias": backend.rounded(options["bias"], dtype)}


def main(arguments: list[str] | None = None) -> None:
    """Print what was measured as JSON."""
    prog = "python -m mha_core.conformance.probes.attention_memory"
    report("attention", CASES, measured, prog=prog, about=__doc__, arguments=arguments)


if __name__ == "__main__":
    main()
