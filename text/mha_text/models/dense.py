"""Dense modules of sentence-transformers: a linear map and an activation, between pooling and normalizing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from mha_core import linear
from mha_core.shared import ACTIVATIONS, Array, Layer, backend_of

from .files import ModelError, WeightsFile, field, one_of, read_json, torch_class

_NAMES = {"Identity": "identity", "Tanh": "tanh", "ReLU": "relu", "GELU": "gelu", "SiLU": "silu"}
"""Activations, by the names of their classes below torch.nn."""
_FUNCTIONS: dict[str, Callable[[Array], Array]] = {
    **ACTIVATIONS,
    "identity": lambda x: x,
    "tanh": lambda x: backend_of({"x": x}).xp.tanh(x),
}


@dataclass(frozen=True, eq=False)
class Dense(Layer):
    """f(x w + b)."""

    w: Array
    """(inputs, outputs)."""
    b: Array | None
    """(outputs,)."""
    activation: str = "tanh"
    """The name of f: identity, tanh, relu, gelu or silu."""

    @classmethod
    def read(cls, folder: Path, inputs: int, make: Callable[[Any], Array]) -> Self:
        """Read a module's folder; ``make`` turns a NumPy array into the backend's."""
        path = folder / "config.json"
        config = {"bias": True, "activation_function": "torch.nn.modules.activation.Tanh"} | read_json(path)
        check_reads_vectors(config, path)
        if config.get("use_residual"):
            raise ModelError(f"{path}: use_residual is {config['use_residual']!r}; supported: false")
        if field(config, path, "in_features") != inputs:
            raise ModelError(f"{path}: in_features is {config['in_features']}, but the vectors before have {inputs} numbers")
        outputs = field(config, path, "out_features")
        activation = torch_class(config["activation_function"], _NAMES, path, "activation_function")
        file = WeightsFile(folder)
        w = file.take("linear.weight", (outputs, inputs)).T  # stored for y = W x, used as y = x w
        b = file.take("linear.bias", (outputs,)) if field(config, path, "bias", bool) else None
        file.finish()
        return cls(make(w), None if b is None else make(b), activation)

    def __call__(self, x: Array) -> Array:
        """x (..., inputs) -> (..., outputs)."""
        return _FUNCTIONS[self.activation](linear(x, self.w, self.b))

    @property
    def width(self) -> int:
        """The number of outputs."""
        return self.w.shape[1]


def check_reads_vectors(config: dict[str, Any], path: Path) -> None:
    """Raise ModelError if a module reads or writes something else than the vectors of texts, such as those of tokens."""
    for name in ("module_input_name", "module_output_name"):
        if config.get(name) not in (None, "sentence_embedding"):
            one_of(config[name], ["sentence_embedding"], path, name)
