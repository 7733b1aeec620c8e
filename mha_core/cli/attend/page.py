"""A page to explore: every head at a glance, and of one of them the lines and the heat map. It asks nothing of a network."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any, BinaryIO

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from plotly.offline import get_plotlyjs

from .maps import AttentionMaps, Choice

_ONE = 65535  # a weight of 1: two bytes each keep four digits


def write(maps: AttentionMaps, choice: Choice, file: BinaryIO) -> None:
    """HTML with all that it needs inside. It opens on the choice: by default the last layer, and the mean of its heads."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    page = environment.get_template("page.html.j2").render(maps=maps, data=_data(maps, choice), plotly=get_plotlyjs())
    file.write(page.encode("utf-8"))


def _data(maps: AttentionMaps, choice: Choice) -> dict[str, Any]:
    """What the script reads; its head "mean" is that of all heads of a layer."""
    numbers = (maps.weights * _ONE).round().astype("<u2")
    return {
        "tokens": maps.tokens,
        "special": maps.special,
        "layers": maps.layers,
        "heads": maps.heads,
        "one": _ONE,
        "weights": base64.b64encode(numbers.tobytes()).decode("ascii"),
        "layer": maps.layers - 1 if choice.layer is None else choice.layer,
        "head": "mean" if choice.head is None else choice.head,
    }
