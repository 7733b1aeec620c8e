"""The residual connection around every sublayer, and the dropout in it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from ..algebra.arrays import Array
from ..ops.functional import dropout as drop


@dataclass(frozen=True, eq=False)
class Dropout:
    """Dropout with given choices: no random numbers are drawn, so results are the same on every backend.

    Source: Vaswani et al. 2017, section 5.4.
    """

    rate: float
    """The share of elements that the caller dropped."""
    keeps: Mapping[str, Array] = field(default_factory=dict)
    """Booleans, True to keep, by the name of the sublayer whose output they apply to, such as ``"feed_forward"`` of a layer or
    ``"layers.0.feed_forward"`` of a stack. A sublayer that is not named keeps everything."""

    def check(self, names: Iterable[str]) -> None:
        """Raise ValueError for names other than ``names``."""
        known = list(names)
        if unknown := sorted(set(self.keeps) - set(known)):
            raise ValueError(f"dropout has keeps for {', '.join(unknown)}; expected some of {', '.join(known)}")

    def within(self, prefix: str) -> Dropout:
        """Return the dropout of the names that start with a prefix, without the prefix."""
        return Dropout(self.rate, {name.removeprefix(prefix): x for name, x in self.keeps.items() if name.startswith(prefix)})


def residual(
    name: str,
    x: Array,
    sublayer: Callable[[Array], Array],
    norm: Callable[[Array], Array],
    norm_first: bool,
    dropout: Dropout | None,
) -> Array:
    """Norm(x + Dropout(Sublayer(x))), or x + Dropout(Sublayer(Norm(x))) with ``norm_first``."""
    y = sublayer(norm(x) if norm_first else x)
    if y.shape[-1:] != x.shape[-1:]:
        raise ValueError(f"{name} returns {y.shape[-1]} features; expected {x.shape[-1]}, to be added to those of x")
    if dropout is not None and name in dropout.keeps:
        y = drop(y, dropout.keeps[name], rate=dropout.rate)
    return x + y if norm_first else norm(x + y)
