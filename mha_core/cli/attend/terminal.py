"""Attention maps in the terminal, as colours, or as digits if it has too few colours."""

from __future__ import annotations

from typing import Any

from rich.cells import cell_len, set_cell_size
from rich.color import Color
from rich.console import Console
from rich.style import Style
from rich.text import Text

from .maps import AttentionMaps, Choice

_LABEL = 14  # greatest width of a token, in columns
_LARGEST = 2  # greatest number of weights per row that are written out
_SMALL = 0.1  # weights below this are dimmed
# rich's names of colour systems that can blend; with 16 colours most weights would look the same
_BLENDING = ("256", "truecolor")
_STOPS = ((26, 29, 41), (58, 110, 190), (255, 221, 130))  # colours of the weights 0, 1/4 and 1; others are blended


def show(maps: AttentionMaps, choice: Choice, console: Console | None = None) -> None:
    """Print a row per token: its weights, and the largest ones written out. Default: the last layer, the mean of its heads."""
    console = console or Console(highlight=False, soft_wrap=True)
    layer = maps.layers - 1 if choice.layer is None else choice.layer
    heads = maps.weights[layer]
    weights = heads.mean(axis=0) if choice.head is None else heads[choice.head]
    console.print(Text(_encodable(_title(maps, layer, choice.head), console)))
    console.print(Text("each row attends to the columns", style="dim"))

    count, coloured = len(maps.tokens), console.color_system in _BLENDING and not console.no_color
    zero, cut = (".", "~") if console.options.ascii_only else ("·", "…")
    tokens = [_encodable(token, console) for token in maps.tokens]
    label = min(_LABEL, max(cell_len(token) for token in tokens))
    labels = [_fitted(token, label, cut) for token in tokens]
    number = len(str(count - 1))
    space = console.width - number - label - 2
    fitting = [n for n in range(min(_LARGEST, count) + 1) if not console.is_terminal or count + n * (label + 7) <= space]
    largest = max(fitting, default=1)  # fewer written weights leave room for columns; keep one if not all columns fit anyway
    room = space - largest * (label + 7)
    cell = 2 if 2 * count <= room else 1
    shown = min(count, max(1, room // cell)) if console.is_terminal else count
    for at, row in enumerate(weights.tolist()):
        line = Text(f"{at:>{number}} {labels[at]} ")
        for weight in row[:shown]:
            line.append(*_cell(weight, cell, coloured, zero))
        for other in sorted(range(count), key=row.__getitem__, reverse=True)[:largest]:
            line.append(f"  {row[other]:.2f} {labels[other]}", style="dim" if row[other] < _SMALL else "")
        line.rstrip()
        console.print(line)
    if shown < count:
        rest = f"columns {shown} to {count - 1} do not fit: use a wider terminal, or --output page.html"
        console.print(Text(rest, style="yellow"))


def _title(maps: AttentionMaps, layer: int, head: int | None) -> str:
    which = f"mean of {maps.heads} heads" if head is None else f"head {head} of 0 to {maps.heads - 1}"
    return f"{maps.model} on {maps.backend}: layer {layer} of 0 to {maps.layers - 1}, {which}"


def _encodable(text: str, console: Console) -> str:
    """Return the text with a question mark for each letter that the terminal's encoding lacks."""
    return text.encode(console.encoding, "replace").decode(console.encoding)


def _fitted(token: str, width: int, cut: str) -> str:
    return set_cell_size(token if cell_len(token) <= width else set_cell_size(token, width - 1).rstrip() + cut, width)


def _cell(weight: float, width: int, coloured: bool, zero: str) -> tuple[str, Style | str]:
    if coloured:
        return " " * width, Style(bgcolor=_colour(weight))
    tenths = min(9, int(10 * weight))
    return (str(tenths) if tenths else zero).rjust(width), ""


def _colour(weight: float) -> Color:
    """Return the colour of a weight, by its square root, so that small weights are visible."""
    at = 2 * min(1.0, max(0.0, weight)) ** 0.5
    low, high = (_STOPS[0], _STOPS[1]) if at < 1 else (_STOPS[1], _STOPS[2])
    fraction: Any = at if at < 1 else at - 1
    red, green, blue = (round(a + fraction * (b - a)) for a, b in zip(low, high, strict=True))
    return Color.from_rgb(red, green, blue)
