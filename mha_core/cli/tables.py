"""Lines and tables that break no word in a terminal: a table that is too wide becomes a block of lines for each row."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from rich.console import Console, ConsoleOptions, RenderableType
from rich.padding import Padding
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

_BORDERS = 3  # columns of the terminal between two columns of a table

Row = Sequence[Text]

_ESCAPES = {code: repr(chr(code))[1:-1] for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"}


def printable(text: str) -> str:
    """Return text from elsewhere as a terminal can show it: with escapes for the characters that control terminals."""
    return text.translate(_ESCAPES).encode("utf-8", "backslashreplace").decode()


class SafeConsole(Console):
    """A console on which no text controls the terminal, wherever it is from; rich's own styles do."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=printable(segment.text))


def prose_console(*, stderr: bool = False) -> Console:
    """Return a console that wraps lines between words in a terminal, and leaves them whole elsewhere."""
    console = SafeConsole(stderr=stderr, highlight=False)
    console.soft_wrap = not console.is_terminal
    return console


def table(
    console: Console, columns: Sequence[str], rows: Sequence[Row], *, title: str = "", right: bool = False
) -> RenderableType:
    """Return a table for the width of the console, or blocks if some word would not fit. ``right``: numbers, to the right."""
    least = _widths(columns, rows, str.split)
    spare = console.width - 1 - sum(width + _BORDERS for width in least)
    if spare < 0:
        return _blocks(columns, rows, title)
    wishes = [natural - width for natural, width in zip(_widths(columns, rows, str.splitlines), least, strict=True)]
    more = [0] * len(wishes)
    for at in sorted(range(len(wishes)), key=wishes.__getitem__):  # small wishes first
        more[at] = min(wishes[at], spare)
        spare -= more[at]
    grid = Table(title=title or None)
    for at, name in enumerate(columns):
        grid.add_column(name, width=least[at] + more[at], overflow="fold", justify="right" if right and at else "left")
    for row in rows:
        grid.add_row(*row)
    return grid


def _widths(columns: Sequence[str], rows: Sequence[Row], split: Callable[[str], list[str]]) -> list[int]:
    """Return the width of each column in which no part of a cell is broken: no word, or no line."""
    cells = [[Text(name) for name in columns], *rows]
    return [max(Text(part).cell_len for row in cells for part in split(row[at].plain) or [""]) for at in range(len(columns))]


def _blocks(columns: Sequence[str], rows: Sequence[Row], title: str) -> RenderableType:
    """Return each row as its first cell, and below it a line for each other cell that is not empty."""
    grid = Table.grid()
    if title:
        grid.add_row(Text(title, style="italic"))
    for first, *cells in rows:
        grid.add_row(Text(first.plain, style="bold"))
        lines = Table.grid(padding=(0, 1))
        for name, cell in zip(columns[1:], cells, strict=True):
            if cell.plain.strip():
                lines.add_row(Text(name, style="dim"), cell)
        grid.add_row(Padding(lines, (0, 0, 0, 2 + len(first.plain) - len(first.plain.lstrip()))))
    return grid
