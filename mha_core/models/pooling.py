"""Pooling of hidden states to one vector for each text, as in sentence-transformers' Pooling and Normalize modules."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from ..algebra.arrays import Array, Namespace, device_of
from ..algebra.masks import runs
from .files import ModelError, one_of, read_json

# from hidden states of texts of one length, (n, length, d), to (n, d); modes given as flags are concatenated in this order
_MODES: dict[str, Callable[[Namespace, Array], Array]] = {
    "cls": lambda xp, x: x[:, 0, :],
    "max": lambda xp, x: xp.max(x, axis=1),
    "mean": lambda xp, x: xp.mean(x, axis=1),
    "mean_sqrt_len_tokens": lambda xp, x: xp.sum(x, axis=1) / x.shape[1] ** 0.5,
}
_KEYS = {"cls_token": "cls", "max_tokens": "max", "mean_tokens": "mean", "mean_sqrt_len_tokens": "mean_sqrt_len_tokens"}
_MODULES = ("Transformer", "Pooling", "Normalize")


@dataclass(frozen=True)
class Pooling:
    """A model's pooling, read from its directory."""

    modes: tuple[str, ...] = ("mean",)
    """Names of modes, whose vectors are concatenated."""
    normalize: bool = False
    """Whether the model scales vectors to length 1."""

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read modules.json and the Pooling module's config.json; without modules.json, pool by the mean.

        Raises ModelError that names a module or a mode that is not supported.
        """
        path = folder / "modules.json"
        if not path.exists():
            return cls()
        modules = {}
        for module in read_json(path, list):
            kind = str(module.get("type", "")).rpartition(".")[2] if isinstance(module, dict) else ""
            modules[one_of(kind, _MODULES, path, "module type")] = module
        if "Pooling" not in modules:
            raise ModelError(f"{path} has no Pooling module: its model does not return one vector for each text")
        return cls(_read_modes(folder / str(modules["Pooling"].get("path", "")) / "config.json"), "Normalize" in modules)

    def __call__(self, xp: Namespace, hidden: Array, lengths: Sequence[int]) -> Array:
        """Hidden states of n texts laid end to end, (sum of lengths, d) -> (n, d * number of modes), not normalized."""
        width = hidden.shape[-1]
        pooled = []
        for start, count, length in runs(lengths):
            stack = xp.reshape(hidden[start : start + count * length, :], (count, length, width))
            if length == 0:  # an empty text, from a tokenizer without special tokens
                pooled.append(xp.zeros((count, width * len(self.modes)), dtype=hidden.dtype, device=device_of(hidden)))
            else:
                pooled.append(xp.concat([_MODES[mode](xp, stack) for mode in self.modes], axis=-1))
        return xp.concat(pooled, axis=0)


def unit(xp: Namespace, x: Array) -> Array:
    """Return the rows divided by their length; a row of zeros stays 0."""
    norm = xp.sqrt(xp.sum(x * x, axis=-1, keepdims=True))
    return x / xp.where(norm < 1e-12, 1e-12, norm)


def _read_modes(path: Path) -> tuple[str, ...]:
    """Return the modes of a Pooling config: flags, as in older files, in the order of _MODES; or names, in the order given."""
    config: dict[str, Any] = read_json(path)
    if "pooling_mode" in config:
        named = config["pooling_mode"]
        asked = list(named) if isinstance(named, list) else [named]
    else:
        flags = [
            key.removeprefix("pooling_mode_") for key, on in config.items() if key.startswith("pooling_mode_") and on is True
        ]
        order = list(_KEYS)
        asked = [_KEYS.get(flag, flag) for flag in sorted(flags, key=lambda flag: order.index(flag) if flag in order else -1)]
    if not asked:
        raise ModelError(f"{path} names no pooling mode; supported: {', '.join(_MODES)}")
    return tuple(one_of(mode, _MODES, path, "pooling mode") for mode in asked)
