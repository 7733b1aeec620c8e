"""``mha attend``: show attention maps of a text as a page, a picture or in the terminal."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

from mha_core.cli.tables import prose_console
from mha_core.shared import atomic_file

from .maps import Choice, Head, attention_maps

WRITERS = {".html": "page", ".png": "picture"}
"""The modules that write files, by the ends of their names; each imports its own libraries."""


def run(
    text: str, model: str, backend: str | None, output: str, layer: int | None, head: Head | None, token: str | None
) -> None:
    """Compute the maps and show them. The file is opened first, so that a bad path fails immediately."""
    if output == "-":
        from . import terminal

        maps = attention_maps(text, model, backend)
        terminal.show(maps, Choice.of(maps, layer, head))
        _note_an_empty_text(text)
        return
    path = Path(output)
    with atomic_file(path) as file:
        maps = attention_maps(text, model, backend)
        writer = import_module(f".{WRITERS[path.suffix]}", __package__)
        writer.write(maps, Choice.of(maps, layer, head, token), file)
    layers, heads, tokens, _ = maps.weights.shape
    print(f"wrote {output}: {tokens} tokens in {layers} layers of {heads} heads")
    _note_an_empty_text(text)


def _note_an_empty_text(text: str) -> None:
    if not text.strip():
        prose_console(stderr=True).print("the text is empty: its tokens are special ones")
