"""Masks that hide every key from some queries, of each kind that a kernel may declare."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

import mha_core as mha

from .masks import Make


@dataclass(frozen=True)
class MaskedRows:
    """A mask, and the queries that it leaves without a key."""

    feature: str
    """The feature that a kernel must declare for it."""
    mask: Callable[[Make], Any]
    masked: np.ndarray
    """True for each query that sees no key, (..., L)."""
    seen: int = 0
    """The index of a key that every other query sees."""
    offset: int = 0


def masked_rows(batch: int, queries: int, keys: int) -> Iterator[MaskedRows]:
    """Yield a mask of each kind; there are at least five queries and keys."""
    q, element = np.arange(queries), np.arange(batch)[:, None, None]
    allowed = np.ones((queries, keys), dtype=bool)
    allowed[3] = False
    yield MaskedRows("array_mask", lambda make: make(allowed), q == 3)
    yield MaskedRows("causal", lambda make: mha.causal(), q < 3, offset=-3)
    yield MaskedRows("window", lambda make: mha.window(0, None), q >= 2, seen=keys - 1, offset=keys - 2)
    lengths = np.where(np.arange(batch) == 0, 0, keys)
    yield MaskedRows("key_lengths", lambda make: mha.key_lengths(make(lengths)), (element == 0) & (q >= 0))
    either = mha.causal() | (mha.prefix(2) & mha.chunks(1))
    yield MaskedRows("mask", lambda make: either, q < 3, offset=-3)
