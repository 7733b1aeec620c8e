"""Attention maps as an interactive HTML page that opens offline."""

from __future__ import annotations

import base64
import warnings
from pathlib import Path
from typing import Any, BinaryIO

from mha_core.cli.offline import render

from .maps import AttentionMaps, Choice, Head

_ONE = 65535  # stored number for a weight of 1: two bytes per weight keep four digits
_LARGE = 50e6  # bytes; browsers take seconds to open a larger page


class LargePageWarning(UserWarning):
    """The page opens slowly: its size grows with the square of the number of tokens."""


def write(maps: AttentionMaps, choice: Choice, file: BinaryIO) -> None:
    """Write a self-contained HTML page that opens on the choice, by default the most telling head, with no token selected."""
    layer, head = choice.one(maps)
    choice_text = (reason := choice.reason(maps)) and f"layer {layer}, head {head}: {reason}"
    page = render(
        Path(__file__).parent, maps=maps, data=_data(maps, layer, head, choice.token), choice_text=choice_text
    ).encode("utf-8")
    file.write(page)
    if len(page) > _LARGE:
        count = len(maps.tokens)
        what = f"the page has {len(page) / 1e6:.0f} MB, for {maps.layers * maps.heads} maps of {count} x {count} weights"
        warnings.warn(f"{what}: browsers open it slowly; use a shorter text", LargePageWarning, stacklevel=2)


def _data(maps: AttentionMaps, layer: int, head: Head, token: int | None) -> dict[str, Any]:
    """Return the data for the script; head "mean" is the mean of all heads of a layer, and ``token`` is selected."""
    numbers = (maps.weights * _ONE).round().astype("<u2")
    return {
        "tokens": maps.tokens,
        "special": maps.special,
        "layers": maps.layers,
        "heads": maps.heads,
        "one": _ONE,
        "weights": base64.b64encode(numbers.tobytes()).decode("ascii"),
        "layer": layer,
        "head": head,
        "token": token,
    }
