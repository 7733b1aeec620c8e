"""The tables at the end of a run, for the terminal, with the same numbers as the certificate."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from textwrap import shorten

from mha_core.shared import ALGEBRA

from .counts import Counts
from .evidence import COVERED, ERRORS, REFUSALS, RUNS, Values, nested
from .sections import OUTCOMES


def lines(counts: Counts) -> Iterator[str]:
    """Yield the lines: sections; if tests failed, promises and causes, else how much was judged, and the greatest errors."""
    yield from _aligned([("section", *OUTCOMES), *section_rows(counts.sections())])
    if counts.failed():
        yield from _failures(counts)
        return
    partly = share_rows(counts.records[COVERED], "covering design: pairs judged")
    if len(partly) > 1:
        yield ""
        yield from _aligned(partly)
        yield "The other pairs are of problems that the kernel refused or the run left out. * fewer problems than the floor."
    if errors := counts.records[ERRORS]:
        yield ""
        yield from _aligned(error_rows(nested(errors, float), "error / bound"))


def _failures(counts: Counts) -> Iterator[str]:
    """Yield a line for each promise that failed, and two for each cause: its error, and the command that shows it again."""
    for name, count in counts.failures():
        yield f"{name}: {_tests(count)} failed"
    yield ""
    causes = counts.causes()
    for group in causes[:MOST_CAUSES]:
        yield f"{_tests(len(group))}: {shorten(group[0].cause, WIDTH, placeholder=' ...')}"
        if group[0].reproduce:
            yield f"    {group[0].reproduce}"
    if others := causes[MOST_CAUSES:]:
        yield f"{_tests(sum(map(len, others)))}: {len(others)} more errors"


MOST_CAUSES, WIDTH = 20, 200
"""The most errors that are shown, and the most characters of each."""


def _tests(count: int) -> str:
    return f"{count} test{'s' * (count != 1)}"


def idle_kernels(counts: Counts) -> Iterator[str]:
    """Yield a line for each kernel that was judged and computed nothing, with its reasons."""
    for (op, name), runs in sorted(counts.records[RUNS].items()):
        if not runs and name != ALGEBRA:
            reasons = counts.records[REFUSALS].get((op, name), ())
            why = f"it refused every call: {'; '.join(reasons[:SOME])}" if reasons else "no call was offered to it"
            yield f"kernel {name!r} for {op} computed nothing: {why}{', and more reasons' * (len(reasons) > SOME)}"


SOME = 3
"""The most reasons that are shown."""


def section_rows(sections: dict[str, dict[str, int]]) -> list[tuple[str, ...]]:
    """Return a row for each section, and a total if there are several."""
    rows = [(name, *map(str, counts.values())) for name, counts in sections.items()]
    total = ("all", *(str(sum(counts[outcome] for counts in sections.values())) for outcome in OUTCOMES))
    return [*rows, total] if len(rows) > 1 else rows


def error_rows(errors: Mapping[str, Mapping[str, float | None]], corner: str) -> list[tuple[str, ...]]:
    """Return the greatest error over its bound by operation (rows) and dtype (columns); the first row is the heading."""
    return _by_dtype({name: {dtype: _ratio(x) for dtype, x in row.items()} for name, row in errors.items()}, corner)


def share_rows(covered: Values, corner: str) -> list[tuple[str, ...]]:
    """Return the share of pairs that were judged, by kernel and dtype, of designs that were judged in part."""
    in_part = {key: counts for key, counts in covered.items() if 0 < counts["pairs"] < counts["pairs_of"]}
    return _by_dtype(nested(in_part, _share), corner)


def _share(counts: Mapping[str, int]) -> str:
    return f"{100 * counts['pairs'] // counts['pairs_of']}%" + "*" * (counts["problems"] < counts["floor"])


def _by_dtype(cells: Mapping[str, Mapping[str, str]], corner: str) -> list[tuple[str, ...]]:
    order = ("float64", "float32", "float16", "bfloat16")
    named = {dtype for row in cells.values() for dtype in row}
    dtypes = sorted(named, key=lambda name: (order.index(name) if name in order else len(order), name))
    return [(corner, *dtypes), *((name, *(row.get(dtype, "") for dtype in dtypes)) for name, row in cells.items())]


def _ratio(ratio: float | None) -> str:
    return "NaN or inf" if ratio is None or math.isinf(ratio) else f"{ratio:.2g}"


def _aligned(rows: Sequence[tuple[str, ...]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for first, *others in rows:
        cells = [first.ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True))]
        yield "  ".join(cells).rstrip()
