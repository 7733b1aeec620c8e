"""Hints for names of torch that have another form here, or are not needed: keywords and attributes of layers and optimisers."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from typing import Any, TypeVar

_BATCH_FIRST = "arrays are (..., L, d_model), with the batch first; leave it out"
_NO_MODES = "a layer has no modes: it drops something only in a call with dropout=mha.Dropout(rate, seed=...); leave it out"
_GRADIENTS = "gradients are results of mha.value_and_grad and of layer.vjp; leave it out"
_ARRAYS = "write layer.arrays(), which returns every array by its name"

LAYERS: Mapping[str, str] = {
    **dict.fromkeys(("embed_dim", "hidden_size", "d_hid", "normalized_shape"), "write d_model="),
    **dict.fromkeys(("nhead", "num_attention_heads", "n_heads"), "write num_heads="),
    **dict.fromkeys(("dim_feedforward", "intermediate_size"), "write d_ff="),
    **dict.fromkeys(("num_encoder_layers", "num_decoder_layers", "num_hidden_layers"), "write num_layers="),
    **dict.fromkeys(("kdim", "vdim"), "write d_context="),
    "layer_norm_eps": "write eps=",
    "dropout": "give it to the call, as dropout=mha.Dropout(rate, seed=...)",
    "batch_first": _BATCH_FIRST,
}
"""By keyword of a layer's ``init``."""

OPTIMISERS: Mapping[str, str] = {
    "betas": "write beta_1= and beta_2=",
    "lr": "write learning_rate=",
    "params": "the model is an argument of init and step; leave it out",
}
"""By keyword of an optimiser."""

ATTRIBUTES: Mapping[str, str] = {
    "cuda": 'write layer.to("torch", device="cuda")',
    "cpu": 'write layer.to("torch", device="cpu"), or layer.to("numpy")',
    "half": 'write layer.to(backend, dtype="float16")',
    "bfloat16": 'write layer.to(backend, dtype="bfloat16")',
    "float": 'write layer.to(backend, dtype="float32")',
    "double": 'write layer.to(backend, dtype="float64")',
    **dict.fromkeys(("train", "eval", "training"), _NO_MODES),
    **dict.fromkeys(("parameters", "named_parameters"), _ARRAYS),
    "state_dict": f"{_ARRAYS}; layer.save(path) writes them",
    "load_state_dict": "write from_torch(state_dict, ...) of the layer's class, or load(path) for a file that save wrote",
    **dict.fromkeys(("zero_grad", "requires_grad_"), _GRADIENTS),
    "forward": "call the layer itself",
}
"""By attribute of a layer."""

F = TypeVar("F", bound=Callable[..., Any])


def check_keywords(name: str, parameters: Iterable[str], given: Iterable[str], hints: Mapping[str, str]) -> None:
    """Raise TypeError for a keyword that a function lacks and that has a hint; Python raises its own for others."""
    known = set(parameters)
    for keyword in given:
        if keyword in hints and keyword not in known:
            raise TypeError(f"{name}() got an unexpected keyword argument {keyword!r}: {hints[keyword]}")


def hinted(function: F, hints: Mapping[str, str]) -> F:
    """Return a function whose errors about unknown keywords say what to write."""
    code = function.__code__  # inspect.signature would take most of the time of importing this
    parameters = frozenset(code.co_varnames[: code.co_argcount + code.co_kwonlyargcount])
    if code.co_flags & inspect.CO_VARKEYWORDS:
        return function  # it takes every keyword

    @wraps(function)
    def checked(*arguments: Any, **options: Any) -> Any:
        check_keywords(function.__qualname__, parameters, options, hints)
        return function(*arguments, **options)

    return checked  # type: ignore[return-value]


def missing(owner: object, name: str, hints: Mapping[str, str]) -> Any:
    """Raise AttributeError for an attribute that an object lacks, with its hint if there is one."""
    if name in hints:
        raise AttributeError(f"{type(owner).__name__} has no {name}: {hints[name]}", name=name, obj=owner)
    return object.__getattribute__(owner, name)  # raises Python's error, or the one inside of a property
