"""From logits to scores: the activations, and the one that a model's files name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..algebra.arrays import Array, Namespace
from .files import ModelError, one_of, read_json


def _sigmoid(xp: Namespace, x: Array) -> Array:
    e = xp.exp(-xp.abs(x))  # never overflows
    return xp.where(x < 0, e, 1) / (1 + e)


def _softmax(xp: Namespace, x: Array) -> Array:
    e = xp.exp(x - xp.max(x, axis=-1, keepdims=True))
    return e / xp.sum(e, axis=-1, keepdims=True)


_ACTIVATIONS: dict[str, Callable[[Namespace, Array], Array]] = {
    "identity": lambda xp, x: x,
    "sigmoid": _sigmoid,
    "softmax": _softmax,
    "tanh": lambda xp, x: xp.tanh(x),
    "relu": lambda xp, x: xp.where(x < 0, 0, x),
}
_CLASSES = {"Identity": "identity", "Sigmoid": "sigmoid", "Tanh": "tanh", "ReLU": "relu"}
"""The activations by their classes in torch, which sentence-transformers' files name."""


def check_activation(name: object) -> str:
    """Return the name of an activation. Raises TypeError for anything but a string, ValueError for an unknown name."""
    if not isinstance(name, str):
        raise TypeError(
            f"activation is {type(name).__name__}; expected the name of one: {', '.join(_ACTIVATIONS)}. "
            "Apply a function of your own to the scores of activation='identity'"
        )
    if name not in _ACTIVATIONS:
        raise ValueError(f"activation is {name!r}; expected one of {', '.join(_ACTIVATIONS)}")
    return name


def scores(xp: Namespace, logits: Array, activation: str) -> Array:
    """Logits (n, labels) -> scores, (n,) if there is one label, (n, labels) if there are several."""
    y = _ACTIVATIONS[activation](xp, logits)
    return y[:, 0] if y.shape[1] == 1 else y


def read_activation(folder: Path, num_labels: int) -> str:
    """Return the activation of a model, as sentence-transformers does.

    It is the first that is given: activation_fn of config_sentence_transformers.json, if that describes a cross-encoder; of
    config.json; sbert_ce_default_activation_function of config.json, from before version 4; or else sigmoid for one label, and
    identity for several.

    Raises ModelError for an activation, a module or a prompt that is not supported.
    """
    path = folder / "config_sentence_transformers.json"
    settings: dict[str, Any] = read_json(path) if path.exists() and (folder / "modules.json").exists() else {}
    if settings.get("model_type") == "CrossEncoder":
        _check_modules(folder / "modules.json")
        if settings.get("default_prompt_name") is not None:
            name = settings["default_prompt_name"]
            raise ModelError(f"{path}: default_prompt_name is {name!r}; prompts of cross-encoders are not supported")
        if settings.get("activation_fn") is not None:
            return _known(settings["activation_fn"], path, "activation_fn")
    path = folder / "config.json"
    config = read_json(path)
    nested = config.get("sentence_transformers")
    if isinstance(nested, dict) and "activation_fn" in nested:
        found, name = nested["activation_fn"], "activation_fn"
    else:
        found, name = config.get("sbert_ce_default_activation_function"), "sbert_ce_default_activation_function"
    if found is not None:
        return _known(found, path, name)
    return "sigmoid" if num_labels == 1 else "identity"


def _known(value: object, path: Path, name: str) -> str:
    """Return the activation of a class that a file names, such as torch.nn.modules.activation.Sigmoid."""
    package, _, kind = str(value).rpartition(".")
    if not package.startswith("torch.") or kind not in _CLASSES:
        classes = ", ".join(f"torch.nn.{each}" for each in _CLASSES)
        raise ModelError(f"{path}: {name} is {value!r}; supported: {classes}")
    return _CLASSES[kind]


def _check_modules(path: Path) -> None:
    for module in read_json(path, list):
        kind = str(module.get("type", "")).rpartition(".")[2] if isinstance(module, dict) else ""
        one_of(kind, ["Transformer"], path, "module type")
