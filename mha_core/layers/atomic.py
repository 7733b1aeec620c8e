"""Files that are written whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO


@contextmanager
def atomic_file(path: Path) -> Iterator[BinaryIO]:
    """Open a file that replaces ``path`` at the end of the block, and is removed if the block raises.

    A symbolic link stays one: its target is replaced. Raises OSError that names ``path``.
    """
    import tempfile  # takes 2 ms; imported only to write a file

    target = path.resolve()
    if target.is_dir():
        raise IsADirectoryError(f"{path} is a directory; expected the name of a file")
    try:
        handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.", suffix=".part")
    except OSError as error:
        raise type(error)(f"{path} cannot be written: {error.strerror}") from error
    try:
        with os.fdopen(handle, "w+b") as file:
            yield file
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, target)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(temporary)
        raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
