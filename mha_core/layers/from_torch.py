"""Layers from torch's modules and state dicts.

torch is not imported: a module is recognised by its attributes. torch writes y = W x with W (out, in); here y = x w with
w (in, out), so matrices are transposed, as views. The arrays remain torch's, detached; ``.to(backend)`` converts them.

A layer class builds itself from a state dict in its classmethod ``_read(state, prefix, **settings)``. This module names no
layer: ``reads_torch`` registers the classes that ``Layer.from_torch`` may build.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from ..algebra.arrays import Array
from ..ops.functional import check_activation

L = TypeVar("L", bound=type)

ATTENTION_SETTINGS = ("num_heads",)
LAYER_SETTINGS = ("num_heads", "activation", "norm_first")

_ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "silu": "silu", "ReLU": "relu", "GELU": "gelu", "SiLU": "silu"}
_SETTINGS: dict[type, tuple[str, ...]] = {}


def reads_torch(settings: tuple[str, ...]) -> Callable[[L], L]:
    """Register a class for ``from_torch``; ``settings`` are the arguments of its ``_read`` that no state dict contains."""

    def register(cls: L) -> L:
        _SETTINGS[cls] = settings
        return cls

    return register


class StateDict:
    """A state dict that records which of its keys were taken, and which were missing."""

    def __init__(self, arrays: Mapping[str, Array], eps: Mapping[str, float] | float) -> None:
        self.arrays = dict(arrays)
        self.eps = eps
        self.taken: set[str] = set()
        self.missing: list[str] = []

    def __contains__(self, name: str) -> bool:
        return name in self.arrays

    def take(self, name: str) -> Any:
        if name not in self.arrays:
            self.missing.append(name)
            return None
        self.taken.add(name)
        return self.arrays[name]

    def optional(self, name: str) -> Any:
        return self.take(name) if name in self.arrays else None

    def eps_of(self, prefix: str) -> float:
        """Return the eps of the norm whose keys begin with ``prefix``."""
        return self.eps if isinstance(self.eps, float) else self.eps.get(prefix.removesuffix("."), 1e-5)

    def finish(self, what: str) -> None:
        """Raise ValueError that lists the keys that were missing or not taken, if any."""
        unknown = sorted(set(self.arrays) - self.taken)
        faults = [f"{label} {', '.join(names)}" for label, names in (("missing", self.missing), ("unknown", unknown)) if names]
        if faults:
            raise ValueError(f"the state dict does not fit {what}: {'; '.join(faults)}")


def read(cls: Any, source: Any, settings: Mapping[str, Any]) -> Any:
    """Return a layer of ``cls`` from a torch module or its state dict."""
    if cls not in _SETTINGS:
        known = ", ".join(kind.__name__ for kind in _SETTINGS)
        raise TypeError(f"a {cls.__name__} cannot be read from torch by itself; expected one of {known}")
    settings = dict(settings)
    only_attention = _SETTINGS[cls] == ATTENTION_SETTINGS
    eps = settings.pop("eps", 1e-5) if not only_attention and not hasattr(source, "state_dict") else norms_of(source)
    state = StateDict(arrays_of(source), eps)
    layer = cls._read(state, "", **settings_of(source, settings, only_attention))
    state.finish(cls.__name__)
    return layer


def norms_of(source: Any) -> Mapping[str, float]:
    """Return the eps of every norm of a module, by name. Raises ValueError for a norm other than LayerNorm with weights."""
    if not hasattr(source, "named_modules"):
        return {}
    norms = {name: module for name, module in source.named_modules() if "Norm" in type(module).__name__}
    for name, module in norms.items():
        if type(module).__name__ != "LayerNorm" or module.weight is None:
            raise ValueError(f"{name} is {module}, which has no counterpart here; expected a LayerNorm with weights")
    return {name: module.eps for name, module in norms.items()}


def arrays_of(source: Any) -> Mapping[str, Array]:
    """Return a module's state dict, and a mapping unchanged. Raises TypeError for anything else."""
    if hasattr(source, "state_dict"):
        return source.state_dict()
    if isinstance(source, Mapping):
        return source
    raise TypeError(f"from_torch was given a {type(source).__name__}; expected a torch module, or its state dict")


def activation_of(module: Any) -> str:
    """Return the name of torch's activation, a function or a module. Raises ValueError if it has no counterpart."""
    name = getattr(module, "__name__", type(module).__name__)
    if name not in _ACTIVATIONS:
        raise ValueError(f"activation {name} has no counterpart here; known: {', '.join(sorted(set(_ACTIVATIONS.values())))}")
    return "gelu_tanh" if getattr(module, "approximate", "none") == "tanh" else _ACTIVATIONS[name]


def settings_of(source: Any, settings: Mapping[str, Any], only_attention: bool) -> dict[str, Any]:
    """Return the settings that a state dict does not contain: the module's, or those given with the state dict."""
    needed = ATTENTION_SETTINGS if only_attention else LAYER_SETTINGS
    if strange := sorted(set(settings) - set(needed)):
        expected = f"{', '.join(needed)}, and eps with a state dict"
        raise TypeError(f"from_torch has no option {', '.join(strange)}; expected {expected}")
    if not hasattr(source, "state_dict"):
        if absent := [name for name in needed if name not in settings]:
            raise TypeError(f"a state dict does not hold {', '.join(absent)}: give {', '.join(f'{name}=' for name in absent)}")
        if not only_attention:
            check_activation(settings["activation"])
        return dict(settings)
    if settings:
        raise TypeError(f"{', '.join(settings)} is given with a module, which holds it: leave it out")
    layers = list(getattr(source, "layers", [source]))
    per_layer = [_module_settings(source, layer, only_attention) for layer in layers]
    if any(other != per_layer[0] for other in per_layer):
        raise ValueError(f"the layers of {type(source).__name__} differ in their settings: {per_layer}")
    return per_layer[0]


def _module_settings(source: Any, layer: Any, only_attention: bool) -> dict[str, Any]:
    """Return the settings of one layer of a module."""
    attention: Any = layer if only_attention else getattr(layer, "self_attn", None)
    if not hasattr(attention, "in_proj_weight"):
        raise TypeError(f"from_torch was given a {type(source).__name__}, which is not the counterpart of this layer")
    attentions: tuple[Any, ...] = (attention, getattr(layer, "multihead_attn", attention))
    for each in attentions:
        if each.bias_k is not None or each.add_zero_attn:
            raise ValueError("add_bias_kv and add_zero_attn have no counterpart here")
    heads = {"num_heads": attention.num_heads}
    return heads if only_attention else heads | {"activation": activation_of(layer.activation), "norm_first": layer.norm_first}


def transposed(w: Any) -> Any:
    """Return W (out, in) as w (in, out). None, from ``StateDict.take`` for a missing key, stays None."""
    return None if w is None else w.T


def thirds(w: Any) -> tuple[Any, Any, Any]:
    """Return the parts for query, key and value of torch's packed projection."""
    if w is None:
        return None, None, None
    size = w.shape[0] // 3
    return w[:size, ...], w[size : 2 * size, ...], w[2 * size :, ...]
