"""Encoder layer of the base Transformer, with d_model 512, and multi-head attention alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..oracle.layers import Layers
from ..oracle.tolerance import UNIT_ROUNDOFF, assert_within
from . import plain_numpy
from .limits import MATRIX, Limit
from .timing import Work, aligned, loaded, on

SEED = 0
D_MODEL, NUM_HEADS, D_FF = 512, 8, 2048
ROUNDINGS = 200  # of the greatest number in the result; observed errors are 10 to 20


@dataclass(frozen=True)
class Layer:
    """An encoder layer with 8 heads, d_ff 2048 and GELU, on float32 numbers (batch, length, 512)."""

    batch: int
    length: int
    d_model, num_heads, d_ff = D_MODEL, NUM_HEADS, D_FF
    formula = "encoder_layer"  # of the oracle

    def arrays(self) -> tuple[np.ndarray, Any]:
        """Return x and the layer on NumPy. No bias is 0 and no norm weight is 1, so that an omitted one changes the answer."""
        rng = np.random.default_rng(SEED)
        x = rng.standard_normal((self.batch, self.length, self.d_model), dtype=np.float32)
        return aligned(x), self.layer(rng).map(aligned)

    def layer(self, rng: np.random.Generator) -> Any:
        """Return the layer on NumPy."""
        import mha_core as mha

        sizes: dict[str, Any] = {"d_model": self.d_model, "num_heads": self.num_heads, "d_ff": self.d_ff}
        made = mha.EncoderLayer.init(**sizes, activation="gelu", seed=SEED, backend="numpy")
        return made.map(lambda w: w + 0.02 * rng.standard_normal(w.shape, dtype=np.float32))

    def small(self) -> Layer:
        """Return the same problem with one sequence of 16 tokens."""
        return replace(self, batch=1, length=16)

    @property
    def limit(self) -> Limit:
        """The matrix products: four with d_model x d_model weights, two with d_model x d_ff, two over all pairs."""
        per_token = 2 * self.d_model * (4 * self.d_model + 2 * self.d_ff + 2 * self.length)
        return Limit(MATRIX, self.batch * self.length * per_token)

    def judge(self) -> Callable[[Any], None]:
        """Return a check of the whole answer against float64."""
        x, layer = self.arrays()
        wide = layer.to("numpy", dtype="float64")
        exact = getattr(Layers(), self.formula)(x.astype(np.float64), wide)
        bound = np.full(exact.shape, ROUNDINGS * UNIT_ROUNDOFF["float32"] * np.abs(exact).max())
        return lambda answer: assert_within(self.formula, answer, exact, bound)

    def ours(self, backend: str) -> Work:
        """Return the call of mha_core's layer on a backend."""
        library = loaded(backend)
        numbers, layer = self.arrays()
        x, layer = library.from_numpy(numbers), layer.to(backend)
        return on(library, lambda: layer(x))

    def plain(self) -> Work:
        """Return the call in plain NumPy."""
        x, layer = self.arrays()
        return Work(lambda: plain_numpy.encoder_layer(x, layer), lambda out: out)


@dataclass(frozen=True)
class MultiHead(Layer):
    """Multi-head attention with its projections on standard normal float32 numbers (batch, length, d_model)."""

    d_model: int
    num_heads: int
    d_ff = 0
    formula = "multi_head"

    def layer(self, rng: np.random.Generator) -> Any:
        """Return the layer on NumPy."""
        import mha_core as mha

        size = np.float32(self.d_model**-0.5)
        weights: Any = [rng.standard_normal((self.d_model, self.d_model), dtype=np.float32) * size for _ in range(4)]
        return mha.MultiHeadAttention(**dict(zip(("w_q", "w_k", "w_v", "w_o"), weights, strict=True)), num_heads=self.num_heads)

    def ours(self, backend: str) -> Work:
        """Return the call of mha_core on a backend."""
        import mha_core as mha

        library = loaded(backend)
        numbers, layer = self.arrays()
        x, (w_q, w_k, w_v, w_o) = library.from_numpy(numbers), layer.to(backend).arrays().values()
        return on(library, lambda: mha.multi_head_attention(x, w_q, w_k, w_v, w_o, self.num_heads))

    def plain(self) -> Work:
        """Return the call in plain NumPy."""
        x, layer = self.arrays()
        w_q, w_k, w_v, w_o = layer.arrays().values()
        return Work(lambda: plain_numpy.multi_head(x, w_q, w_k, w_v, w_o, self.num_heads), lambda out: out)
