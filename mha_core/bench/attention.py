"""Attention on random numbers: over all keys, causal, in a window, with grouped queries, for one query, in packed sequences."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from ..conformance.oracle.tolerance import assert_within, exact_attention
from . import plain as written
from .limits import COPY, MATRIX, Limit
from .work import Work, loaded, on

SEED = 0
CHECKED = 2**21  # scores; the exact answer and its bound hold some ten arrays of float64 of that size
WHOLE = 2**26  # scores that plain NumPy computes in float64 at once: half a gigabyte for each array of them
COARSE = 16  # times the greatest bound


@dataclass(frozen=True)
class Attention:
    """One call on float32 numbers, standard normal.

    keys: as many as queries, unless told. kv_heads: of keys and values, as many as heads unless told.
    window: how many keys a query sees, its own and those before it.
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
    kv_heads: int | None = None

    def arrays(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """query (batch, heads, queries, head_dim), key and value (batch, kv_heads, keys, head_dim)."""
        rng = np.random.default_rng(SEED)
        kv_heads, keys = self.kv_heads or self.heads, self.keys or self.queries
        query, key, value = (
            rng.standard_normal((self.batch, heads, length, self.head_dim), dtype=np.float32)
            for heads, length in ((self.heads, self.queries), (kv_heads, keys), (kv_heads, keys))
        )
        return query * np.float32(self.stretch), key, value

    def small(self) -> Attention:
        return replace(self, batch=1, queries=min(self.queries, 64), keys=None if self.keys is None else min(self.keys, 64))

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
            return Limit(COPY, 2 * 4 * self.batch * (self.kv_heads or self.heads) * (self.keys or 1) * self.head_dim)
        pairs = self.queries * (self.keys or self.queries)
        if self.causal or self.window:
            pairs = int(np.minimum(np.arange(1, self.queries + 1), self.window or self.queries).sum())
        return Limit(MATRIX, 4 * self.batch * self.heads * pairs * self.head_dim)

    def judge(self) -> Callable[[Any], None]:
        """Rows drawn from each head within the bound that arithmetic gives, and all within sixteen times the greatest of it.

        Of very long attention the other rows must be finite, no more: their exact answer would take hours.
        """
        query, key, value = self.arrays()
        scores = self.batch * self.heads * self.queries * (self.keys or self.queries)
        count = max(1, self.queries * CHECKED // max(scores, CHECKED))
        rows = np.sort(np.random.default_rng(SEED).permutation(self.queries)[:count])
        exact = exact_attention(query[..., rows, :], key, value, dtype="float32", allowed=self.seen(rows))
        whole = self._whole() if scores <= WHOLE else None

        def check(answer: Any) -> None:
            assert answer.shape == query.shape, f"out has shape {answer.shape}; expected {query.shape}"
            assert np.isfinite(answer).all(), "out is not finite"
            assert_within("out", answer[..., rows, :], exact.out, exact.out_bound)
            if whole is not None:
                assert_within("out", answer, whole, np.full(whole.shape, COARSE * exact.out_bound.max()))

        return check

    def _whole(self) -> np.ndarray:
        """Plain NumPy in float64."""
        allowed = self.seen(np.arange(self.queries)) if self.causal or self.window else None
        query, key, value = (x.astype(np.float64) for x in self.arrays())
        return written.attention(query, key, value, allowed)

    def ours(self, backend: str) -> Work:
        import mha_core as mha

        there = loaded(backend)
        query, key, value = (there.from_numpy(x) for x in self.arrays())
        mask = mha.window(self.window - 1, 0) if self.window else mha.causal() if self.causal else None
        return on(there, lambda: mha.scaled_dot_product_attention(query, key, value, mask=mask))

    def plain(self) -> Work:
        """A mask is made beforehand."""
        query, key, value = self.arrays()
        allowed = self.seen(np.arange(self.queries)) if self.causal or self.window else None
        return Work(lambda: written.attention(query, key, value, allowed), lambda out: out)


@dataclass(frozen=True)
class Packed:
    """Sequences of these lengths laid end to end, each seeing itself alone: float32, standard normal."""

    lengths: tuple[int, ...]
    heads: int
    head_dim: int

    def arrays(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """query, key and value, each (heads, sum of the lengths, head_dim)."""
        rng = np.random.default_rng(SEED)
        shape = (self.heads, sum(self.lengths), self.head_dim)
        query, key, value = (rng.standard_normal(shape, dtype=np.float32) for _ in range(3))
        return query, key, value

    def small(self) -> Packed:
        return replace(self, lengths=(16, 48))

    @property
    def limit(self) -> Limit:
        return Limit(MATRIX, 4 * self.heads * self.head_dim * sum(length**2 for length in self.lengths))

    def _parts(self) -> list[slice]:
        return [slice(start, stop) for start, stop in pairwise([0, *np.cumsum(self.lengths).tolist()])]

    def judge(self) -> Callable[[Any], None]:
        query, key, value = self.arrays()
        exact = [exact_attention(query[:, part], key[:, part], value[:, part], dtype="float32") for part in self._parts()]
        out, bound = (np.concatenate(each, axis=-2) for each in ([x.out for x in exact], [x.out_bound for x in exact]))
        return lambda answer: assert_within("out", answer, out, bound)

    def ours(self, backend: str) -> Work:
        import mha_core as mha

        there = loaded(backend)
        query, key, value = (there.from_numpy(x) for x in self.arrays())
        mask = mha.packed(self.lengths)
        return on(there, lambda: mha.scaled_dot_product_attention(query, key, value, mask=mask))

    def plain(self) -> Work:
        """One sequence after another."""
        query, key, value = self.arrays()

        def attend() -> np.ndarray:
            parts = [written.attention(query[:, part], key[:, part], value[:, part]) for part in self._parts()]
            return np.concatenate(parts, axis=-2)

        return Work(attend, lambda out: out)
