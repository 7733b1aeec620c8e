"""The table of benchmark cases: problems by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from .attention import Attention, Packed
from .gradients import AttentionStep
from .imports import Import
from .layer import Layer, MultiHead
from .limits import Limit
from .texts import Texts
from .timing import Work


class Problem(Protocol):
    """A computation to be timed: a frozen dataclass of a few numbers, so that it can be pickled."""

    @property
    def limit(self) -> Limit | None:
        """Least amount of work that the computation needs; None where no such limit applies."""
        ...

    def small(self) -> Problem:
        """Return a short problem of the same kind, which loads the same code."""
        ...

    def judge(self) -> Callable[[Any], float | None]:
        """Compute the exact answer and return a function that raises AssertionError for a wrong one.

        Of another it may return how close it is.
        """
        ...

    def ours(self, backend: str) -> Work:
        """Return the computation by mha_core on a backend."""
        ...

    def plain(self) -> Work:
        """Return the computation in plain NumPy."""
        ...


MIXED = tuple(16 + 496 * (7 * at % 16) // 15 for at in range(16))
"""Lengths of 16 to 512 tokens, unsorted."""

CASES: Mapping[str, Problem] = {
    "attention 32x12x128x32": Attention(32, 12, 128, 32),
    "attention 1x8x2048x64": Attention(1, 8, 2048, 64),
    "attention 1x8x2048x64, causal": Attention(1, 8, 2048, 64, causal=True),
    "window of 256, 1x8x2048x64": Attention(1, 8, 2048, 64, window=256),
    "grouped queries 1x16x1024x64 of 4 heads, causal": Attention(1, 16, 1024, 64, kv_heads=4, causal=True),
    "packed, 16 lengths of 16 to 512, 8 heads x 64": Packed(MIXED, 8, 64),
    "decode 1x8x1x64, 8192 keys": Attention(1, 8, 1, 64, keys=8192),
    "tiny call 1x1x8x8": Attention(1, 1, 8, 8),
    "attention and gradients 1x8x1024x64, causal": AttentionStep(1, 8, 1024, 64, causal=True),
    "multi-head 8x128x512": MultiHead(8, 128, 512, 8),
    "encoder layer 8x128x512": Layer(8, 128),
    "text encoder, 32 real texts": Texts(every=8),
    "import and first use": Import(first_use=True),
}

LONG: Mapping[str, Problem] = {
    "attention 1x8x8192x64": Attention(1, 8, 8192, 64),
    "attention 1x8x8192x64, causal": Attention(1, 8, 8192, 64, causal=True),
}
"""Problems measured for memory only: plain NumPy needs at least six gigabytes for them."""

ALL_CORES: Mapping[str, Problem] = {
    "text encoder, 5120 texts": Texts(copies=20),
}
"""Problems measured on all cores only, by asv and next to other libraries: a call takes more than ten seconds."""


def chosen(words: Sequence[str], cases: Mapping[str, Any] = CASES) -> dict[str, Any]:
    """Return the cases whose name contains any of the words; all cases if there are none.

    Raises ValueError, which lists the names, for a word that no name contains.
    """
    for word in words:
        if not any(word.lower() in name.lower() for name in cases):
            raise ValueError(f"no case has {word!r} in its name; the cases are: {'; '.join(cases)}")
    return {name: each for name, each in cases.items() if not words or any(word.lower() in name.lower() for word in words)}
