"""The activations, which make scores of logits."""

from __future__ import annotations

from collections.abc import Callable

from mha_core.shared import Array, Namespace


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
CLASSES = {"Identity": "identity", "Sigmoid": "sigmoid", "Tanh": "tanh", "ReLU": "relu"}
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
