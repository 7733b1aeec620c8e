"""Gradients of layers, of a covering design, and of their stacks, as problems."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any
from zlib import crc32

import numpy as np

import mha_core as mha

from ..oracle.attention import Floats
from ..oracle.layers import Layers
from ..oracle.steps import Named
from .attention_axes import LAYOUTS
from .kinds import Row
from .layer_axes import axes_of_layer
from .layer_problem import LayerProblem, layer_problem

TRIPLES = (("frozen", "pulls", "queries"), ("queries", "d_model", "d_ff"), ("norm_1", "norm_2", "norm_first"))
"""Axes of which every triple of values is judged: fewer than of layers, since a problem takes longer."""
_NAME = "layers_vjp d_"


class LayerGradientProblem(LayerProblem):
    """A call of ``mha.vjp`` with a layer, and its pullback of ``d_out``: the result, and the gradients that are wanted."""

    @property
    def differentiated(self) -> set[str]:
        """The arrays whose gradients are wanted: neither the tables of a rotary embedding nor frozen weights."""
        frozen = filter(self._is_frozen, self.layer.arrays())
        return {name for name in self.floats if name != "d_out" and "rotary." not in name}.difference(frozen)

    def _is_frozen(self, name: str) -> bool:
        choice = self.row.get("frozen", "nothing")
        return bool({"nothing": 0, "all": 1, "matrices": ".w_" in f".{name}"}.get(choice, crc32(name.encode()) % 2))

    def call(self, arrays: Mapping[str, Any]) -> dict[str, Any]:
        layer = self.with_weights(arrays)
        arguments = self.arguments(arrays)
        wrt = None if self.row.get("frozen", "nothing") == "nothing" else lambda name: not self._is_frozen(name)
        out, pullback = mha.vjp(layer, *arguments.values(), wrt=wrt, **self.options_of_call(arrays))
        if self.row.get("pulls") == "after another":
            pullback(arrays["d_out"] * -2)
        pulled = pullback(arrays["d_out"])
        of_layer, *of_arguments = pulled
        gradients = {**dict(zip(arguments, of_arguments, strict=True)), **pulled.options}
        if "table" in self.floats:
            gradients["table"] = gradients.pop("bias").table
        if of_layer is not None:
            assert type(of_layer) is type(layer), f"the gradient of {type(layer).__name__} is {type(of_layer).__name__}"
            gradients |= of_layer.arrays()
        assert gradients.keys() == self.differentiated, f"gradients of {sorted(gradients.keys() ^ self.differentiated)}"
        return {_NAME + name: x for name, x in {"out": out, **gradients}.items()}

    def results(self, layers: Layers, floats: Mapping[str, Floats]) -> Named:
        y = self.compute(layers, floats)
        gradients = layers.gradients(y, floats["d_out"], of={name: floats[name] for name in self.differentiated})
        return {_NAME + name: x for name, x in {"out": y, **gradients}.items()}

    def layout(self, name: str) -> tuple[str, tuple[int, ...]]:
        return (self.row["layout of d"], ()) if name == "d_out" and "layout of d" in self.row else super().layout(name)


def axes_of_layer_gradients(op: str, handles: Iterable[str], half: bool) -> dict[str, list[Any]]:
    """Return the axes of the calls that a kernel which declares these features must compute, with their values.

    Half precision has no relu, whose slope jumps where the sign of a sum is not certain, and no large x, whose gradients
    are beyond the largest number of float16 between the steps. Weights are floats: others have no gradients.
    """
    axes = axes_of_layer(op, handles) | ({"spread": [1.0, 1e-3]} if half else {})
    axes["activation"] = [name for name in axes.get("activation", ()) if not (half and name == "relu")]
    return {name: values for name, values in axes.items() if values and name != "weights"} | {
        "layout of d": [*LAYOUTS],
        "frozen": ["nothing", "some", "matrices", "all"],
        "pulls": ["once", "after another"],
    }


def layer_gradient_problem(op: str, row: Row, structure: np.random.Generator, rng: np.random.Generator) -> LayerGradientProblem:
    """Draw a call whose axes have the values of ``row``: see ``options_of`` for the two generators."""
    return gradients_of(layer_problem(op, row, structure, rng), rng)


def gradients_of(problem: LayerProblem, rng: np.random.Generator) -> LayerGradientProblem:
    """Return the gradients of a call."""
    width = problem.row.get("d_out") or problem.floats["x"].shape[-1]
    floats = problem.floats | {"d_out": rng.normal(size=(*problem.floats["x"].shape[:-1], width))}
    return LayerGradientProblem(**{**vars(problem), "floats": floats})
