"""Layers and their gradients in NumPy float64, the chain of those of their steps, with bounds found by moving every step.

A layer of mha_core with arrays of float64 gives the weights; options are those of the oracle. A method returns the result, and
a function from the gradient of the result to gradients by name: ``x``, the context or memory, the weights as ``Layer.arrays``
names them, and the options ``bias`` and ``sink``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from . import piece_gradients
from .attention import Floats
from .attention_gradients import Bounded, attention_gradients
from .layers import Steps, bound_of, heads, tables, trials

Named = dict[str, Floats]
Pull = Callable[[Floats], Named]


@dataclass(frozen=True)
class LayerGradients(Steps):
    """Layers with their gradients; both are exact if ``rng`` is None."""

    def step(self, found: Mapping[str, Bounded]) -> Named:
        """Return the gradients of a piece, moved."""

        def moved(exact: Floats, magnitude: Floats) -> Floats:
            return self._moved(exact, lambda u, wide: wide * magnitude + u * np.abs(exact))

        return {name: moved(*both) for name, both in found.items()}

    def sum(self, *terms: Floats) -> Floats:
        total = np.sum(terms, axis=0)
        return self._moved(total, lambda u, wide: u * np.abs(terms).sum(axis=0)) if len(terms) > 1 else total

    def linear_pull(self, x: Floats, w: Floats, b: Floats | None, d: Floats, name: str) -> tuple[Floats, Named]:
        """Return the gradient of x, and those of ``w_name`` and ``b_name``."""
        found = self.step(piece_gradients.linear(d, x, w, b))
        return found.pop("x"), {f"{which}_{name}": gradient for which, gradient in found.items()}

    def norm_pull(self, x: Floats, norm: Any, d: Floats) -> tuple[Floats, Named]:
        if not hasattr(norm, "eps"):  # Identity
            return d, {}
        centred = hasattr(norm, "bias")
        arguments = (x, norm.weight, norm.bias) if centred else (x, norm.weight)
        gradients = piece_gradients.layer_norm if centred else piece_gradients.rms_norm
        found = self.step(gradients(d, *arguments, eps=norm.eps))
        return found.pop("x"), found

    def activation_pull(self, name: str, x: Floats, d: Floats) -> Floats:
        approximate = {"approximate": "tanh"} if name == "gelu_tanh" else {}
        return self.step(piece_gradients.GRADIENTS[name.removesuffix("_tanh")](d, x, **approximate))["x"]

    def rotary_pull(self, x: Floats, rotary: Any, offset: Any, d: Floats) -> Floats:
        of_positions = tables(rotary, x.shape[-2], offset)
        return self.step(piece_gradients.rotary(d, x, *of_positions, interleaved=rotary.interleaved))["x"]

    def attention_pull(self, d: Floats, *arrays: Floats, **options: Any) -> Named:
        query, key, value = arrays
        options |= {"dtype": self.dtype, "rounds_weights": self.rounds_weights}
        found = attention_gradients(query, key, value, d, **options)
        return {name: self._moved(exact, partial(_given, bound)) for name, (exact, bound) in found.items()}

    def multi_head_vjp(
        self,
        x: Floats,
        net: Any,
        *,
        context: Floats | None = None,
        value_context: Floats | None = None,
        offset: Any = None,
        of_bias: Callable[[Floats], Floats] | None = None,
        **options: Any,
    ) -> tuple[Floats, Pull]:
        """Compute multi-head attention of x (..., L, d) over context (..., S, d_context)."""
        of_key = x if context is None else context
        of_value = of_key if value_context is None else value_context
        count, kv_heads = net.num_heads, net.num_kv_heads or net.num_heads
        plain = {
            "q": heads(self.linear(x, net.w_q, net.b_q), count),
            "k": heads(self.linear(of_key, net.w_k, net.b_k), kv_heads),
            "v": heads(self.linear(of_value, net.w_v, net.b_v), kv_heads),
        }
        norms = {name: norm for name, norm in (("q", net.norm_q), ("k", net.norm_k)) if norm is not None}
        normed = {name: self.norm(y, norms[name]) if name in norms else y for name, y in plain.items()}
        turned = () if net.rotary is None else ("q", "k")
        q, k, v = (self.rotary(y, net.rotary, offset) if name in turned else y for name, y in normed.items())
        joined = _joined(self.attention(q, k, v, **options))

        def pull(d: Floats) -> Named:
            d_joined, found = self.linear_pull(joined, net.w_o, net.b_o, d, "o")
            of_heads = self.attention_pull(heads(d_joined, count), q, k, v, of_bias=of_bias, **options)
            inputs: dict[str, list[Floats]] = {}
            for (name, y), given in zip(plain.items(), ("query", "key", "value"), strict=True):
                d_y = of_heads.pop(given)
                d_y = self.rotary_pull(normed[name], net.rotary, offset, d_y) if name in turned else d_y
                if name in norms:
                    d_y, of_norm = self.norm_pull(y, norms[name], d_y)
                    found |= {f"norm_{name}.{which}": gradient for which, gradient in of_norm.items()}
                source, where = {"q": (x, "x"), "k": (of_key, "context"), "v": (of_value, "value_context")}[name]
                where = "x" if source is x else "context" if source is context else where
                w, b = getattr(net, f"w_{name}"), getattr(net, f"b_{name}")
                d_source, weights = self.linear_pull(source, w, b, _joined(d_y), name)
                inputs.setdefault(where, []).append(d_source)
                found |= weights
            return found | of_heads | {where: self.sum(*terms) for where, terms in inputs.items()}

        return self.linear(joined, net.w_o, net.b_o), pull

    def feed_forward_vjp(self, x: Floats, net: Any) -> tuple[Floats, Pull]:
        before = self.linear(x, net.w_1, net.b_1)
        active = self.activation(net.activation, before)
        gate = None if net.w_g is None else self.linear(x, net.w_g, net.b_g)
        hidden = active if gate is None else self._product(active, gate)

        def pull(d: Floats) -> Named:
            d_hidden, found = self.linear_pull(hidden, net.w_2, net.b_2, d, "2")
            d_active = d_hidden if gate is None else self._product(d_hidden, gate)
            d_x, weights = self.linear_pull(x, net.w_1, net.b_1, self.activation_pull(net.activation, before, d_active), "1")
            found |= weights
            if gate is not None:
                d_gated, weights = self.linear_pull(x, net.w_g, net.b_g, self._product(d_hidden, active), "g")
                d_x, found = self.sum(d_x, d_gated), found | weights
            return {**found, "x": d_x}

        return self.linear(hidden, net.w_2, net.b_2), pull

    def _product(self, x: Floats, y: Floats) -> Floats:
        found = x * y
        return self._moved(found, lambda u, wide: u * np.abs(found))

    def residual_vjp(
        self,
        x: Floats,
        sublayer: Callable[[Floats], tuple[Floats, Pull]],
        names: tuple[str, str],
        norm: Any,
        norm_first: bool,
        kept: Floats | None = None,
        post_norm: Any = None,
    ) -> tuple[Floats, Pull]:
        """Compute the residual connection.

        names: of the sublayer and of the norm, before those of their weights.
        kept: what the sublayer's result is multiplied by, for dropout.
        """
        of_sublayer, of_norm = names
        before, sublayer_pull = sublayer(self.norm(x, norm) if norm_first else x)
        y = before if post_norm is None else self.norm(before, post_norm)
        added = y if kept is None else y * kept
        exact = x + added
        total = self._moved(exact, lambda u, wide: u * np.minimum(np.abs(exact) + np.abs(y), np.abs(x) + np.abs(added)))

        def pull(d: Floats) -> Named:
            d_total, of_last = (d, {}) if norm_first else self.norm_pull(total, norm, d)
            d_y, of_post = d_total if kept is None else d_total * kept, dict[str, Floats]()
            if post_norm is not None:
                d_y, of_post = self.norm_pull(before, post_norm, d_y)
            found = sublayer_pull(d_y)
            d_x, of_first = self.norm_pull(x, norm, found.pop("x")) if norm_first else (found.pop("x"), {})
            named = {name if name in _INPUTS else f"{of_sublayer}.{name}": gradient for name, gradient in found.items()}
            named |= {f"{of_norm}.{name}": gradient for name, gradient in (of_first | of_last).items()}
            named |= {f"post_{of_norm}.{name}": gradient for name, gradient in of_post.items()}
            return {**named, "x": self.sum(d_total, d_x)}

        return total if norm_first else self.norm(total, norm), pull

    def encoder_layer_vjp(
        self, x: Floats, layer: Any, *, kept: Mapping[str, Floats] | None = None, **options: Any
    ) -> tuple[Floats, Pull]:
        kept, first = kept or {}, layer.norm_first
        attend = partial(self.multi_head_vjp, net=layer.attention, **options)
        names, dropped = ("attention", "norm_1"), kept.get("attention")
        y, pull_1 = self.residual_vjp(x, attend, names, layer.norm_1, first, dropped, layer.post_norm_1)
        network = partial(self.feed_forward_vjp, net=layer.feed_forward)
        names, dropped = ("feed_forward", "norm_2"), kept.get("feed_forward")
        z, pull_2 = self.residual_vjp(y, network, names, layer.norm_2, first, dropped, layer.post_norm_2)
        return z, partial(self._chain, (pull_1, pull_2))

    def decoder_layer_vjp(
        self, y: Floats, layer: Any, *, memory: Floats, kept: Mapping[str, Floats] | None = None
    ) -> tuple[Floats, Pull]:
        kept, pulls, causal = kept or {}, [], np.tri(y.shape[-2], dtype=bool)
        sublayers: dict[str, Callable[[Floats], tuple[Floats, Pull]]] = {
            "self_attention": partial(self.multi_head_vjp, net=layer.self_attention, allowed=causal),
            "cross_attention": partial(self.multi_head_vjp, net=layer.cross_attention, context=memory),
            "feed_forward": partial(self.feed_forward_vjp, net=layer.feed_forward),
        }
        for at, (name, sublayer) in enumerate(sublayers.items(), start=1):
            norm = f"norm_{at}"
            y, pull = self.residual_vjp(y, sublayer, (name, norm), getattr(layer, norm), layer.norm_first, kept.get(name))
            pulls.append(pull)
        return y, partial(self._chain, pulls)

    def stack_vjp(self, x: Floats, model: Any, layer: Callable[..., Any], **options: Any) -> tuple[Floats, Pull]:
        """Apply ``layer`` with each layer of a model, then the model's last norm."""
        pulls: list[Pull] = []
        for at, weights in enumerate(model.layers):
            x, pull = layer(x, weights, **options)
            pulls.append(partial(_prefixed, f"layers.{at}.", pull))
        if model.norm is None:
            return x, partial(self._chain, pulls)
        last = x

        def of_norm(d: Floats) -> Named:
            d_x, found = self.norm_pull(last, model.norm, d)
            return {"x": d_x, **{f"norm.{name}": gradient for name, gradient in found.items()}}

        return self.norm(x, model.norm), partial(self._chain, [*pulls, of_norm])

    def _chain(self, pulls: Any, d: Floats) -> Named:
        """Go back through steps; gradients of what several of them read, such as a memory, are summed."""
        found: Named = {}
        for pull in reversed(pulls):
            gradients = pull(d)
            d = gradients.pop("x")
            found |= {name: self.sum(found[name], x) if name in found else x for name, x in gradients.items()}
        return {**found, "x": d}


_INPUTS = ("x", "context", "value_context", "bias", "sink")
"""Gradients that do not belong to a weight of a sublayer."""


def _given(bound: Floats, u: float, wide: float) -> Floats:
    return bound


def _prefixed(prefix: str, pull: Pull, d: Floats) -> Named:
    return {name if name in _INPUTS else prefix + name: x for name, x in pull(d).items()}


def _joined(x: Floats) -> Floats:
    """(..., heads, length, d) -> (..., length, heads * d)."""
    x = np.swapaxes(x, -2, -3)
    return x.reshape(*x.shape[:-2], x.shape[-2] * x.shape[-1])


def bounded_gradients(
    compute: Callable[[LayerGradients], Named], dtype: str, *, rounds_weights: bool, rng: np.random.Generator
) -> dict[str, Bounded]:
    """Return the exact gradients that ``compute`` returns, with bounds on the errors of a computation in ``dtype``."""
    exact = compute(LayerGradients())
    moving = LayerGradients(dtype, rounds_weights, rng)
    moved = [compute(moving) for _ in range(trials(dtype))]
    return {name: (x, bound_of(x, [each[name] for each in moved], dtype)) for name, x in exact.items()}


def bounded(
    compute: Callable[[LayerGradients], Floats], dtype: str, *, rounds_weights: bool, rng: np.random.Generator
) -> Bounded:
    """Return what ``compute`` returns exactly, and a bound on each element of its error in ``dtype``."""
    return bounded_gradients(lambda layers: {"": compute(layers)}, dtype, rounds_weights=rounds_weights, rng=rng)[""]
