"""Layouts: which positions of a sequence each rank holds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

Ranges: TypeAlias = tuple[range, ...]
Layout: TypeAlias = str | Sequence[Sequence[range]]
"""``"contiguous"``, ``"zigzag"``, ``"striped"``, or the ranges of positions of each rank."""


def layout_of(layout: Layout, length: int, size: int) -> tuple[Ranges, ...]:
    """Return the ranges of positions that each of ``size`` ranks holds, of a sequence of ``length`` positions.

    contiguous
        Neighbouring positions; the first ranks hold one more if the length does not divide.
    zigzag
        Of 2 size pieces rank r holds piece r and piece 2 size - 1 - r: the same work for all under a causal mask
        (Llama 3 team 2024, section 3.3.2).
    striped
        Positions r, r + size, r + 2 size, ... (Brandon et al. 2023).

    Raises
    ------
    TypeError
        If the layout is neither a name nor ranges.
    ValueError
        For an unknown name, ranges for another number of ranks, and positions that no rank holds, or two.
    """
    if isinstance(layout, str):
        if layout not in _NAMED:
            raise ValueError(f"layout is {layout!r}; expected {', '.join(map(repr, _NAMED))}, or the ranges of each rank")
        return _NAMED[layout](length, size)
    try:
        ranges = tuple(tuple(its) or (range(0),) for its in layout)  # so that each rank has a range
    except TypeError:
        raise TypeError(f"layout is {type(layout).__name__}; expected a name, or the ranges of each rank") from None
    if not all(isinstance(some, range) for its in ranges for some in its):
        raise TypeError("layout contains something that is not a range; expected for each rank a sequence of ranges")
    if len(ranges) != size:
        raise ValueError(f"layout has ranges for {len(ranges)} ranks, but the group has {size}")
    _check_cover(ranges, length)
    return ranges


def told_layout(layout: Layout) -> str | list[list[str]]:
    """Return a layout as ranks compare it, and as JSON holds it."""
    if isinstance(layout, str) or not isinstance(layout, Sequence):
        return str(layout)
    return [[str(some) for some in its] if isinstance(its, Sequence) else [str(its)] for its in layout]


def _check_cover(ranges: Sequence[Ranges], length: int) -> None:
    """Raise ValueError unless each position belongs to exactly one range."""
    holder: list[int | None] = [None] * length
    for rank, its in enumerate(ranges):
        for some in its:
            if some.step < 1:
                raise ValueError(f"layout: {some} of rank {rank} does not ascend")
            for position in some:
                if not 0 <= position < length:
                    raise ValueError(f"layout: rank {rank} holds position {position}, but there are {length} positions")
                if holder[position] is not None:
                    raise ValueError(f"layout: ranks {holder[position]} and {rank} both hold position {position}")
                holder[position] = rank
    if None in holder:
        raise ValueError(f"layout: no rank holds position {holder.index(None)}")


def pieces_of(length: int, count: int) -> list[range]:
    """Cut positions into pieces of about the same length; the first are the longest."""
    least, more = divmod(length, count)
    ends = [(least * (i + 1)) + min(i + 1, more) for i in range(count)]
    return [range(start, end) for start, end in zip([0, *ends], ends, strict=False)]


def _contiguous(length: int, size: int) -> tuple[Ranges, ...]:
    return tuple((piece,) for piece in pieces_of(length, size))


def _zigzag(length: int, size: int) -> tuple[Ranges, ...]:
    pieces = pieces_of(length, 2 * size)
    return tuple((pieces[rank], pieces[-1 - rank]) for rank in range(size))


def _striped(length: int, size: int) -> tuple[Ranges, ...]:
    return tuple((range(rank, length, size),) for rank in range(size))


_NAMED = {"contiguous": _contiguous, "zigzag": _zigzag, "striped": _striped}
