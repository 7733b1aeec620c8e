"""The base of exponentials: 2 or e, whichever NumPy computes faster.

Base 2 is faster if NumPy has a vector loop for exp2.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

_FLOOR = {"f": -100, "d": -900}
"""Exponents of 2 by dtype character: negligible compared with 1, but not denormal, which makes a product 150 times slower."""


@dataclass(frozen=True)
class Base:
    """A base b of exponentials."""

    power: Any
    """The function x -> b^x, a NumPy ufunc."""
    ln: float
    """ln b."""
    _floors: dict[str, tuple[np.ndarray, np.ndarray]] = field(default_factory=dict)

    def floor(self, char: str) -> tuple[np.ndarray, np.ndarray]:
        """Return the least exponent x used for a dtype character, and b^x, each as an array of one number.

        b^x is computed by the vector loop that a tile uses, so that subtracting it from a weight gives exactly 0.
        """
        if char not in self._floors:
            x = np.full(64, _FLOOR[char] * math.log(2) / self.ln, dtype=char)
            self._floors[char] = x[:1], self.power(x)[:1]
        return self._floors[char]


NATURAL = Base(np.exp, 1.0)
"""Used with a bias or a sink, whose largest finite numbers would become infinite in base 2."""


def _fastest() -> Base:
    loops = np.lib.introspect.opt_func_info(func_name="^exp2$").get("exp2", {})
    loop = loops.get("ff", {}).get("current", "")
    return Base(np.exp2, math.log(2)) if "V4" in loop or "AVX512" in loop else NATURAL


FASTEST = _fastest()
"""The faster base on this processor."""
