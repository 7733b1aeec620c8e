"""Models that no package carries: written once, to build/."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

BUILD = Path(__file__).parents[2] / "build"
TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.txt")
"""The files of a tokenizer."""


def once(folder: Path, write: Callable[[Path], None]) -> Path:
    """Return the folder of a model; ``write(empty_folder)`` writes its files if the folder does not exist.

    The folder appears only when it is complete. Another process that writes it at the same time must write the same files.
    """
    if folder.exists():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    empty = Path(tempfile.mkdtemp(dir=folder.parent))
    try:
        write(empty)
        os.rename(empty, folder)
    except OSError:
        if not folder.exists():
            raise
    finally:
        shutil.rmtree(empty, ignore_errors=True)
    return folder


def copy_files(source: Path, folder: Path, names: Iterable[str]) -> None:
    """Copy files from one folder to another."""
    for name in names:
        shutil.copyfile(source / name, folder / name)
