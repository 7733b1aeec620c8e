"""A picture of heat maps, drawn by matplotlib: all heads, or those asked for; one alone has its tokens written at it."""

from __future__ import annotations

from typing import BinaryIO

from matplotlib.axes import Axes
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure

from .maps import AttentionMaps, Choice

_NORM = PowerNorm(0.5, 0, 1)  # by the square root, so that small weights are seen
_COLOURS = "magma"
_INCH = 0.2  # of a token beside a map that stands alone
_SMALL = 1.1  # inches of one map among many
_LARGEST = 24.0


def write(maps: AttentionMaps, choice: Choice, file: BinaryIO) -> None:
    """PNG, 150 dots per inch."""
    drawn(maps, choice).savefig(file, format="png")


def drawn(maps: AttentionMaps, choice: Choice) -> Figure:
    """Without a layer, a row of maps for each; without a head, a column for each."""
    layers = range(maps.layers) if choice.layer is None else [choice.layer]
    heads = range(maps.heads) if choice.head is None else [choice.head]
    alone = len(layers) == len(heads) == 1
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
        _write_tokens(axes[0, 0], maps.tokens, min(8.0, 50 * side / len(maps.tokens)))
    bar = figure.colorbar(image, ax=axes, fraction=0.04, pad=0.02, ticks=[0, 0.05, 0.25, 0.5, 1])
    bar.ax.tick_params(labelsize=7)
    figure.suptitle(f"{maps.model} on {maps.backend}: rows look, columns are looked at", fontsize=9)
    return figure


def _write_tokens(axis: Axes, tokens: tuple[str, ...], size: float) -> None:
    names = [token.replace("$", r"\$") for token in tokens]  # no mathematics is meant
    axis.set_xticks(range(len(names)), names, rotation=90, fontsize=size)
    axis.set_yticks(range(len(names)), names, fontsize=size)
