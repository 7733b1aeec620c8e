"""Pooling of hidden states to one vector for each text, as in sentence-transformers' Pooling and Normalize modules."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mha_core.shared import Array, Namespace, device_of, runs

from .files import ModelError, one_of, read_json


def _weighted_mean(xp: Namespace, x: Array, first: int) -> Array:
    """sum(i x_i) / sum(i), where i is the number of a token in its text, from 1 (Muennighoff 2022, section 3.1.1)."""
    numbers = xp.arange(first + 1, first + x.shape[1] + 1, device=device_of(x))
    weights = xp.astype(numbers, x.dtype)[:, None] / sum(range(first + 1, first + x.shape[1] + 1))
    return xp.sum(x * weights, axis=1)


# from hidden states of texts of one length, (n, length, d), to (n, d); ``first`` is the place of the first in its text
_MODES: dict[str, Callable[[Namespace, Array, int], Array]] = {
    "cls": lambda xp, x, first: x[:, 0, :],
    "max": lambda xp, x, first: xp.max(x, axis=1),
    "mean": lambda xp, x, first: xp.mean(x, axis=1),
    "mean_sqrt_len_tokens": lambda xp, x, first: xp.sum(x, axis=1) / x.shape[1] ** 0.5,
    "weightedmean": _weighted_mean,
    "lasttoken": lambda xp, x, first: x[:, -1, :],
}
_KEYS = {
    "cls_token": "cls",
    "max_tokens": "max",
    "mean_tokens": "mean",
    "mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "weightedmean_tokens": "weightedmean",
    "lasttoken": "lasttoken",
}
"""The flags of older files, in the order in which the vectors of their modes are concatenated."""


@dataclass(frozen=True)
class Pooling:
    """A model's pooling, and whether its vectors are normalized."""

    modes: tuple[str, ...] = ("mean",)
    """Names of modes, whose vectors are concatenated."""
    normalize: bool = False
    """True if the model scales vectors to length 1."""
    include_prompt: bool = True
    """True if the tokens of a prompt are pooled too."""

    def __call__(self, xp: Namespace, hidden: Array, lengths: Sequence[int], skip: int = 0) -> Array:
        """Hidden states of n texts laid end to end, (sum of lengths, d) -> (n, d * number of modes), not normalized.

        The first ``skip`` tokens of each text are left out. A text without others has the vector 0.
        """
        width = hidden.shape[-1]
        pooled = []
        for start, count, length in runs(lengths):
            if length <= skip:  # such as an empty text, from a tokenizer without special tokens
                pooled.append(xp.zeros((count, width * len(self.modes)), dtype=hidden.dtype, device=device_of(hidden)))
                continue
            stack = xp.reshape(hidden[start : start + count * length, :], (count, length, width))
            kept = stack[:, skip:, :] if skip else stack
            pooled.append(xp.concat([_MODES[mode](xp, kept, skip) for mode in self.modes], axis=-1))
        return xp.concat(pooled, axis=0)


def unit(xp: Namespace, x: Array) -> Array:
    """Return the rows divided by their length; a row of zeros stays 0."""
    norm = xp.sqrt(xp.sum(x * x, axis=-1, keepdims=True))
    return x / xp.where(norm < 1e-12, 1e-12, norm)


def read_pooling(path: Path, *, normalize: bool) -> Pooling:
    """Return the pooling that the config.json of a Pooling module describes. Raises ModelError that names an unknown mode."""
    config: dict[str, Any] = read_json(path)
    include_prompt = config.get("include_prompt", True)
    if not isinstance(include_prompt, bool):
        raise ModelError(f"{path}: include_prompt is {include_prompt!r}; expected true or false")
    return Pooling(_modes(config, path), normalize, include_prompt)


def _modes(config: dict[str, Any], path: Path) -> tuple[str, ...]:
    """Return the modes: flags, as in older files, in the order of _KEYS; or names, in the order given."""
    if "pooling_mode" in config:
        named = config["pooling_mode"]
        modes = list(named) if isinstance(named, list) else [named]
    else:
        flags = [
            key.removeprefix("pooling_mode_") for key, on in config.items() if key.startswith("pooling_mode_") and on is True
        ]
        order = list(_KEYS)
        modes = [_KEYS.get(flag, flag) for flag in sorted(flags, key=lambda flag: order.index(flag) if flag in order else -1)]
    if not modes:
        raise ModelError(f"{path} names no pooling mode; supported: {', '.join(_MODES)}")
    return tuple(one_of(mode, _MODES, path, "pooling mode") for mode in modes)
