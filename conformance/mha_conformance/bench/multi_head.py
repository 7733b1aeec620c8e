"""Multi-head attention with its projections."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from .. import oracle
from ..oracle.tolerance import UNIT_ROUNDOFF, assert_within
from . import plain_numpy
from .layer import ROUNDINGS
from .limits import MATRIX, Limit
from .timing import Work, loaded, on

SEED = 0


@dataclass(frozen=True)
class MultiHead:
    """Multi-head attention on standard normal float32 numbers (batch, length, d_model)."""

    batch: int
    length: int
    d_model: int
    num_heads: int

    def arrays(self) -> list[np.ndarray]:
        """Return x, w_q, w_k, w_v and w_o."""
        rng = np.random.default_rng(SEED)
        x = rng.standard_normal((self.batch, self.length, self.d_model), dtype=np.float32)
        size = np.float32(self.d_model**-0.5)
        return [x, *(rng.standard_normal((self.d_model, self.d_model), dtype=np.float32) * size for _ in range(4))]

    def small(self) -> MultiHead:
        """Return the same problem with one sequence of 16 tokens."""
        return replace(self, batch=1, length=16)

    @property
    def limit(self) -> Limit:
        """The matrix products: four with d_model x d_model weights, two over all pairs."""
        return Limit(MATRIX, 2 * self.batch * self.length * (4 * self.d_model**2 + 2 * self.length * self.d_model))

    def judge(self) -> Callable[[Any], None]:
        """Return a check of the whole answer against float64."""
        x, w_q, w_k, w_v, w_o = (array.astype(np.float64) for array in self.arrays())

        def heads(y: np.ndarray) -> np.ndarray:
            return y.reshape(self.batch, self.length, self.num_heads, -1).swapaxes(1, 2)

        out, _, _ = oracle.attention(heads(x @ w_q), heads(x @ w_k), heads(x @ w_v))
        exact = out.swapaxes(1, 2).reshape(x.shape) @ w_o
        bound = np.full(exact.shape, ROUNDINGS * UNIT_ROUNDOFF["float32"] * np.abs(exact).max())
        return lambda answer: assert_within("multi_head_attention", answer, exact, bound)

    def ours(self, backend: str) -> Work:
        """Return the call of mha_core on a backend."""
        import mha_core as mha

        library = loaded(backend)
        x, w_q, w_k, w_v, w_o = (library.from_numpy(array) for array in self.arrays())
        return on(library, lambda: mha.multi_head_attention(x, w_q, w_k, w_v, w_o, self.num_heads))

    def plain(self) -> Work:
        """Return the call in plain NumPy."""
        x, w_q, w_k, w_v, w_o = self.arrays()
        return Work(lambda: plain_numpy.multi_head(x, w_q, w_k, w_v, w_o, self.num_heads), lambda out: out)
