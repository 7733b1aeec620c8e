"""``mha attend``: show attention maps of a text as a page, a picture or in the terminal."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from ...layers.atomic import atomic_file
from .maps import AttentionMaps, Choice, Head, attention_maps


def _page(maps: AttentionMaps, choice: Choice, file: BinaryIO) -> None:
    from . import page

    page.write(maps, choice, file)


def _picture(maps: AttentionMaps, choice: Choice, file: BinaryIO) -> None:
    from . import picture

    picture.write(maps, choice, file)


WRITERS: dict[str, Callable[[AttentionMaps, Choice, BinaryIO], None]] = {".html": _page, ".png": _picture}
"""Writers by file name extension; each imports its own libraries."""


def run(text: str, model: str, backend: str | None, output: str, layer: int | None, head: Head | None) -> None:
    """Compute the maps and show them. The file is opened first, so that a bad path fails immediately.

    Raises NoSuchHead, NoTokens, and what ``TextEncoder.from_pretrained`` and ``attention_maps`` raise.
    """
    if output == "-":
        from . import terminal

        maps = attention_maps(text, model, backend)
        terminal.show(maps, Choice.of(maps, layer, head))
        return
    path = Path(output)
    with atomic_file(path) as file:
        maps = attention_maps(text, model, backend)
        WRITERS[path.suffix](maps, Choice.of(maps, layer, head), file)
    layers, heads, tokens, _ = maps.weights.shape
    print(f"wrote {output}: {tokens} tokens in {layers} layers of {heads} heads")
