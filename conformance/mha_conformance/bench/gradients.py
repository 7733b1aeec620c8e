"""Attention with its gradients, and these alone, on random numbers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..oracle.attention_gradients import attention_gradients
from ..oracle.tolerance import assert_within
from . import plain_numpy
from .attention import SEED, Attention
from .limits import MATRIX, Limit
from .timing import Work, aligned, loaded

_HEADS = 2  # of the first and of the last batch element: heads whose gradients are checked


@dataclass(frozen=True)
class AttentionStep(Attention):
    """An attention call, and the gradients of query, key and value for a standard normal gradient of the result."""

    def d_out(self) -> np.ndarray:
        """Return the gradient of the result, (batch, heads, queries, head_dim)."""
        shape = self.batch, self.heads, self.queries, self.head_dim
        return aligned(np.random.default_rng(SEED + 1).standard_normal(shape, dtype=np.float32))

    @property
    def limit(self) -> Limit:
        """Seven products over the visible pairs, where the result alone takes two."""
        return Limit(MATRIX, 3.5 * super().limit.amount)

    def judge(self) -> Callable[[Any], None]:
        """Return a check of two heads of the first and of the last batch element against the rounding bound."""
        arrays, d_out, allowed = self.arrays(), self.d_out(), self.allowed()
        places = sorted({(at, head) for at in (0, self.batch - 1) for head in (0, self.heads - 1)})[: 2 * _HEADS]
        exact = {}
        for at, head in places:
            query, key, value, d = (x[at, head : head + 1] for x in (*arrays, d_out))
            exact[at, head] = attention_gradients(query, key, value, d, dtype="float32", allowed=allowed)

        def check(answer: Any) -> None:
            for name, gradient, x in zip(("query", "key", "value"), answer, arrays, strict=True):
                assert gradient.shape == x.shape, f"the gradient of {name} has shape {gradient.shape}; expected {x.shape}"
                assert np.isfinite(gradient).all(), f"the gradient of {name} is not finite"
                for (at, head), named in exact.items():
                    assert_within(f"d_{name}", gradient[at, head : head + 1], *named[name])

        return check

    def ours(self, backend: str) -> Work:
        """Return the call of mha_core and of its pullback on a backend."""
        import mha_core as mha

        library = loaded(backend)
        arrays, d_out = [library.from_numpy(x) for x in self.arrays()], library.from_numpy(self.d_out())
        mask = mha.causal() if self.causal else None

        def forward() -> Callable[[Any], Any]:
            return mha.vjp(mha.scaled_dot_product_attention, *arrays, mask=mask)[1]

        return Work(self._timed(forward, d_out), lambda answer: list(map(library.to_numpy, answer)), library.record.synchronize)

    def _timed(self, forward: Callable[[], Callable[[Any], Any]], d_out: Any) -> Callable[[], Any]:
        return lambda: forward()(d_out)

    def plain(self) -> Work:
        """Return the same in plain NumPy, which keeps all weights."""
        arrays, d_out, allowed = self.arrays(), self.d_out(), self.allowed()
        return Work(lambda: plain_numpy.attention_gradients(*arrays, d_out, allowed), lambda answer: answer)


@dataclass(frozen=True)
class AttentionBackward(AttentionStep):
    """The gradients alone, after a call that is not timed."""

    @property
    def limit(self) -> Limit:
        """Five products over the visible pairs."""
        return Limit(MATRIX, 5 / 7 * super().limit.amount)

    def _timed(self, forward: Callable[[], Callable[[Any], Any]], d_out: Any) -> Callable[[], Any]:
        pullback = forward()
        return lambda: pullback(d_out)
