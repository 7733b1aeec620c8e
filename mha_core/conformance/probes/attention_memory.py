"""Memory that attention takes beyond its arguments, measured in a new process.

    python -m mha_core.conformance.probes.attention_memory BACKEND DTYPE [DEVICE] [--plugin MODULE] ...

prints, as JSON, by how many bytes the process grew in each case after its arguments were made. If the system cannot reset the
peak, a case counts only memory beyond that of earlier cases: excessive memory shows in the first.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np

import mha_core as mha

from ...dispatch.registry import register
from ..backend import BackendUnderTest, find
from .peak_memory import peak, reset_peak

LENGTH = 8192  # scores of one head are 256 MB in float32, far more than everything else in the process
WIDTH = 16

# name: (backend, dtype, L = S) -> the options; all heads and batch elements share the arrays
CASES: dict[str, Callable[[BackendUnderTest, str, int], dict[str, Any]]] = {
    "plain": lambda backend, dtype, n: {},
    "causal": lambda backend, dtype, n: {"mask": mha.causal()},
    "window": lambda backend, dtype, n: {"mask": mha.window(n // 4, n // 4)},
    "key_lengths": lambda backend, dtype, n: {"mask": mha.key_lengths(backend.array(np.asarray(n - n // 8)))},
    "alibi": lambda backend, dtype, n: {"bias": mha.alibi(1)},
    "array_mask": lambda backend, dtype, n: {"mask": _stripes(backend, n)},
    "array_bias": lambda backend, dtype, n: {"bias": _ramp(backend, dtype, n)},
}


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


def grown(backend: BackendUnderTest, dtype: str, case: str) -> int:
    """Return by how many bytes the peak grew during a call; if it is too much, call again, now that everything is compiled."""
    _growth(backend, dtype, case, 64)  # the library and its kernels load code on first use
    growth, was_reset = _growth(backend, dtype, case, LENGTH)
    return min(growth, _growth(backend, dtype, case, LENGTH)[0]) if growth > limit() and was_reset else growth


def _growth(backend: BackendUnderTest, dtype: str, case: str, length: int) -> tuple[int, bool]:
    """Return the growth in bytes during one call, and whether the peak could be reset before it."""
    numbers = np.sin(np.arange(length * WIDTH).reshape(1, length, WIDTH))
    query, key, value = (backend.array(numbers + at, dtype) for at in range(3))
    options = CASES[case](backend, dtype, length)
    was_reset, before = reset_peak(), peak()
    # a lazy library computes when its numbers are read
    backend.numpy(mha.scaled_dot_product_attention(query, key, value, **options))
    return peak() - before, was_reset


def main(arguments: list[str] | None = None) -> None:
    """Print the growth in each case as JSON."""
    prog = "python -m mha_core.conformance.probes.attention_memory"
    parser = argparse.ArgumentParser(prog=prog, description=__doc__.partition("\n")[0])
    parser.add_argument("backend")
    parser.add_argument("dtype")
    parser.add_argument("device", nargs="?")
    parser.add_argument("--case", choices=CASES, action="append")
    parser.add_argument("--plugin", action="append", default=[])
    given = parser.parse_args(arguments)
    for name in given.plugin:
        register(import_module(name))
    backend = find(given.backend, given.device, [given.dtype])
    print(json.dumps({case: grown(backend, given.dtype, case) for case in given.case or CASES}))


if __name__ == "__main__":
    main()
