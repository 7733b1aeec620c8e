"""Gradients of layers as problems, from the axes of a covering design or from the weights of a stack."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

import mha_core as mha

from ..oracle.attention import Floats
from ..oracle.layers import Layers, bounded
from ..oracle.steps import Named
from .layer_problem import PLAIN_ROW, LayerProblem, plain_layer_problem
from .problem import Bounded

_NAME = "layers_vjp d_"


class LayerGradientProblem(LayerProblem):
    """A call of ``mha.vjp`` with a layer, and its pullback of ``d_out``: the result, and all gradients."""

    @property
    def differentiated(self) -> set[str]:
        """The arrays that have gradients: not the tables of a rotary embedding."""
        return {name for name in self.floats if name != "d_out" and "rotary." not in name}

    def call(self, arrays: Mapping[str, Any]) -> dict[str, Any]:
        layer = self.with_weights(arrays)
        arguments = [name for name in ("x", "memory") if name in arrays]
        out, pullback = mha.vjp(layer, *(arrays[name] for name in arguments), **self.options_of_call(arrays))
        pulled = pullback(arrays["d_out"])
        of_layer, *of_arguments = pulled
        assert type(of_layer) is type(layer), f"the gradient of {type(layer).__name__} is {type(of_layer).__name__}"
        gradients = {**dict(zip(arguments, of_arguments, strict=True)), **pulled.options, **of_layer.arrays()}
        assert gradients.keys() == self.differentiated
        return {_NAME + name: x for name, x in {"out": out, **gradients}.items()}

    def expected(self, floats: Mapping[str, Floats], dtype: str, *, rounds_weights: bool) -> dict[str, Bounded]:
        def exact(layers: Layers) -> Named:
            y = self.compute(layers, floats)
            gradients = layers.gradients(y, floats["d_out"], of={name: floats[name] for name in self.differentiated})
            return {_NAME + name: x for name, x in {"out": y, **gradients}.items()}

        return bounded(exact, dtype, rounds_weights=rounds_weights, rng=np.random.default_rng(0))


def layer_gradient_problem(op: str, rng: np.random.Generator, **axes: Any) -> LayerGradientProblem:
    """Draw the gradients of a call of ``plain_layer_problem``."""
    problem = plain_layer_problem(op, rng, **axes)
    floats = problem.floats | {"d_out": rng.normal(size=problem.floats["x"].shape)}
    return LayerGradientProblem(**{**vars(problem), "floats": floats})


def stack_gradient_problem(op: str, layer: Any, rng: np.random.Generator, **lengths: int) -> LayerGradientProblem:
    """Draw the gradients of a stack, or of a decoder layer, with noise on all weights, and ``lengths`` of x and memory."""
    noisy = layer.map(lambda w: w + 0.3 * rng.normal(size=w.shape))
    floats = {name: rng.normal(size=(length, 16)) for name, length in lengths.items()}
    floats["d_out"] = rng.normal(size=floats["x"].shape)
    return LayerGradientProblem(PLAIN_ROW, floats | noisy.arrays(), op=op, layer=noisy)
