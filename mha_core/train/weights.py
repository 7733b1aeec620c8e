"""The arrays of a model by name, the gradients that belong to them, and the same model with other arrays.

A model is an array, a layer, or a tuple, list, dict or frozen dataclass of models; anything else in it is a setting. Names are
dotted, such as ``layers.0.attention.w_q``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

from ..algebra.arrays import Array, is_array
from ..ops.tree import Path, children, dotted, map_placed

Model: TypeAlias = Any
"""A tree of arrays."""

_ROOT = "model"


def named_arrays(model: Model) -> dict[str, Array]:
    """Return every array of a model by its name; a model that is an array itself is named model.

    Raises ValueError if two arrays have the same name.
    """
    arrays: dict[str, Array] = {}

    def note(path: Path, x: Array) -> Array:
        if (name := dotted(path) or _ROOT) in arrays:
            raise ValueError(f"two arrays of the model are named {name}; expected keys that give each its own name")
        arrays[name] = x
        return x

    map_placed(model, note)
    return arrays


def named_gradients(model: Model, gradients: Any) -> dict[str, Array]:
    """Return the gradients by the names of their arrays, without those that are None.

    Raises ValueError if they do not have the structure of the model, TypeError for a gradient that is not an array.
    """
    return dict(_pair((), model, gradients))


def replaced(model: Model, arrays: Mapping[str, Array]) -> Model:
    """Return the model with these arrays in place of those of the same names. Parts without any stay the same objects."""
    return map_placed(model, lambda path, x: arrays.get(dotted(path) or _ROOT, x))


def _pair(path: Path, value: Any, gradient: Any) -> Iterator[tuple[str, Array]]:
    if gradient is None:
        return
    name = dotted(path) or _ROOT
    if is_array(value):
        if not is_array(gradient):
            raise TypeError(f"the gradient of {name} is {type(gradient).__name__}; expected an array, or None")
        yield name, gradient
        return
    inside, of_gradient = children(value), children(gradient)
    if inside is None:
        if is_array(gradient):
            raise ValueError(f"there is a gradient for {name}, but the model has {type(value).__name__} there")
        return  # a setting
    if of_gradient is None or type(gradient) is not type(value):
        raise ValueError(
            f"the gradient of {name} is {type(gradient).__name__}; expected {type(value).__name__}, as in the model, or None"
        )
    if of_gradient.keys() != inside.keys():
        raise ValueError(f"the gradient of {name} has {_listed(of_gradient)}; expected {_listed(inside)}, as in the model")
    for key, child in inside.items():
        yield from _pair((*path, key), child, of_gradient[key])


def _listed(inside: Mapping[Any, Any]) -> str:
    return ", ".join(map(str, inside)) if inside else "nothing"
