"""Memory that gradients of attention take beyond their arguments at length 8192, and whether they are right."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

import mha_core as mha

from ..backend import BackendUnderTest
from ..oracle.attention_gradients import attention_gradients
from ..oracle.tolerance import assert_within
from .attention_memory import CASES as OF_ATTENTION
from .attention_memory import MemoryCase, measured_call, numbers, oracle_options, rows
from .peak_memory import peak, reset_peak


def _table(backend: BackendUnderTest, dtype: str) -> Any:
    return backend.array(np.cos(np.arange(32.0))[:, None], dtype)


CASES = {
    **{name: OF_ATTENTION[name] for name in ("plain", "causal", "packed", "alibi", "array_mask", "array_bias")},
    "relative_bias": MemoryCase(
        lambda backend, dtype, n: {"bias": mha.relative_bias(_table(backend, dtype), bidirectional=True, max_distance=128)},
        lambda q, k, n: {"bias": 0.0},  # its table has a gradient; its numbers are judged at other lengths
    ),
    "softcap": MemoryCase(lambda backend, dtype, n: {"softcap": 2.0}, lambda q, k, n: {"softcap": 2.0}),
    "sink": MemoryCase(
        lambda backend, dtype, n: {"sink": backend.array(np.ones(1), dtype)}, lambda q, k, n: {"sink": np.ones(1)}
    ),
}
_UNCHECKED = ("relative_bias",)
_FIXED = ("array_bias",)
"""Cases whose bias is no smaller than the scores, and so is its gradient, which is not asked for."""


def measured(backend: BackendUnderTest, dtype: str, kernel: str, case: str) -> dict[str, Any] | None:
    """Measure the gradients of attention by a kernel."""
    with mha.use_kernel("attention_vjp", kernel):
        return measured_call(_call, backend, dtype, case)


def _arrays(length: int) -> list[np.ndarray]:
    """Return query, key, value and d_out, which is 0 except in the rows that are compared."""
    x = numbers(length)
    return [*(x + at for at in range(3)), np.where(np.isin(np.arange(length), rows(length))[:, None], x + 0.5, 0)]


def _call(backend: BackendUnderTest, dtype: str, case: str, length: int) -> tuple[int, bool, str]:
    *given, d_out = (backend.array(x, dtype) for x in _arrays(length))
    options = CASES[case].options(backend, dtype, length)
    fixed = {name: options.pop(name) for name in ("bias",) if name in options and case in _FIXED}
    d_lse = d_out[..., 0]
    d_lse = d_lse if dtype in ("float32", "float64") else backend.xp.astype(d_lse, backend.xp.float32)
    was_reset, before = reset_peak(), peak()
    _, pullback = mha.vjp(partial(mha.attention_state, **fixed), *given, **options)
    gradients = pullback(mha.AttentionState(d_out, d_lse))
    results = [backend.numpy(x) for x in gradients]  # a lazy library computes when its numbers are read
    growth = peak() - before
    return growth, was_reset, "" if case in _UNCHECKED else _wrong(backend, dtype, case, length, results)


def _wrong(backend: BackendUnderTest, dtype: str, case: str, length: int, gradients: list[np.ndarray]) -> str:
    """Compare with the oracle, to which only the few queries matter for which a gradient is given."""
    compared = rows(length)
    query, key, value, d_out = (backend.rounded(x, dtype) for x in _arrays(length))
    query, d_out = query[:, compared], d_out[:, compared]
    options = oracle_options(backend, dtype, CASES[case], length)
    options |= {"dtype": dtype, "rounds_weights": backend.rounds_weights}
    exact = attention_gradients(query, key, value, d_out, d_out[..., 0], **options)
    try:
        for name, x in zip(("query", "key", "value"), gradients, strict=True):
            assert_within(f"d_{name}", x[:, compared] if name == "query" else x, *exact[name])
    except AssertionError as error:
        return str(error)
    return "" if not np.delete(gradients[0], compared, axis=1).any() else "d_query is not 0 where d_out and d_lse are"
