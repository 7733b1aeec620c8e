"""Gradients of layers and of their stacks as problems."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

import mha_core as mha

from ..oracle.attention import Floats
from ..oracle.layers import Layers, bounded
from ..oracle.steps import Named
from .layer_problem import LayerProblem
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
        arguments = self.arguments(arrays)
        out, pullback = mha.vjp(layer, *arguments.values(), **self.options_of_call(arrays))
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


def gradients_of(problem: LayerProblem, rng: np.random.Generator) -> LayerGradientProblem:
    """Return the gradients of a call whose result is as wide as x."""
    floats = problem.floats | {"d_out": rng.normal(size=problem.floats["x"].shape)}
    return LayerGradientProblem(**{**vars(problem), "floats": floats})
