"""Which keys the queries of a layer see, and how positions enter: one pattern for several layers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..algebra.arrays import Array
from ..algebra.masks import Mask, window
from ..layers.base import Layer
from ..layers.rotary import Rotary
from .config import Config
from .family import Family
from .files import ModelError, one_of
from .rope import FULL, LOCAL, rotary_tables


@dataclass(frozen=True, eq=False)
class Pattern(Layer):
    """The window that queries see, and the rotary embedding of their layers."""

    rotary: Rotary | None = None
    left: int | None = None
    """A query sees as many positions before its own; None: all."""
    right: int | None = None
    """A query sees as many positions after its own, none in causal attention; None: all."""

    def mask(self, mask: Mask | None) -> Mask | None:
        """Return a mask, and this window in it."""
        if self.left is None and self.right is None:
            return mask
        own = window(self.left, self.right)
        return own if mask is None else own & mask


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
    found = config.fields.get("layer_types")
    if found is not None:
        if not isinstance(found, list) or len(found) != num_layers:
            raise ModelError(f"{config.path}: layer_types is {found!r}; expected a list of {num_layers} names")
        kinds = [one_of(kind, (FULL, LOCAL), config.path, f"layer_types[{at}]") for at, kind in enumerate(found)]
        if LOCAL in kinds and not enabled:
            raise ModelError(f"{config.path}: layer_types has {LOCAL}, but {windows.enabled} is false")
        return kinds
    if windows.every is not None:
        name, default = windows.every
        count = config.size(name) if config.given(name) else default
        return [FULL if (at + (not windows.first)) % count == 0 else LOCAL for at in range(num_layers)]
    assert windows.start is not None
    start = config.size(windows.start, least=0) if enabled else num_layers
    return [FULL if at < start else LOCAL for at in range(num_layers)]
