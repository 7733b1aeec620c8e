"""Layouts: which positions of a sequence each rank holds."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import TypeAlias, TypeVar

from ..algebra.parts import Positions
from .engine import Engine

P = TypeVar("P", bound=Positions)
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
        ranges = tuple(tuple(of_rank) or (range(0),) for of_rank in layout)  # so that each rank has a range
    except TypeError:
        raise TypeError(f"layout is {type(layout).__name__}; expected a name, or the ranges of each rank") from None
    if not all(isinstance(each, range) for of_rank in ranges for each in of_rank):
        raise TypeError("layout contains something that is not a range; expected for each rank a sequence of ranges")
    if len(ranges) != size:
        raise ValueError(f"layout has ranges for {len(ranges)} ranks, but the group has {size}")
    _check_cover(ranges, length)
    return ranges


def layout_json(layout: Layout) -> str | list[list[str]]:
    """Return a layout as JSON holds it, for ranks to compare."""
    if isinstance(layout, str) or not isinstance(layout, Sequence):
        return str(layout)
    return [list(map(str, of_rank)) if isinstance(of_rank, Sequence) else [str(of_rank)] for of_rank in layout]


def places(ranges: Sequence[P]) -> list[tuple[P, range]]:
    """Return ranges of positions, each with the indices of its elements in the array of the rank that holds them all."""
    ends = accumulate(map(len, ranges), initial=0)
    return [(each, range(start, stop)) for each, (start, stop) in zip(ranges, pairwise(ends), strict=True)]


def positions_of(engine: Engine, ranges: Sequence[Sequence[range]], step: int = 0) -> Sequence[Positions]:
    """Return the ranges of the rank that comes ``step`` ranks before this one, of those of all ranks."""
    sources = [ranges[(rank - step) % engine.size] for rank in range(engine.size)]
    if engine.rank is not None:
        return sources[engine.rank]
    if len({tuple((len(each), each.step) for each in of_rank) for of_rank in ranges}) > 1 or ranges[0][0].step != 1:
        raise ValueError(
            "ranks that run one compiled program must hold ranges of the same lengths, of successive positions: "
            "take the layout 'contiguous' or 'zigzag', and a length that divides"
        )
    return [engine.rank_range(list(slot)) for slot in zip(*sources, strict=True)]  # type: ignore[attr-defined]


def _check_cover(ranges: Sequence[Ranges], length: int) -> None:
    """Raise ValueError unless each position belongs to exactly one range."""
    holder: list[int | None] = [None] * length
    for rank, of_rank in enumerate(ranges):
        for each in of_rank:
            if each.step < 1:
                raise ValueError(f"layout: {each} of rank {rank} does not ascend")
            for position in each:
                if not 0 <= position < length:
                    raise ValueError(f"layout: rank {rank} holds position {position}, but there are {length} positions")
                if holder[position] is not None:
                    raise ValueError(f"layout: ranks {holder[position]} and {rank} both hold position {position}")
                holder[position] = rank
    if None in holder:
        raise ValueError(f"layout: no rank holds position {holder.index(None)}")


def pieces_of(length: int, count: int) -> list[range]:
    """Return ranges of about the same length, the first the longest, that cut ``length`` positions into ``count`` pieces."""
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
