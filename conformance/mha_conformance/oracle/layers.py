"""Layers in NumPy float64 as sequences of steps, which give their gradients, and bounds on both.

A layer of mha_core with arrays of float64 gives the weights; options are those of the oracle.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np

from .attention import Floats
from .attention_gradients import Bounded
from .steps import Named, Steps, bound_of, trials


class Layers(Steps):
    """The formulas of layers; exact if ``rng`` is None."""

    def multi_head(
        self,
        x: Floats,
        net: Any,
        *,
        context: Floats | None = None,
        value_context: Floats | None = None,
        offset: Any = None,
        **options: Any,
    ) -> Floats:
        """Compute multi-head attention of x (..., L, d) over context (..., S, d_context)."""
        of_key = x if context is None else context
        of_value = of_key if value_context is None else value_context
        kv_heads = net.num_kv_heads or net.num_heads
        q = self.heads(self.linear(x, net.w_q, net.b_q), net.num_heads)
        k = self.heads(self.linear(of_key, net.w_k, net.b_k), kv_heads)
        v = self.heads(self.linear(of_value, net.w_v, net.b_v), kv_heads)
        q, k = (y if norm is None else self.norm(y, norm) for y, norm in ((q, net.norm_q), (k, net.norm_k)))
        q, k = (y if net.rotary is None else self.rotary(y, net.rotary, offset) for y in (q, k))
        return self.linear(self.joined(self.attention(q, k, v, **options)), net.w_o, net.b_o)

    def feed_forward(self, x: Floats, net: Any) -> Floats:
        hidden = self.activation(net.activation, self.linear(x, net.w_1, net.b_1))
        if net.w_g is not None:
            hidden = self.product(hidden, self.linear(x, net.w_g, net.b_g))
        return self.linear(hidden, net.w_2, net.b_2)

    def sublayer(
        self,
        x: Floats,
        compute: Callable[[Floats], Floats],
        norm: Any,
        norm_first: bool,
        kept: Floats | None = None,
        post_norm: Any = None,
    ) -> Floats:
        """Compute a sublayer with its residual connection; kept: what its result is multiplied by, for dropout."""
        y = compute(self.norm(x, norm) if norm_first else x)
        total = self.residual(x, y if post_norm is None else self.norm(y, post_norm), kept)
        return total if norm_first else self.norm(total, norm)

    def encoder_layer(self, x: Floats, layer: Any, *, kept: Mapping[str, Floats] | None = None, **options: Any) -> Floats:
        kept, first = kept or {}, layer.norm_first
        attend = partial(self.multi_head, net=layer.attention, **options)
        y = self.sublayer(x, attend, layer.norm_1, first, kept.get("attention"), layer.post_norm_1)
        network = partial(self.feed_forward, net=layer.feed_forward)
        return self.sublayer(y, network, layer.norm_2, first, kept.get("feed_forward"), layer.post_norm_2)

    def decoder_layer(self, y: Floats, layer: Any, *, memory: Floats) -> Floats:
        causal, first = np.tri(y.shape[-2], dtype=bool), layer.norm_first
        y = self.sublayer(y, partial(self.multi_head, net=layer.self_attention, allowed=causal), layer.norm_1, first)
        y = self.sublayer(y, partial(self.multi_head, net=layer.cross_attention, context=memory), layer.norm_2, first)
        return self.sublayer(y, partial(self.feed_forward, net=layer.feed_forward), layer.norm_3, first)

    def encoder(self, x: Floats, model: Any, **options: Any) -> Floats:
        return self._stack(x, model, self.encoder_layer, **options)

    def decoder(self, y: Floats, model: Any, *, memory: Floats) -> Floats:
        return self._stack(y, model, self.decoder_layer, memory=memory)

    def _stack(self, x: Floats, model: Any, layer: Callable[..., Floats], **options: Any) -> Floats:
        """Apply ``layer`` with each layer of a model, then the model's last norm."""
        for weights in model.layers:
            x = layer(x, weights, **options)
        return x if model.norm is None else self.norm(x, model.norm)


def bounds(
    compute: Callable[[Layers], Named], dtype: str, *, rounds_weights: bool, rng: np.random.Generator
) -> Iterator[dict[str, Bounded]]:
    """Yield the arrays that ``compute`` returns exactly, with bounds on the errors of a computation in ``dtype``.

    The bounds are those after 2, 4 and so on of the trials: as most results are within the first, most trials are not needed.
    """
    exact, moved = compute(Layers()), list[Named]()
    for trial in range(trials(dtype)):
        with np.errstate(over="ignore", invalid="ignore"):
            moved.append(compute(Layers(dtype, rounds_weights, rng, side=(-1) ** trial)))
        if len(moved) in (2, 4, 8, 16):
            yield {name: (x, bound_of(x, [each[name] for each in moved], dtype)) for name, x in exact.items()}


def bounded(
    compute: Callable[[Layers], Named], dtype: str, *, rounds_weights: bool, rng: np.random.Generator
) -> dict[str, Bounded]:
    """Return the arrays that ``compute`` returns exactly, with the bounds after all trials."""
    return [*bounds(compute, dtype, rounds_weights=rounds_weights, rng=rng)][-1]
