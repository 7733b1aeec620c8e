"""Multi-head attention from weights, as the paper writes it: projections, heads, attention, and the output's projection."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..conformance import oracle
from ..conformance.oracle.tolerance import UNIT_ROUNDOFF, assert_within
from . import plain as written
from .layer import ROUNDINGS
from .limits import MATRIX, Limit
from .work import Work, loaded, on

SEED = 0


@dataclass(frozen=True)
class MultiHead:
    """(batch, length, d_model) in float32, standard normal, through weights that keep its size."""

    batch: int
    length: int
    d_model: int
    num_heads: int

    def arrays(self) -> list[np.ndarray]:
        """x, w_q, w_k, w_v, w_o."""
        rng = np.random.default_rng(SEED)
        x = rng.standard_normal((self.batch, self.length, self.d_model), dtype=np.float32)
        size = np.float32(self.d_model**-0.5)
        return [x, *(rng.standard_normal((self.d_model, self.d_model), dtype=np.float32) * size for _ in range(4))]

    def small(self) -> MultiHead:
        return replace(self, batch=1, length=16)

    @property
    def limit(self) -> Limit:
        """The products: four of d_model by d_model, two over all pairs."""
        return Limit(MATRIX, 2 * self.batch * self.length * (4 * self.d_model**2 + 2 * self.length * self.d_model))

    def judge(self) -> Callable[[Any], None]:
        """Against float64, all of it."""
        x, w_q, w_k, w_v, w_o = (array.astype(np.float64) for array in self.arrays())

        def heads(y: np.ndarray) -> np.ndarray:
            return y.reshape(self.batch, self.length, self.num_heads, -1).swapaxes(1, 2)

        out, _, _ = oracle.attention(heads(x @ w_q), heads(x @ w_k), heads(x @ w_v))
        exact = out.swapaxes(1, 2).reshape(x.shape) @ w_o
        bound = np.full(exact.shape, ROUNDINGS * UNIT_ROUNDOFF["float32"] * np.abs(exact).max())
        return lambda answer: assert_within("multi_head_attention", answer, exact, bound)

    def ours(self, backend: str) -> Work:
        import mha_core as mha

        there = loaded(backend)
        x, w_q, w_k, w_v, w_o = (there.from_numpy(array) for array in self.arrays())
        return on(there, lambda: mha.multi_head_attention(x, w_q, w_k, w_v, w_o, self.num_heads))

    def plain(self) -> Work:
        x, w_q, w_k, w_v, w_o = self.arrays()
        return Work(lambda: written.multi_head(x, w_q, w_k, w_v, w_o, self.num_heads), lambda out: out)
