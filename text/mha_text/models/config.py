"""The settings of a model: fields of its config.json, each checked when it is read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .family import Family, Flag
from .files import ModelError, field, one_of, read_json

_DEFAULTS = {"type_vocab_size": 2, "pad_token_id": 1, "relative_attention_num_buckets": 32, "layer_norm_eps": 1e-12}
ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
}


@dataclass(frozen=True)
class Config:
    """The fields of a config.json. Every method raises ModelError that names the file, the field and its value."""

    path: Path
    fields: Mapping[str, Any]

    @classmethod
    def read(cls, folder: Path, family: Family) -> Config:
        """Read config.json, and check the fields that may have few values only."""
        path = folder / "config.json"
        settings = cls(path, _DEFAULTS | dict(family.defaults) | read_json(path))
        for name, supported in family.only.items():
            settings.only(name, supported)
        return settings

    def only(self, name: str, supported: tuple[Any, ...]) -> None:
        """Raise ModelError unless a field has one of these values; the first stands for an absent field."""
        value = self.fields.get(name, supported[0])
        if not any(value == each and isinstance(value, bool) == isinstance(each, bool) for each in supported):  # True == 1
            raise ModelError(f"{self.path}: {name} is {value!r}; supported: {', '.join(map(str, supported))}")

    def has(self, name: str) -> bool:
        """Return True if a field is there, and not null."""
        return self.fields.get(name) is not None

    def size(self, name: str, least: int = 1) -> int:
        value: int = field(self.fields, self.path, name, least=least)
        return value

    def number(self, name: str, least: int = 0) -> float:
        value: float = field(self.fields, self.path, name, float, least=least)
        return value

    def flag(self, flag: Flag) -> bool:
        """Return a boolean, which a field may hold."""
        value: bool = flag if isinstance(flag, bool) else field(self.fields, self.path, flag, bool)
        return value

    def activation(self, name: str) -> str:
        """Return our name of an activation."""
        return ACTIVATIONS[one_of(self.fields.get(name, "gelu"), ACTIVATIONS, self.path, name)]

    def heads(self, family: Family) -> tuple[int, int, int]:
        """Return the numbers of heads of queries and of keys, and the features of a head."""
        d_model, num_heads, num_kv_heads = self.size(family.d_model), self.size(family.num_heads), None
        if family.num_kv_heads is not None and self.has(family.num_kv_heads):
            num_kv_heads = self.size(family.num_kv_heads)
            if num_heads % num_kv_heads:
                expected = f"a divisor of {family.num_heads} = {num_heads}"
                raise ModelError(f"{self.path}: {family.num_kv_heads} is {num_kv_heads}; expected {expected}")
        if family.head_dim is not None and self.has(family.head_dim):
            return num_heads, num_kv_heads or num_heads, self.size(family.head_dim)
        if d_model % num_heads:
            expected = f"a multiple of {family.num_heads} = {num_heads}"
            raise ModelError(f"{self.path}: {family.d_model} is {d_model}; expected {expected}")
        return num_heads, num_kv_heads or num_heads, d_model // num_heads
