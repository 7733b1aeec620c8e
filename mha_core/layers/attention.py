"""The multi-head attention layer."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Never, Self, Unpack

from ..algebra.arrays import Array
from ..algebra.int8 import Weight
from ..ops.multi_head import multi_head_attention, multi_head_weights
from ..ops.options import Options, shows_options
from ..ops.projections import check_head_dim, check_heads
from ..ops.ranks import Ranks, heard_by_ranks
from .base import Layer
from .cache import KeyValueCache
from .from_torch import ATTENTION_SETTINGS, StateDict, reads_torch, thirds, transposed
from .init import Weights, heads_of
from .norm import Norm
from .packed_cache import PackedStep
from .rotary import Rotary


@reads_torch(ATTENTION_SETTINGS)
@dataclass(frozen=True, eq=False)
class MultiHeadAttention(Layer):
    """``multi_head_attention`` with its weights, for h = ``num_heads`` heads and kv = ``num_kv_heads`` heads of keys.

    Source: Vaswani et al. 2017, section 3.2.2.

    >>> import numpy as np, mha_core as mha
    >>> attention = mha.MultiHeadAttention.init(d_model=8, num_heads=2, seed=0)
    >>> attention(np.ones((3, 8), dtype=np.float32)).shape
    (3, 8)
    """

    w_q: Weight
    """(d_model, h d_k)."""
    w_k: Weight
    """(d_context, kv d_k)."""
    w_v: Weight
    """(d_context, kv d_v)."""
    w_o: Weight
    """(h d_v, d_model)."""
    num_heads: int
    b_q: Array | None = None
    """(h d_k,)."""
    b_k: Array | None = None
    """(kv d_k,)."""
    b_v: Array | None = None
    """(kv d_v,)."""
    b_o: Array | None = None
    """(d_model,)."""
    num_kv_heads: int | None = None
    """``num_heads`` if None."""
    rotary: Rotary | None = None
    """Applied to queries and keys."""
    norm_q: Norm | None = None
    """Applied to the queries of each head, before ``rotary``; its weight is (d_k,)."""
    norm_k: Norm | None = None
    """Applied to the keys of each head, before ``rotary``; its weight is (d_k,)."""

    linear_maps = ("w_q", "w_k", "w_v", "w_o")

    @classmethod
    def init(
        cls,
        *,
        d_model: int = 512,
        num_heads: int = 8,
        num_kv_heads: int | None = None,
        d_context: int | None = None,
        seed: int,
        backend: str | None = None,
        dtype: Any = None,
        device: Any = None,
    ) -> Self:
        """Weights after Glorot and Bengio, biases 0. ``d_context`` is the width of the context, d_model by default."""
        weights = Weights(seed, backend, dtype, device)
        return cls.make(weights, d_model, num_heads, num_kv_heads=num_kv_heads, d_context=d_context)

    @classmethod
    def make(
        cls,
        weights: Weights,
        d_model: int,
        num_heads: int,
        *,
        num_kv_heads: int | None = None,
        d_context: int | None = None,
    ) -> Self:
        head_dim = heads_of(d_model, num_heads)
        source = d_model if d_context is None else d_context
        if num_kv_heads is not None and (num_kv_heads < 1 or num_heads % num_kv_heads):
            raise ValueError(f"num_kv_heads is {num_kv_heads}; expected a divisor of num_heads = {num_heads}")
        kv_width = head_dim * (num_heads if num_kv_heads is None else num_kv_heads)
        return cls(
            w_q=weights.glorot(d_model, d_model),
            w_k=weights.glorot(source, kv_width),
            w_v=weights.glorot(source, kv_width),
            w_o=weights.glorot(d_model, d_model),
            num_heads=num_heads,
            b_q=weights.zeros(d_model),
            b_k=weights.zeros(kv_width),
            b_v=weights.zeros(kv_width),
            b_o=weights.zeros(d_model),
            num_kv_heads=num_kv_heads,
        )

    @classmethod
    def _read(cls, state: StateDict, prefix: str, *, num_heads: int) -> Self:  # from nn.MultiheadAttention
        if f"{prefix}q_proj_weight" in state:
            w_q, w_k, w_v = (state.take(f"{prefix}{name}_proj_weight") for name in "qkv")
        else:
            w_q, w_k, w_v = thirds(state.take(f"{prefix}in_proj_weight"))
        b_q, b_k, b_v = thirds(state.optional(f"{prefix}in_proj_bias"))
        w_o, b_o = state.take(f"{prefix}out_proj.weight"), state.optional(f"{prefix}out_proj.bias")
        w_q, w_k, w_v, w_o = (transposed(w) for w in (w_q, w_k, w_v, w_o))
        return cls(w_q, w_k, w_v, w_o, num_heads, b_q, b_k, b_v, b_o)

    def _check(self) -> None:
        num_kv_heads = self.num_heads if self.num_kv_heads is None else self.num_kv_heads
        check_heads(self.num_heads, num_kv_heads)
        check_head_dim(self.w_q, self.w_k, self.num_heads, num_kv_heads)
        if self.w_q.shape[-1] % self.num_heads or self.w_v.shape[-1] % num_kv_heads:
            raise ValueError(
                f"w_q and w_v do not divide into heads: num_heads is {self.num_heads}, num_kv_heads {num_kv_heads}"
            )

    @shows_options
    @heard_by_ranks
    def __call__(
        self,
        x: Array,
        *others: Never,
        context: Array | None = None,
        value_context: Array | None = None,
        cache: KeyValueCache | PackedStep | None = None,
        group: Ranks | None = None,
        **options: Unpack[Options],
    ) -> Array:
        """x (..., L, d_model), context (..., S, d_context) -> (..., L, d_model)."""
        self._check_inputs(others)
        inputs: Any = {"context": context, "value_context": value_context, "cache": cache, "group": group}
        return multi_head_attention(x, **self._named(_ARGUMENTS), **inputs, **options)

    @shows_options
    def weights(self, x: Array, *others: Never, context: Array | None = None, **options: Unpack[Options]) -> Array:
        """Return the attention weights of each head, (..., h, L, S)."""
        self._check_inputs(others)
        return multi_head_weights(x, **self._named(_OF_WEIGHTS), context=context, **options)

    def _check_inputs(self, others: tuple[Any, ...]) -> None:
        if others:
            raise TypeError(
                f"{type(self).__name__} takes x and got {1 + len(others)} arrays: self-attention is layer(x); for the keys and "
                "values of another sequence write context=, and value_context= if the values have an input of their own"
            )

    def _named(self, names: tuple[str, ...]) -> dict[str, Any]:
        return {name: getattr(self, name) for name in names}


_ARGUMENTS = tuple(field.name for field in fields(MultiHeadAttention))
"""The fields, which are arguments of ``multi_head_attention``; a subclass may have more."""
_OF_WEIGHTS = tuple(name for name in _ARGUMENTS if not name.endswith(("_v", "_o")))
"""The fields that are arguments of ``multi_head_weights``."""
