"""The residual connection around every sublayer, and the dropout in it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ..algebra.arrays import Array
from ..algebra.dropout import checked_rate, checked_seed, kept_elements, named_seed, weight_dropout
from ..dispatch.selection import backend_of
from ..ops.functional import dropout as drop


@dataclass(frozen=True, eq=False)
class Dropout:
    """Dropout with given choices, or with choices that follow from a seed: the same on every backend.

    Raises ValueError for a rate above 0 with neither ``seed`` nor ``keeps``, which would drop nothing; for that, a call is
    given no dropout. Source: Vaswani et al. 2017, section 5.4.
    """

    rate: float
    """The share of elements that the caller dropped."""
    keeps: Mapping[str, Array] | None = None
    """Booleans, True to keep, by the name of the sublayer whose output they apply to, such as ``"feed_forward"`` of a layer or
    ``"layers.0.feed_forward"`` of a stack. A sublayer that is not named follows the seed, and without one keeps everything."""
    seed: int | None = None
    """Chooses for sublayers that are not named in ``keeps``; the choices of sublayers and layers differ. Take another one in
    every step."""
    weights: float = 0.0
    """The share of attention weights that are dropped too, by the seed; see ``weight_dropout``."""

    def __post_init__(self) -> None:
        if self.seed is not None:
            checked_rate(self.rate)
            checked_seed(self.seed)
        elif self.weights:
            raise ValueError(f"Dropout(weights={self.weights}) has no seed; attention weights are dropped by one")
        elif self.keeps is None and checked_rate(self.rate):
            raise ValueError(f"Dropout({self.rate}) has neither seed nor keeps, and would drop nothing; give seed=")

    def check(self, names: Iterable[str], group: object = None) -> None:
        """Raise ValueError for names other than ``names``, and for a seed where sequences are spread over a group of ranks."""
        if group is not None and self.seed is not None:
            raise ValueError("dropout by a seed would be the same on all ranks: give keeps= for this rank's part")
        known = list(names)
        if unknown := sorted(set(self.keeps or ()) - set(known)):
            raise ValueError(f"dropout has keeps for {', '.join(unknown)}; expected some of {', '.join(known)}")

    def within(self, prefix: str) -> Dropout | None:
        """Return the dropout of the names that start with a prefix, without the prefix; None if nothing there is dropped."""
        keeps = {name.removeprefix(prefix): x for name, x in (self.keeps or {}).items() if name.startswith(prefix)}
        if self.seed is None:
            return Dropout(self.rate, keeps) if keeps else None
        return Dropout(self.rate, keeps, named_seed(self.seed, prefix), self.weights)

    def __call__(self, name: str, y: Array) -> Array:
        """Return the output of a sublayer after dropout."""
        keep = (self.keeps or {}).get(name)
        if keep is None:
            if self.seed is None:
                return y
            keep = kept_elements(backend_of({name: y}).xp, y, self.rate, named_seed(self.seed, name))
        return drop(y, keep, rate=self.rate)

    def of_weights(self, name: str) -> dict[str, Any]:
        """Return the attention option that drops the weights of a sublayer; {} if none are dropped."""
        if not self.weights or self.seed is None:
            return {}
        return {"weight_dropout": weight_dropout(self.weights, seed=named_seed(self.seed, f"{name}.weights"))}


def check_dropout(dropout: Dropout | None, names: Iterable[str], group: object = None) -> None:
    """Raise TypeError for anything but a ``Dropout`` or None, and the errors of ``Dropout.check``."""
    if dropout is None:
        return
    if not isinstance(dropout, Dropout):
        is_rate = isinstance(dropout, int | float) and not isinstance(dropout, bool)
        came = f"the class {dropout.__name__}" if isinstance(dropout, type) else f"a {type(dropout).__name__}"
        raise TypeError(f"dropout is {came}; write dropout=mha.Dropout({dropout if is_rate else 'rate'}, seed=...)")
    dropout.check(names, group)


def residual(
    name: str,
    x: Array,
    sublayer: Callable[[Array], Array],
    norm: Callable[[Array], Array],
    norm_first: bool,
    dropout: Dropout | None,
    post_norm: Callable[[Array], Array] | None = None,
) -> Array:
    """Norm(x + Dropout(Sublayer(x))), or x + Dropout(Sublayer(Norm(x))) with ``norm_first``.

    ``post_norm`` is applied to what the sublayer returns, before dropout.
    """
    y = sublayer(norm(x) if norm_first else x)
    if y.shape[-1:] != x.shape[-1:]:
        raise ValueError(f"{name} returns {y.shape[-1]} features; expected {x.shape[-1]}, to be added to those of x")
    y = y if post_norm is None else post_norm(y)
    y = y if dropout is None else dropout(name, y)
    return x + y if norm_first else norm(x + y)
