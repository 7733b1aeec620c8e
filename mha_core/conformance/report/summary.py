"""The tables at the end of a run, for the terminal, with the same numbers as the certificate."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from .counts import Counts
from .evidence import Errors
from .sections import OUTCOMES


def lines(counts: Counts) -> Iterator[str]:
    """Yield the lines: sections, promises that failed, covering designs that were cut short, greatest errors."""
    yield from _aligned([("section", *OUTCOMES), *section_rows(counts.sections())])
    for name, count, reproduce in counts.failures():
        yield f"{name}: {count} {'test' if count == 1 else 'tests'} failed"
        if reproduce:
            yield f"    {reproduce}"
    for (kernel, dtype), (problems, occurred, every) in counts.covered.items():
        if 0 < occurred < every:
            share = math.floor(100 * occurred / every)
            rest = "the others were refused, or the time was up"
            yield f"{kernel} in {dtype}: {problems} problems, {share}% of all combinations; {rest}"
    if counts.errors:
        yield ""
        yield from _aligned(error_rows(counts.errors, "error / bound"))


def section_rows(sections: dict[str, dict[str, int]]) -> list[tuple[str, ...]]:
    """Return a row for each section, and a total if there are several."""
    rows = [(name, *map(str, counts.values())) for name, counts in sections.items()]
    total = ("all", *(str(sum(counts[outcome] for counts in sections.values())) for outcome in OUTCOMES))
    return [*rows, total] if len(rows) > 1 else rows


def error_rows(errors: Errors, corner: str) -> list[tuple[str, ...]]:
    """Return the greatest error over its bound by operation (rows) and dtype (columns); the first row is the heading."""
    order = ("float64", "float32", "float16", "bfloat16")
    dtypes = sorted({dtype for _, dtype in errors}, key=lambda name: (order.index(name) if name in order else len(order), name))
    operations = sorted({operation for operation, _ in errors})
    return [
        (corner, *dtypes),
        *((name, *(_ratio(errors[name, dtype]) if (name, dtype) in errors else "" for dtype in dtypes)) for name in operations),
    ]


def _ratio(ratio: float) -> str:
    return "NaN or inf" if math.isinf(ratio) else f"{ratio:.2g}"


def _aligned(rows: Sequence[tuple[str, ...]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for first, *others in rows:
        cells = [first.ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True))]
        yield "  ".join(cells).rstrip()
