"""A picture of heat maps, drawn by matplotlib: all heads, or those asked for; one alone has its tokens written at it."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import BinaryIO

from matplotlib import rcParams
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from matplotlib.font_manager import findfont, fontManager, get_font

from .maps import AttentionMaps, Choice

_NORM = PowerNorm(0.5, 0, 1)  # by the square root, so that small weights are seen
_COLOURS = "magma"
_INCH = 0.2  # of a token beside a map that stands alone
_SMALL = 1.1  # inches of one map among many
_LARGEST = 24.0
_BOX = "□"


class MissingLettersWarning(UserWarning):
    """Of some letters this machine has no font that matplotlib can draw."""


def write(maps: AttentionMaps, choice: Choice, file: BinaryIO) -> None:
    """PNG, 150 dots per inch. Warns with MissingLettersWarning, once."""
    drawn(maps, choice).savefig(file, format="png")


def drawn(maps: AttentionMaps, choice: Choice) -> Figure:
    """Without a layer, a row of maps for each; without a head, a column for each."""
    layers = range(maps.layers) if choice.layer is None else [choice.layer]
    heads = range(maps.heads) if choice.head is None else [choice.head]
    alone = len(layers) == len(heads) == 1
    title = f"{maps.model} on {maps.backend}: rows look, columns are looked at"
    (title, *names), families = _drawable([title, *(maps.tokens if alone else ())])
    side = min(_LARGEST, max(3.0, _INCH * len(maps.tokens))) if alone else _SMALL
    figure = Figure(figsize=(side * len(heads) + 1.2, side * len(layers) + 0.9), dpi=150, layout="compressed")
    axes = figure.subplots(len(layers), len(heads), squeeze=False)
    for row, layer in zip(axes, layers, strict=True):
        for axis, head in zip(row, heads, strict=True):
            image = axis.imshow(maps.weights[layer, head], cmap=_COLOURS, norm=_NORM, interpolation="nearest")
            axis.set(xticks=[], yticks=[])
    for axis, head in zip(axes[0], heads, strict=True):
        axis.set_title(f"head {head}", fontsize=8)
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
    """The words, with boxes for letters that no font has, and the font families to write them in."""
    families, missing = _fonts(set().union(*words))
    if missing:
        what = f"no installed font has {len(missing)} of the letters, which are drawn as {_BOX}"
        warnings.warn(f"{what}: a browser may have them, by --output page.html", MissingLettersWarning, stacklevel=4)
    seen = str.maketrans(dict.fromkeys(missing, _BOX) | {"$": r"\$"})  # no mathematics is meant
    return [word.translate(seen) for word in words], families


def _fonts(letters: set[str]) -> tuple[list[str], set[str]]:
    """matplotlib's own, then those installed that have letters which all before lack; and what no font has."""
    families, missing = [], {ord(letter) for letter in letters}
    for family in _installed():
        if not missing:
            break
        found = missing.intersection(get_font(findfont(family)).get_charmap())
        if found:
            families.append(family)
            missing -= found
    return families or ["sans-serif"], {chr(letter) for letter in missing}


def _installed() -> Iterator[str]:
    yield from rcParams["font.sans-serif"][:1]
    upright = {font.name for font in fontManager.ttflist if font.style == "normal" and font.weight == 400}
    yield from sorted(name for name in upright if not name.startswith("Last Resort"))  # which has a box for every letter
