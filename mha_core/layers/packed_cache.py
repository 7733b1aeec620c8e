"""A cache for sequences of different lengths, which are laid end to end in every step: nothing is padded."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from copy import copy
from dataclasses import dataclass
from itertools import accumulate

from ..ops import check
from ..ops.caches import Part
from .cache import KeyValueCache


@dataclass(frozen=True, eq=False)
class PackedStep:
    """The caches of sequences, and how many positions of each a call holds; what ``PackedCache.next`` returns."""

    sequences: Sequence[KeyValueCache]
    lengths: tuple[int, ...]

    window = whole = None  # those of each sequence count

    def parts(self, shape: tuple[int, ...]) -> Sequence[Part]:
        """Return the cache and the positions of each sequence that has some in a call of this shape, (L,).

        Raises ValueError for another shape than (sum of lengths,).
        """
        total = sum(self.lengths)
        if shape != (total,):
            raise ValueError(
                f"x has positions {shape}; expected ({total},): those of {len(self.lengths)} sequences end to end, of "
                f"lengths {', '.join(map(str, self.lengths))}"
            )
        ends = accumulate(self.lengths)
        every = [Part(own, slice(end - n, end)) for own, n, end in zip(self.sequences, self.lengths, ends, strict=True)]
        return [part for part in every if part.rows.start < part.rows.stop]


class PackedCache:
    """Keys and values of one attention layer for several sequences, each with a length of its own; empty at first.

    A call holds the new positions of all sequences end to end, (sum of lengths, d_model), and each attends to its own alone.
    Masks and biases must depend on distances only, such as ``causal`` and ``window``.

    >>> import numpy as np, mha_core as mha
    >>> attention = mha.MultiHeadAttention.init(d_model=8, num_heads=2, seed=0)
    >>> cache = mha.PackedCache(2)
    >>> _ = attention(np.ones((5, 8), dtype=np.float32), mask=mha.causal(), cache=cache.next([4, 1]))  # two prompts
    >>> attention(np.ones((2, 8), dtype=np.float32), mask=mha.causal(), cache=cache.next([1, 1])).shape  # a step of both
    (2, 8)
    >>> cache.lengths
    [5, 2]
    """

    sequences: list[KeyValueCache]
    """The cache of each sequence. Append a ``KeyValueCache`` for one that begins later."""

    def __init__(self, count: int, *, window: int | None = None, dtype: str | None = None) -> None:
        """``count`` sequences; ``window`` and ``dtype`` as in ``KeyValueCache``."""
        self.window, self.dtype = window, dtype
        self.sequences = [KeyValueCache(window=window, dtype=dtype) for _ in range(check.integer("count", count, 0))]

    def __repr__(self) -> str:
        return f"PackedCache(lengths={self.lengths}, window={self.window}, dtype={self.dtype})"

    @property
    def lengths(self) -> list[int]:
        """The number of positions of each sequence that were cached."""
        return [own.length for own in self.sequences]

    def next(self, lengths: Iterable[int]) -> PackedStep:
        """Return the cache for a call with this many new positions of each sequence, 0 for one that waits.

        Raises ValueError unless there is a length for each sequence, and one above 0.
        """
        every = tuple(check.integer(f"lengths[{at}]", n, 0) for at, n in enumerate(lengths))
        if len(every) != len(self.sequences):
            raise ValueError(f"lengths has {len(every)} numbers; expected {len(self.sequences)}, one for each sequence")
        if not any(every):
            raise ValueError(f"lengths is {list(every)}; expected the new positions of at least one sequence")
        return PackedStep(self.sequences, every)

    def select(self, indices: Iterable[int]) -> None:
        """Keep the sequences with these indices, in this order; some may be left out, others repeated.

        Raises IndexError for an index that no sequence has.
        """
        self.sequences = [copy(self.sequences[at]) for at in indices]
