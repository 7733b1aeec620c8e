"""Attention problems on random numbers: full, causal, windowed, grouped-query, decoding and packed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from ..oracle.reference import rounded_to_int8
from ..oracle.tolerance import assert_within, exact_attention
from . import plain_numpy
from .limits import COPY, MATRIX, Limit
from .timing import Work, aligned, loaded, on

SEED = 0
CHECKED = 2**21  # scores; the exact answer and its bound hold about ten float64 arrays of this size
WHOLE = 2**26  # scores that plain NumPy computes in float64 at once: each array of them takes half a gigabyte
COARSE = 16  # times the greatest bound: the tolerance of rows that are not among those checked exactly


@dataclass(frozen=True)
class Attention:
    """One attention call on standard normal numbers."""

    batch: int
    heads: int
    queries: int
    head_dim: int
    keys: int | None = None
    """Number of keys; by default, the number of queries."""
    causal: bool = False
    window: int | None = None
    """Number of keys that a query sees: its own and those before it."""
    stretch: float = 1.0
    """Factor applied to the query, to give scores a wide range."""
    kv_heads: int | None = None
    """Number of key and value heads; by default, `heads`."""
    dtype: str = "float32"
    """float32, bfloat16, or int8: then keys and values are in int8, as in a cache, and queries in float32."""

    @property
    def query_dtype(self) -> str:
        """The dtype of the query and the result."""
        return "float32" if self.dtype == "int8" else self.dtype

    def arrays(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return query (batch, heads, queries, head_dim), key and value (batch, kv_heads, keys, head_dim), in float32.

        Their numbers are those that ``dtype`` has.
        """
        rng = np.random.default_rng(SEED)
        kv_heads, keys = self.kv_heads or self.heads, self.keys or self.queries
        query, key, value = (
            rng.standard_normal((self.batch, heads, length, self.head_dim), dtype=np.float32)
            for heads, length in ((self.heads, self.queries), (kv_heads, keys), (kv_heads, keys))
        )
        if self.dtype == "int8":
            key, value = (rounded_to_int8(x.astype(np.float64), group=self.head_dim).astype(np.float32) for x in (key, value))
        arrays = (query * np.float32(self.stretch), key, value)
        query, key, value = map(aligned, map(_bfloat16, arrays) if self.dtype == "bfloat16" else arrays)
        return query, key, value

    def small(self) -> Attention:
        """Return a problem of the same kind with at most 64 queries and keys."""
        return replace(self, batch=1, queries=min(self.queries, 64), keys=None if self.keys is None else min(self.keys, 64))

    def seen(self, rows: np.ndarray) -> np.ndarray:
        """Return a boolean array (len(rows), keys): the keys that each of these queries sees."""
        distance = rows[:, None] - np.arange(self.keys or self.queries)
        if self.window is not None:
            return (distance >= 0) & (distance < self.window)
        return distance >= 0 if self.causal else np.ones(distance.shape, dtype=bool)

    def allowed(self) -> np.ndarray | None:
        """Return the whole mask as an array; None if there is none."""
        return self.seen(np.arange(self.queries)) if self.causal or self.window else None

    @property
    def limit(self) -> Limit:
        """Two products over the visible (query, key) pairs; for a single query, reading its keys and values once."""
        if self.queries == 1:
            row = self.head_dim + 4 if self.dtype == "int8" else 4 * self.head_dim
            return Limit(COPY, 2 * self.batch * (self.kv_heads or self.heads) * (self.keys or 1) * row)
        pairs = self.queries * (self.keys or self.queries)
        if self.causal or self.window:
            pairs = int(np.minimum(np.arange(1, self.queries + 1), self.window or self.queries).sum())
        return Limit(MATRIX, 4 * self.batch * self.heads * pairs * self.head_dim)

    def judge(self) -> Callable[[Any], None]:
        """Return a check of the answer.

        Rows drawn from each head must lie within the rounding bound, and all rows within sixteen times its greatest value. For
        very long attention the other rows need only be finite: their exact answer would take hours.
        """
        query, key, value = self.arrays()
        scores = self.batch * self.heads * self.queries * (self.keys or self.queries)
        count = max(1, self.queries * CHECKED // max(scores, CHECKED))
        rows = np.sort(np.random.default_rng(SEED).permutation(self.queries)[:count])
        some, rounds = query[..., rows, :], self.query_dtype != "float32"
        exact = exact_attention(some, key, value, dtype=self.query_dtype, rounds_weights=rounds, **self.exact_options(rows))
        whole = self._whole() if scores <= WHOLE else None

        def check(answer: Any) -> None:
            assert answer.shape == query.shape, f"out has shape {answer.shape}; expected {query.shape}"
            assert np.isfinite(answer).all(), "out is not finite"
            assert_within("out", answer[..., rows, :], exact.out, exact.out_bound)
            if whole is not None:
                assert_within("out", answer, whole, np.full(whole.shape, COARSE * exact.out_bound.max()))

        return check

    def exact_options(self, rows: np.ndarray) -> dict[str, Any]:
        """Return the options of the exact answer for these queries."""
        return {"allowed": self.seen(rows)}

    def _whole(self) -> np.ndarray | None:
        """Return the answer of plain NumPy in float64."""
        query, key, value = (x.astype(np.float64) for x in self.arrays())
        return plain_numpy.attention(query, key, value, self.allowed())

    def ours(self, backend: str) -> Work:
        """Return the call of mha_core on a backend."""
        import mha_core as mha

        library = loaded(backend)
        dtype = getattr(library.xp, self.query_dtype)
        query, key, value = (library.xp.astype(library.from_numpy(x), dtype, copy=False) for x in self.arrays())
        if self.dtype == "int8":
            key, value = map(mha.quantize_rows, (key, value))
        mask = mha.window(self.window - 1, 0) if self.window else mha.causal() if self.causal else None
        is_half = self.query_dtype != "float32"
        return on(library, lambda: mha.scaled_dot_product_attention(query, key, value, mask=mask), wide=is_half)

    def plain(self) -> Work:
        """Return the call in plain NumPy; its mask is made in advance."""
        arrays, allowed = self.arrays(), self.allowed()
        return Work(lambda: plain_numpy.attention(*arrays, allowed), lambda out: out)


def _bfloat16(x: np.ndarray) -> np.ndarray:
    """Round finite float32 numbers to the nearest that bfloat16 has, ties to even."""
    bits = x.view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) & np.uint32(0xFFFF0000)).view(np.float32)


@dataclass(frozen=True)
class Packed:
    """Attention within packed sequences, on standard normal float32 numbers."""

    lengths: tuple[int, ...]
    """Length of each sequence, in order."""
    heads: int
    head_dim: int

    def arrays(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return query, key and value, each (heads, sum of the lengths, head_dim)."""
        rng = np.random.default_rng(SEED)
        shape = (self.heads, sum(self.lengths), self.head_dim)
        query, key, value = (aligned(rng.standard_normal(shape, dtype=np.float32)) for _ in range(3))
        return query, key, value

    def small(self) -> Packed:
        """Return the same problem with sequences of 16 and 48 tokens."""
        return replace(self, lengths=(16, 48))

    @property
    def limit(self) -> Limit:
        """Two products over the pairs of each sequence."""
        return Limit(MATRIX, 4 * self.heads * self.head_dim * sum(length**2 for length in self.lengths))

    def _sequences(self) -> list[slice]:
        return [slice(start, stop) for start, stop in pairwise([0, *np.cumsum(self.lengths).tolist()])]

    def judge(self) -> Callable[[Any], None]:
        """Return a check of the whole answer against its rounding bound."""
        query, key, value = self.arrays()
        exact = [exact_attention(query[:, at], key[:, at], value[:, at], dtype="float32") for at in self._sequences()]
        out, bound = (np.concatenate(each, axis=-2) for each in ([x.out for x in exact], [x.out_bound for x in exact]))
        return lambda answer: assert_within("out", answer, out, bound)

    def ours(self, backend: str) -> Work:
        """Return the call of mha_core on a backend."""
        import mha_core as mha

        library = loaded(backend)
        query, key, value = (library.from_numpy(x) for x in self.arrays())
        mask = mha.packed(self.lengths)
        return on(library, lambda: mha.scaled_dot_product_attention(query, key, value, mask=mask))

    def plain(self) -> Work:
        """Return the call in plain NumPy, one sequence after another."""
        query, key, value = self.arrays()

        def attend() -> np.ndarray:
            outs = [plain_numpy.attention(query[:, at], key[:, at], value[:, at]) for at in self._sequences()]
            return np.concatenate(outs, axis=-2)

        return Work(attend, lambda out: out)
