"""Patterns that several layers share: the keys that queries see, and how positions enter."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from mha_core import Rotary, window
from mha_core.shared import Array, Layer, Mask

from .config import Config
from .family import Family
from .files import ModelError, one_of
from .rope import FULL, LOCAL, rotary_tables


@dataclass(frozen=True, eq=False)
class Pattern(Layer):
    """The window that queries see, and the rotary embedding of their layers."""

    rotary: Rotary | None = None
    left: int | None = None
    """The number of positions before its own that a query sees; None: all."""
    right: int | None = None
    """The number of positions after its own that a query sees, 0 in causal attention; None: all."""

    def mask(self, mask: Mask | None) -> Mask | None:
        """Return a mask, and this window in it."""
        if self.left is None and self.right is None:
            return mask
        local_window = window(self.left, self.right)
        return local_window if mask is None else local_window & mask


def read_patterns(
    config: Config, family: Family, num_layers: int, make: Callable[[Any], Array]
) -> tuple[tuple[Pattern, ...], tuple[int, ...]]:
    """Return the patterns of a model, and the pattern of each layer by its index; both are empty for BERT's."""
    causal = family.causal and not (family.bidirectional is not None and config.flag(family.bidirectional))
    kinds = _kinds(config, family, num_layers) if family.windows is not None else [FULL] * num_layers
    if family.rotary is None and not causal and LOCAL not in kinds:
        return (), ()
    used = sorted(set(kinds))
    return tuple(_pattern(config, family, kind, causal, make) for kind in used), tuple(map(used.index, kinds))


def _pattern(config: Config, family: Family, kind: str, causal: bool, make: Callable[[Any], Array]) -> Pattern:
    rotary = None
    if family.rotary is not None:
        length, (_, _, head_dim) = config.size(family.max_length), config.heads(family)
        cos, sin = rotary_tables(config, family.rotary, kind, head_dim, length)
        rotary = Rotary(make(cos), make(sin), interleaved=False)
    left, right = None, 0 if causal else None
    if kind == LOCAL and family.windows is not None:
        size = config.size(family.windows.size)
        left, right = (size - 1, 0) if causal else (size // 2, size // 2)
    return Pattern(rotary, left, right)


def _kinds(config: Config, family: Family, num_layers: int) -> list[str]:
    """Return the kind of each layer: as ``layer_types`` says, or by the family's rule."""
    windows = family.windows
    assert windows is not None
    enabled = windows.enabled is None or config.flag(windows.enabled)
    enabled = enabled and (config.has(windows.size) or not windows.may_be_null)
    layer_types = config.fields.get("layer_types")
    if layer_types is not None:
        if not isinstance(layer_types, list) or len(layer_types) != num_layers:
            raise ModelError(f"{config.path}: layer_types is {layer_types!r}; expected a list of {num_layers} names")
        kinds = [one_of(kind, (FULL, LOCAL), config.path, f"layer_types[{at}]") for at, kind in enumerate(layer_types)]
        if LOCAL in kinds and not enabled:
            raise ModelError(f"{config.path}: layer_types has {LOCAL}, but {windows.enabled} is false")
        return kinds
    if windows.every is not None:
        name, default = windows.every
        count = config.size(name) if config.has(name) else default
        return [FULL if (at + (not windows.first)) % count == 0 else LOCAL for at in range(num_layers)]
    if windows.start is None:
        return [LOCAL if enabled else FULL] * num_layers
    start = config.size(windows.start, least=0) if enabled else num_layers
    return [FULL if at < start else LOCAL for at in range(num_layers)]
