"""The base of exponentials: 2 where NumPy has a vector loop for it, which is the faster then; else e."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

# nothing beside 1, and no denormal: those make a product 150 times slower
_FLOOR = {"f": -100, "d": -900}  # exponents of 2


@dataclass(frozen=True)
class Base:
    """power(x) is b^x, ln is ln b."""

    power: Any
    ln: float
    _floors: dict[str, tuple[np.ndarray, np.ndarray]] = field(default_factory=dict)

    def floor(self, char: str) -> tuple[np.ndarray, np.ndarray]:
        """x, below which b^x counts for nothing, and b^x as a tile has it: by the same vector loop."""
        if char not in self._floors:
            x = np.full(64, _FLOOR[char] * math.log(2) / self.ln, dtype=char)
            self._floors[char] = x[:1], self.power(x)[:1]
        return self._floors[char]


NATURAL = Base(np.exp, 1.0)
"""For scores to which numbers of the caller's are added: in another base the largest of them would be infinite."""


def _fastest() -> Base:
    loops = np.lib.introspect.opt_func_info(func_name="^exp2$").get("exp2", {})
    loop = loops.get("ff", {}).get("current", "")
    return Base(np.exp2, math.log(2)) if "V4" in loop or "AVX512" in loop else NATURAL


FASTEST = _fastest()
