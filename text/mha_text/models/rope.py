"""The rotary embeddings of a model, from its config.json: their bases, how they are scaled, and their tables."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from .config import Config
from .family import RotaryNames
from .files import ModelError, dict_field, field, one_of

FULL, LOCAL = "full_attention", "sliding_attention"
"""The names of layers that see everything, and of those that see a window, in ``layer_types`` and ``rope_parameters``."""

_MOST_ROWS = 2**20


def rotary_tables(config: Config, names: RotaryNames, kind: str, head_dim: int, length: int) -> tuple[Any, Any]:
    """Return cos and sin for layers of a kind, NumPy arrays (length, head_dim / 2) in float64."""
    import numpy

    if head_dim % 2:
        raise ModelError(f"{config.path}: heads have {head_dim} features; expected an even number, for rotary embeddings")
    if length > _MOST_ROWS:
        raise ModelError(f"{config.path}: tables of {length} positions are too large; supported: up to {_MOST_ROWS}")
    where, parameters = _parameters(config, names, kind)
    rope_type = one_of(parameters.pop("rope_type"), _SCALINGS, config.path, f"{where}rope_type")
    scaled, expected = _SCALINGS[rope_type]
    base = field(parameters, config.path, "rope_theta", float, least=1)
    del parameters["rope_theta"]
    config.only("partial_rotary_factor", (None, 1))
    if (share := parameters.pop("partial_rotary_factor", None)) not in (None, 1):
        raise ModelError(f"{config.path}: {where}partial_rotary_factor is {share!r}; supported: 1")
    for name, value in parameters.items():
        if name not in expected:
            raise ModelError(
                f"{config.path}: {where}{name} is {value!r}; supported with rope_type {rope_type}: "
                f"{', '.join(expected) or 'no other parameter'}"
            )
    options = {
        name: field(parameters, config.path, name, float, least=int(name in _AT_LEAST_1))
        for name, value in parameters.items()
        if value is not None
    }
    if missing := [name for name, needed in expected.items() if needed and name not in options]:
        raise ModelError(f"{config.path}: {where}rope_type is {rope_type}, but {missing[0]} is missing")
    rates, factor = scaled(base, head_dim, {"original_max_position_embeddings": length} | options)
    angles = numpy.arange(length)[:, None] * numpy.asarray(rates)
    return factor * numpy.cos(angles), factor * numpy.sin(angles)


def _parameters(config: Config, names: RotaryNames, kind: str) -> tuple[str, dict[str, Any]]:
    """Return the place of parameters in config.json, for errors, and the parameters, with a rope_type and a rope_theta."""
    name, base = names.name, names.base
    if kind == LOCAL and names.local_base is not None:
        name, base = names.local_name, names.local_base
    base = config.fields.get(name, base)
    stored, scaling = (dict_field(config.fields, config.path, name) for name in ("rope_parameters", "rope_scaling"))
    if stored and scaling:
        raise ModelError(f"{config.path} has rope_parameters and rope_scaling; expected one of them")
    if not stored:
        is_scaled = kind == FULL or names.local_base is None or names.scales_local
        where, parameters = "rope_scaling.", dict(scaling if is_scaled else {})
    elif (FULL in stored or LOCAL in stored) != (names.local_base is not None):
        expected = f"parameters for {FULL} and {LOCAL}" if names.local_base is not None else "the parameters of all layers"
        raise ModelError(f"{config.path}: rope_parameters is {stored}; expected {expected}")
    elif names.local_base is None:
        where, parameters = "rope_parameters.", dict(stored)
    else:
        where, parameters = f"rope_parameters.{kind}.", dict(stored.get(kind) or {})
    parameters.setdefault("rope_type", parameters.pop("type", "default"))
    return where, {"rope_theta": base} | parameters


Options = Mapping[str, float]
Rates = tuple[list[float], float]
"""The angle from one position to the next for each pair of features, and the factor of cos and sin."""


def _default(base: float, dim: int, options: Options) -> Rates:
    """base^(-2i / dim) (Su et al. 2021, section 3.2.2)."""
    return [base ** (-2 * i / dim) for i in range(dim // 2)], 1.0


def _linear(base: float, dim: int, options: Options) -> Rates:
    """Positions divided by a factor (Chen et al. 2023, equation 4)."""
    return [rate / options["factor"] for rate in _default(base, dim, options)[0]], 1.0


def _ntk(base: float, dim: int, options: Options) -> Rates:
    """The base times the factor, and rates divided so that the slowest is 1 / factor of what it was.

    Source: https://kexue.fm/archives/9706, equation 6, as in the models of Zhang et al. 2024.
    """
    factor = options["factor"]
    return [rate / factor ** (2 / dim) for rate in _default(base * factor, dim, options)[0]], 1.0


def _yarn(base: float, dim: int, options: Options) -> Rates:
    """Fast rates stay, slow ones are divided by the factor, with a ramp between (Peng et al. 2023, sections 3.2 to 3.4)."""
    factor, length = options["factor"], options["original_max_position_embeddings"]

    def pair(turns: float) -> float:
        """Return which pair of features makes as many turns over the original length."""
        return dim * math.log(length / (turns * 2 * math.pi)) / (2 * math.log(base))

    low = max(math.floor(pair(options.get("beta_fast") or 32)), 0)
    high = min(math.ceil(pair(options.get("beta_slow") or 1)), dim - 1)
    width = high - low or 0.001
    rates = []
    for at, rate in enumerate(_default(base, dim, options)[0]):
        slow = min(max((at - low) / width, 0), 1)
        rates.append(rate / factor * slow + rate * (1 - slow))
    return rates, options.get("attention_factor", 0.1 * math.log(factor) + 1 if factor > 1 else 1.0)


def _llama3(base: float, dim: int, options: Options) -> Rates:
    """Fast rates stay, slow ones are divided by the factor, and between the wavelengths one changes into the other.

    Source: rope_type llama3 of transformers, as in Llama 3.1 (Llama Team 2024, section 3.4.2).
    """
    factor, length = options["factor"], options["original_max_position_embeddings"]
    low, high = options["low_freq_factor"], options["high_freq_factor"]
    rates = []
    for rate in _default(base, dim, options)[0]:
        turns = length * rate / (2 * math.pi)
        fast = min(max((turns - low) / (high - low), 0), 1)
        rates.append(rate * fast + rate / factor * (1 - fast))
    return rates, 1.0


_AT_LEAST_1 = ("factor", "original_max_position_embeddings")
_YARN = ("original_max_position_embeddings", "attention_factor", "beta_fast", "beta_slow")
_LLAMA_3 = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
_SCALINGS: dict[str, tuple[Callable[[float, int, Options], Rates], dict[str, bool]]] = {
    "default": (_default, {}),
    "linear": (_linear, {"factor": True}),
    "ntk": (_ntk, {"factor": True}),
    "llama3": (_llama3, dict.fromkeys(_LLAMA_3, True)),
    "yarn": (_yarn, {"factor": True, **dict.fromkeys(_YARN, False)}),
}
"""The computation of rates by ``rope_type``, and the parameters that it takes; True: it needs them."""
