"""Attention maps in the terminal, as colours, or as digits if it has too few colours."""

from __future__ import annotations

from collections.abc import Callable

from rich.cells import cell_len, set_cell_size
from rich.color import Color
from rich.console import Console
from rich.style import Style
from rich.text import Text

from mha_core.cli.tables import SafeConsole

from .maps import AttentionMaps, Choice, Head

_LABEL = 14  # greatest width of a token, in columns
_LARGEST = 2  # greatest number of weights per row that are written out
_SMALL = 0.1  # weights below this are dimmed
_STOPS = ((26, 29, 41), (58, 110, 190), (255, 221, 130))  # colours of the weights 0, 1/4 and 1; others are blended
# of a terminal's 256 colours, each lighter than the one before: those closest to a blend would alternate between grey and blue
_RAMP = (234, 235, 236, 237, 60, 61, 67, 110, 144, 179, 222)


def show(maps: AttentionMaps, choice: Choice, console: Console | None = None) -> None:
    """Print a row per token: its weights, and the largest ones written out. By default it shows the most telling head.

    Above the columns are the numbers of their tokens, of every second or fifth if more do not fit.
    """
    console = console or SafeConsole(highlight=False, soft_wrap=True)
    layer, head = choice.one(maps)
    weights = maps.of(layer, head)
    wrapped = not console.is_terminal  # a terminal would break words
    console.print(Text(_encodable(_title(maps, layer, head), console)), soft_wrap=wrapped)
    colour = None if console.no_color else _COLOURS.get(str(console.color_system))
    digits = "" if colour else "digits are tenths of a weight"
    legend = "; ".join(filter(None, ("each row attends to the columns", digits, choice.reason(maps))))
    console.print(Text(legend, style="dim"), soft_wrap=wrapped)

    count = len(maps.tokens)
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
    step = next(step for step in (1, 2, 5, 10) if step * cell > number)
    numbers = "".join(str(at).rjust(step * cell if at else cell) for at in range(0, shown, step))
    console.print(Text(" " * (number + label + 2) + numbers, style="dim"))
    for at, row in enumerate(weights.tolist()):
        line = Text(f"{at:>{number}} {labels[at]} ")
        for weight in row[:shown]:
            line.append(*_cell(weight, cell, colour, zero))
        for other in sorted(range(count), key=row.__getitem__, reverse=True)[:largest]:
            line.append(f"  {row[other]:.2f} {labels[other]}", style="dim" if row[other] < _SMALL else "")
        line.rstrip()
        console.print(line)
    if shown < count:
        message = f"columns {shown} to {count - 1} do not fit: use a wider terminal, or --output page.html"
        console.print(Text(message, style="yellow"), soft_wrap=wrapped)


def _title(maps: AttentionMaps, layer: int, head: Head) -> str:
    which = f"mean of {maps.heads} heads" if head == "mean" else f"head {head} of 0 to {maps.heads - 1}"
    return f"{maps.model} on {maps.backend}: layer {layer} of 0 to {maps.layers - 1}, {which}"


def _encodable(text: str, console: Console) -> str:
    """Return the text with a question mark for each letter that the terminal's encoding lacks."""
    return text.encode(console.encoding, "replace").decode(console.encoding)


def _fitted(token: str, width: int, cut: str) -> str:
    return set_cell_size(token if cell_len(token) <= width else set_cell_size(token, width - 1).rstrip() + cut, width)


def _cell(weight: float, width: int, colour: Callable[[float], Color] | None, zero: str) -> tuple[str, Style | str]:
    if colour is not None:
        return " " * width, Style(bgcolor=colour(min(1.0, max(0.0, weight)) ** 0.5))
    tenths = min(9, int(10 * weight))
    return (str(tenths) if tenths else zero).rjust(width), ""


def _blended(root: float) -> Color:
    """Return the colour of a weight, given by its square root, so that small weights are visible."""
    (low, high), part = (_STOPS[:2], 2 * root) if root < 0.5 else (_STOPS[1:], 2 * root - 1)
    red, green, blue = (round(a + part * (b - a)) for a, b in zip(low, high, strict=True))
    return Color.from_rgb(red, green, blue)


def _of_ramp(root: float) -> Color:
    return Color.from_ansi(_RAMP[min(len(_RAMP) - 1, int(root * len(_RAMP)))])


_COLOURS: dict[str, Callable[[float], Color]] = {"truecolor": _blended, "256": _of_ramp}
"""The colour of a square root, by rich's names of colour systems; with 16 colours most weights would look the same."""
