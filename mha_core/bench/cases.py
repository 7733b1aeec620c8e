"""What every backend is measured on: the problems by their names."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from .attention import Attention, Packed
from .imports import Import
from .layer import Layer
from .limits import Limit
from .multi_head import MultiHead
from .texts import Texts
from .work import Work


class Problem(Protocol):
    """What is computed; a frozen dataclass of a few numbers, so that it travels to other processes."""

    @property
    def limit(self) -> Limit | None: ...

    def small(self) -> Problem:
        """One like it that is soon done, and loads all that its kind needs."""
        ...

    def judge(self) -> Callable[[Any], None]:
        """What raises AssertionError for a wrong answer. The exact one is computed now."""
        ...

    def ours(self, backend: str) -> Work:
        """On a backend of mha_core."""
        ...

    def plain(self) -> Work:
        """In plain NumPy."""
        ...


MIXED = tuple(16 + 496 * (7 * at % 16) // 15 for at in range(16))
"""Lengths of 16 to 512 tokens, in no order."""

CASES: Mapping[str, Problem] = {
    "attention 32x12x128x32": Attention(32, 12, 128, 32),
    "attention 1x8x2048x64": Attention(1, 8, 2048, 64),
    "attention 1x8x2048x64, causal": Attention(1, 8, 2048, 64, causal=True),
    "window of 256, 1x8x2048x64": Attention(1, 8, 2048, 64, window=256),
    "grouped queries 1x16x1024x64 of 4 heads, causal": Attention(1, 16, 1024, 64, kv_heads=4, causal=True),
    "packed, 16 lengths of 16 to 512, 8 heads x 64": Packed(MIXED, 8, 64),
    "decode 1x8x1x64, 8192 keys": Attention(1, 8, 1, 64, keys=8192),
    "tiny call 1x1x8x8": Attention(1, 1, 8, 8),
    "multi-head 8x128x512": MultiHead(8, 128, 512, 8),
    "encoder layer 8x128x512": Layer(8, 128),
    "text encoder, 32 real texts": Texts(every=8),
    "import and first use": Import(first_use=True),
}

LONG: Mapping[str, Problem] = {
    "attention 1x8x8192x64": Attention(1, 8, 8192, 64),
    "attention 1x8x8192x64, causal": Attention(1, 8, 8192, 64, causal=True),
}
"""For their memory: plain NumPy takes six gigabytes and more."""


def chosen(words: Sequence[str]) -> dict[str, Problem]:
    """The cases whose names hold any of these words; all without one. Raises ValueError that lists the names."""
    for word in words:
        if not any(word.lower() in name.lower() for name in CASES):
            raise ValueError(f"no case has {word!r} in its name; there are: {'; '.join(CASES)}")
    return {name: each for name, each in CASES.items() if not words or any(word.lower() in name.lower() for word in words)}
