"""A page to explore: every head at a glance, and of one of them the lines and the heat map. It asks nothing of a network."""

from __future__ import annotations

import base64
import warnings
from pathlib import Path
from typing import Any, BinaryIO

from ..offline import render
from .maps import AttentionMaps, Choice

_ONE = 65535  # a weight of 1: two bytes each keep four digits
_LARGE = 50e6  # bytes of a page: beyond, browsers take seconds to open it


class LargePageWarning(UserWarning):
    """The page takes patience: its size grows with the square of the tokens."""


def write(maps: AttentionMaps, choice: Choice, file: BinaryIO) -> None:
    """HTML with all that it needs inside. It opens on the choice: by default the last layer, and the mean of its heads.

    Warns with LargePageWarning of more than 50 MB.
    """
    page = render(Path(__file__).parent, maps=maps, data=_data(maps, choice)).encode("utf-8")
    file.write(page)
    if len(page) > _LARGE:
        count = len(maps.tokens)
        what = f"the page has {len(page) / 1e6:.0f} MB, for {maps.layers * maps.heads} maps of {count} x {count} weights"
        warnings.warn(f"{what}: browsers open it slowly, and that of a shorter text faster", LargePageWarning, stacklevel=2)


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
