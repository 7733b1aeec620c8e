"""How much memory attention takes beyond its arguments: run in a process of its own, which holds nothing else.

    python -m mha_core.conformance.peak BACKEND DTYPE [DEVICE] [--plugin MODULE] ...

prints, as JSON, by how many bytes the process grew in each case beyond what it held when its arguments were there. Where the
system cannot set the peak back, a case grows only by what it takes more than those before it: a fault shows in the first.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np

import mha_core as mha

from ..dispatch.registry import register
from .high_water import peak, set_back
from .subject import Subject, find

LENGTH = 8192  # scores of one head are 256 MB in float32: a dense implementation stands far above all else in the process
WIDTH = 16

# name: (subject, dtype, L = S) -> the options; arrays are shared by all heads and batch elements
CASES: dict[str, Callable[[Subject, str, int], dict[str, Any]]] = {
    "plain": lambda subject, dtype, n: {},
    "causal": lambda subject, dtype, n: {"mask": mha.causal()},
    "window": lambda subject, dtype, n: {"mask": mha.window(n // 4, n // 4)},
    "key_lengths": lambda subject, dtype, n: {"mask": mha.key_lengths(subject.array(np.asarray(n - n // 8)))},
    "alibi": lambda subject, dtype, n: {"bias": mha.alibi(1)},
    "array_mask": lambda subject, dtype, n: {"mask": _stripes(subject, n)},
    "array_bias": lambda subject, dtype, n: {"bias": _ramp(subject, dtype, n)},
}


def _stripes(subject: Subject, n: int) -> Any:
    """Made on the backend, as the ramp, and held; every row and column sees two thirds of the others."""
    third = subject.array(np.arange(n) % 3)
    mask = ~(third[:, None] == third[None, :])
    subject.numpy(mask[-1:, :])
    return mask


def _ramp(subject: Subject, dtype: str, n: int) -> Any:
    """One row, made as long as wide on the backend itself, and then held."""
    row = subject.array(np.linspace(-1.0, 1.0, n), dtype)
    bias = subject.xp.broadcast_to(row[None, :], (n, n)) + subject.array(np.zeros((n, 1)), dtype)
    subject.numpy(bias[-1:, :])  # a lazy library has made it when its numbers are read
    return bias


def limit(length: int = LENGTH) -> int:
    """A quarter of the least that the scores of one head take, in float32. Blocks of the algebra take a tenth of that."""
    return length * length * 4 // 4


def grown(subject: Subject, dtype: str, case: str) -> int:
    """By how much the peak grew during a call; where it is too much, during one more, when the library has compiled all."""
    _growth(subject, dtype, case, 64)  # what the library and its kernels load on first use
    growth, again = _growth(subject, dtype, case, LENGTH)
    return min(growth, _growth(subject, dtype, case, LENGTH)[0]) if growth > limit() and again else growth


def _growth(subject: Subject, dtype: str, case: str, length: int) -> tuple[int, bool]:
    """Of one call, and whether the peak could be set back before it."""
    numbers = np.sin(np.arange(length * WIDTH).reshape(1, length, WIDTH))
    query, key, value = (subject.array(numbers + at, dtype) for at in range(3))
    options = CASES[case](subject, dtype, length)
    is_set_back, before = set_back(), peak()
    # a lazy library has computed when its numbers are read
    subject.numpy(mha.scaled_dot_product_attention(query, key, value, **options))
    return peak() - before, is_set_back


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m mha_core.conformance.peak", description=__doc__.partition("\n")[0])
    parser.add_argument("backend")
    parser.add_argument("dtype")
    parser.add_argument("device", nargs="?")
    parser.add_argument("--case", choices=CASES, action="append")
    parser.add_argument("--plugin", action="append", default=[])
    given = parser.parse_args(arguments)
    for name in given.plugin:
        register(import_module(name))
    subject = find(given.backend, given.device, [given.dtype])
    print(json.dumps({case: grown(subject, given.dtype, case) for case in given.case or CASES}))


if __name__ == "__main__":
    main()
