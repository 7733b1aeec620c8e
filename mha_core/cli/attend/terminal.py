"""A compact map in the terminal: colours where it has enough of them, or tenths as digits."""

from __future__ import annotations

from typing import Any

from rich.cells import cell_len, set_cell_size
from rich.color import Color
from rich.console import Console
from rich.style import Style
from rich.text import Text

from .maps import AttentionMaps, Choice

_LABEL = 14  # columns of a token at most
_LARGEST = 2  # weights of a row that are written out, at most
_SMALL = 0.1
_BLENDING = ("256", "truecolor")  # rich's names of what can show a blend; of 16 colours most weights would have the same
_STOPS = ((26, 29, 41), (58, 110, 190), (255, 221, 130))  # of a weight of 0, 1/4 and 1, between which colours are blended


def show(maps: AttentionMaps, choice: Choice, console: Console | None = None) -> None:
    """A row for each token: its weights, and the largest in words. Without a layer the last; without a head the mean of all."""
    console = console or Console(highlight=False, soft_wrap=True)
    layer = maps.layers - 1 if choice.layer is None else choice.layer
    heads = maps.weights[layer]
    weights = heads.mean(axis=0) if choice.head is None else heads[choice.head]
    console.print(Text(_encodable(_title(maps, layer, choice.head), console)))
    console.print(Text("rows look, columns are looked at", style="dim"))

    count, coloured = len(maps.tokens), console.color_system in _BLENDING and not console.no_color
    zero, cut = (".", "~") if console.options.ascii_only else ("·", "…")
    tokens = [_encodable(token, console) for token in maps.tokens]
    label = min(_LABEL, max(cell_len(token) for token in tokens))
    labels = [_fitted(token, label, cut) for token in tokens]
    number = len(str(count - 1))
    beside = console.width - number - label - 2
    fitting = [n for n in range(min(_LARGEST, count) + 1) if not console.is_terminal or count + n * (label + 7) <= beside]
    largest = max(fitting, default=1)  # words give way to columns, but not all of them where columns are missing in any case
    room = beside - largest * (label + 7)
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
        rest = f"columns {shown} to {count - 1} do not fit: a wider terminal shows more, and --output page.html all"
        console.print(Text(rest, style="yellow"))


def _title(maps: AttentionMaps, layer: int, head: int | None) -> str:
    which = f"mean of {maps.heads} heads" if head is None else f"head {head} of 0 to {maps.heads - 1}"
    return f"{maps.model} on {maps.backend}: layer {layer} of 0 to {maps.layers - 1}, {which}"


def _encodable(text: str, console: Console) -> str:
    """A question mark for each letter that the terminal's encoding has not."""
    return text.encode(console.encoding, "replace").decode(console.encoding)


def _fitted(token: str, width: int, cut: str) -> str:
    return set_cell_size(token if cell_len(token) <= width else set_cell_size(token, width - 1).rstrip() + cut, width)


def _cell(weight: float, width: int, coloured: bool, zero: str) -> tuple[str, Style | str]:
    if coloured:
        return " " * width, Style(bgcolor=_colour(weight))
    tenths = min(9, int(10 * weight))
    return (str(tenths) if tenths else zero).rjust(width), ""


def _colour(weight: float) -> Color:
    """By the square root, so that small weights are seen: the halfway colour is of 1/4."""
    at = 2 * min(1.0, max(0.0, weight)) ** 0.5
    low, high = (_STOPS[0], _STOPS[1]) if at < 1 else (_STOPS[1], _STOPS[2])
    part: Any = at if at < 1 else at - 1
    red, green, blue = (round(a + part * (b - a)) for a, b in zip(low, high, strict=True))
    return Color.from_rgb(red, green, blue)
