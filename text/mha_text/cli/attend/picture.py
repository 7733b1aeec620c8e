"""Attention maps as a PNG picture of heat maps, drawn by matplotlib."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from typing import BinaryIO

from matplotlib import rcParams
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from matplotlib.font_manager import findfont, fontManager, get_font

from .maps import AttentionMaps, Choice, Head

_NORM = PowerNorm(0.5, 0, 1)  # the square root makes small weights visible
_COLOURS = "magma"
_INCH = 0.2  # inches per token of a single map with labels
_SMALL = 1.1  # inches per map in a grid of maps
_LARGEST = 24.0  # inches of a single map, at most
_BOX = "□"


class MissingLettersWarning(UserWarning):
    """No installed font has some of the letters."""


def write(maps: AttentionMaps, choice: Choice, file: BinaryIO) -> None:
    """Write a PNG with 150 dots per inch. Warns with MissingLettersWarning at most once."""
    drawn(maps, choice).savefig(file, format="png")


def drawn(maps: AttentionMaps, choice: Choice) -> Figure:
    """Return the figure: a row of maps per layer and a column per head. A single map is labelled with its tokens."""
    layers = range(maps.layers) if choice.layer is None else [choice.layer]
    heads: Sequence[Head] = range(maps.heads) if choice.head is None else [choice.head]
    alone = len(layers) == len(heads) == 1
    title = f"{maps.model} on {maps.backend}: each row attends to the columns"
    (title, *names), families = _drawable([title, *(maps.tokens if alone else ())])
    side = min(_LARGEST, max(3.0, _INCH * len(maps.tokens))) if alone else _SMALL
    figure = Figure(figsize=(side * len(heads) + 1.2, side * len(layers) + 0.9), dpi=150, layout="compressed")
    axes = figure.subplots(len(layers), len(heads), squeeze=False)
    for row, layer in zip(axes, layers, strict=True):
        for axis, head in zip(row, heads, strict=True):
            image = axis.imshow(maps.of(layer, head), cmap=_COLOURS, norm=_NORM, interpolation="nearest")
            axis.set(xticks=[], yticks=[])
    for axis, head in zip(axes[0], heads, strict=True):
        axis.set_title("mean" if head == "mean" else f"head {head}", fontsize=8)
    for row, layer in zip(axes, layers, strict=True):
        row[0].set_ylabel(f"layer {layer}", fontsize=8)
    if alone:
        small = {"fontsize": min(8.0, 50 * side / len(names)), "fontfamily": families}
        axes[0, 0].set_xticks(range(len(names)), names, rotation=90, **small)
        axes[0, 0].set_yticks(range(len(names)), names, **small)
    bar = figure.colorbar(image, ax=axes, fraction=0.04, pad=0.02, ticks=[0, 0.05, 0.25, 0.5, 1])
    bar.ax.tick_params(labelsize=7)
    figure.suptitle(title, fontsize=9, fontfamily=families)
    return figure


def _drawable(words: list[str]) -> tuple[list[str], list[str]]:
    """Return the words, with boxes for letters that no font has, and the font families to draw them with."""
    families, missing = _fonts(set().union(*words))
    if missing:
        what = f"no installed font has {len(missing)} of the letters, which are drawn as {_BOX}"
        warnings.warn(f"{what}; a browser may have them: use --output page.html", MissingLettersWarning, stacklevel=4)
    drawable = str.maketrans(dict.fromkeys(missing, _BOX) | {"$": r"\$"})  # otherwise matplotlib reads $ as mathematics
    return [word.translate(drawable) for word in words], families


def _fonts(letters: set[str]) -> tuple[list[str], set[str]]:
    """Return font families, matplotlib's default first, that together have the letters; and the letters that no font has."""
    families, missing = [], {ord(letter) for letter in letters}
    for family in _installed():
        if not missing:
            break
        present = missing.intersection(get_font(findfont(family)).get_charmap())
        if present:
            families.append(family)
            missing -= present
    return families or ["sans-serif"], {chr(letter) for letter in missing}


def _installed() -> Iterator[str]:
    yield from rcParams["font.sans-serif"][:1]
    upright = {font.name for font in fontManager.ttflist if font.style == "normal" and font.weight == 400}
    yield from sorted(name for name in upright if not name.startswith("Last Resort"))  # Last Resort has a box for every letter
