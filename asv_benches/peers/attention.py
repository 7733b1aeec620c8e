"""Attention beside torch's fused kernels, and beside the three lines of NumPy that everyone writes first."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from .contender import Work
from .limits import COPY, MATRIX, Limit
from .ours import loaded, work

SEED = 0
CHECKED = 2**24  # scores; the exact answer and its bound hold some ten arrays of float64 of that size


@dataclass(frozen=True)
class Attention:
    """One call on float32 numbers, standard normal.

    keys: as many as queries, unless told. window: how many keys a query sees, its own and those before it.
    stretch: what the query is multiplied by, for scores of a wide range.
    """

    batch: int
    heads: int
    queries: int
    head_dim: int
    keys: int | None = None
    causal: bool = False
    window: int | None = None
    stretch: float = 1.0

    def arrays(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """query (batch, heads, queries, head_dim), key and value (batch, heads, keys, head_dim)."""
        rng = np.random.default_rng(SEED)
        lengths = (self.queries, self.keys or self.queries, self.keys or self.queries)
        query, key, value = (
            rng.standard_normal((self.batch, self.heads, length, self.head_dim), dtype=np.float32) for length in lengths
        )
        return query * np.float32(self.stretch), key, value

    def seen(self, rows: np.ndarray) -> np.ndarray:
        """(len(rows), keys): which keys these queries see."""
        distance = rows[:, None] - np.arange(self.keys or self.queries)
        if self.window is not None:
            return (distance >= 0) & (distance < self.window)
        return distance >= 0 if self.causal else np.ones(distance.shape, dtype=bool)

    @property
    def limit(self) -> Limit:
        """Two products over the pairs that are seen; for a single query, its keys and values read once."""
        if self.queries == 1:
            return Limit(COPY, 2 * 4 * self.batch * self.heads * (self.keys or 1) * self.head_dim)
        pairs = self.queries * (self.keys or self.queries)
        if self.causal or self.window:
            pairs = int(np.minimum(np.arange(1, self.queries + 1), self.window or self.queries).sum())
        return Limit(MATRIX, 4 * self.batch * self.heads * pairs * self.head_dim)

    def judge(self) -> Callable[[Any], None]:
        """Every answer, or of a long one evenly chosen rows of each head, within the bound that arithmetic gives."""
        from mha_core.conformance.tolerance import assert_within, exact_attention

        query, key, value = self.arrays()
        scores = self.batch * self.heads * self.queries * (self.keys or self.queries)
        rows = np.unique(np.linspace(0, self.queries - 1, max(1, self.queries * CHECKED // max(scores, CHECKED)), dtype=int))
        exact = exact_attention(query[..., rows, :], key, value, dtype="float32", allowed=self.seen(rows))

        def check(answer: Any) -> None:
            assert answer.shape == query.shape, f"out has shape {answer.shape}; expected {query.shape}"
            assert_within("out", answer[..., rows, :], exact.out, exact.out_bound)

        return check


def ours(problem: Attention, backend: str) -> Work:
    import mha_core as mha

    there = loaded(backend)
    query, key, value = (there.from_numpy(x) for x in problem.arrays())
    mask = mha.window(problem.window - 1, 0) if problem.window else mha.causal() if problem.causal else None
    return work(there, lambda: mha.scaled_dot_product_attention(query, key, value, mask=mask))


def sdpa(problem: Attention) -> Work:
    """torch's; a window is a mask given as an array, which is made beforehand."""
    import torch

    query, key, value = map(torch.from_numpy, problem.arrays())
    mask = None if problem.window is None else torch.from_numpy(problem.seen(np.arange(problem.queries)))
    attend = torch.nn.functional.scaled_dot_product_attention

    def call() -> Any:
        return attend(query, key, value, attn_mask=mask, is_causal=problem.causal)

    return Work(call, lambda out: out.numpy(), mode=torch.inference_mode)


def naive(problem: Attention) -> Work:
    """softmax(Q K^T / sqrt(d)) V as in the tutorials, without a mask."""
    query, key, value = problem.arrays()
    root = math.sqrt(problem.head_dim)

    def attend() -> Any:
        scores = query @ key.swapaxes(-1, -2) / root
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        return weights / weights.sum(axis=-1, keepdims=True) @ value

    return Work(attend, lambda out: out)
