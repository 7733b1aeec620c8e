"""Files that are written whole or not at all."""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})
_LONGEST = 200
"""Bytes of a name that leave room for what a temporary name adds: file systems allow 255."""


@contextmanager
def atomic_file(path: Path) -> Iterator[BinaryIO]:
    """Open a file that replaces ``path`` at the end of the block, and is removed if the block raises.

    A file that is replaced keeps its permissions. A symbolic link stays one: its target is replaced. What is no regular file,
    such as a pipe or a device, receives all bytes at the end of the block. Files left by a process that was killed while it
    wrote to the same path are removed. Raises OSError that names ``path``, also if the disk is full.
    """
    try:
        mode: int | None = path.stat().st_mode
    except FileNotFoundError:
        mode = None
    except OSError as error:
        raise _unwritable(path, error) from error
    if mode is not None and stat.S_ISDIR(mode):
        raise IsADirectoryError(f"{path} is a directory; expected the name of a file")
    regular = mode is None or stat.S_ISREG(mode)
    try:
        with _replacing(path, mode) if regular else _written_at_the_end(path) as file:
            yield file
    except OSError as error:
        if error.errno not in _FULL or error.filename is not None:
            raise  # it names the file already, or is about another one
        raise _unwritable(path, error) from error


@contextmanager
def _replacing(path: Path, mode: int | None) -> Iterator[BinaryIO]:
    """Yield a temporary file beside the target of ``path``, which then takes its place."""
    target = path.resolve()
    try:
        remove_left_over(target.parent, _stem(target))
        handle, temporary = _temporary(target, 0o666 if mode is None else 0o600)
    except OSError as error:
        raise _unwritable(path, error) from error
    try:
        with os.fdopen(handle, "w+b") as file:
            yield file
            file.flush()
            if mode is not None:
                os.chmod(temporary, stat.S_IMODE(mode))
            if os.name != "nt":
                os.replace(temporary, target)  # while it is locked
        if os.name == "nt":
            os.replace(temporary, target)  # Windows renames no open file
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(temporary)
        raise


@contextmanager
def _written_at_the_end(path: Path) -> Iterator[BinaryIO]:
    """Yield a temporary file whose bytes are then written into a pipe or a device."""
    import shutil
    import tempfile

    if not os.access(path, os.W_OK):
        raise PermissionError(f"{path} cannot be written: Permission denied")
    with tempfile.TemporaryFile() as file:
        yield file
        file.seek(0)
        try:
            with path.open("wb") as device:
                shutil.copyfileobj(file, device)
        except OSError as error:
            raise _unwritable(path, error) from error


def _stem(target: Path) -> str:
    import hashlib

    name = os.fsencode(target.name)
    return target.name if len(name) <= _LONGEST else hashlib.sha256(name).hexdigest()


def _temporary(target: Path, mode: int) -> tuple[int, str]:
    """Return a new file beside ``target``, opened and locked for as long as it is open, and its name.

    Its permissions are those of ``mode`` that the process's umask allows. To ask for a umask is to change it, for all threads.
    """
    while True:
        name = target.parent / f".{_stem(target)}.{os.urandom(4).hex()}.part"
        try:
            handle = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), mode)
        except FileExistsError:
            continue
        if lock(handle) is not False and os.fstat(handle).st_nlink:
            return handle, str(name)
        os.close(handle)  # another process took it for left over before it was locked


def remove_left_over(folder: Path, name: str | None = None) -> None:
    """Remove temporary files of earlier processes in a folder, for ``name`` or for any; a live process still holds its lock."""
    pattern = re.compile((r"\..+" if name is None else re.escape(f".{name}")) + r"\.[a-z0-9_]{8}\.part")
    names: list[str] = []
    with suppress(PermissionError):  # files can be made in some directories that cannot be listed
        names = os.listdir(folder)
    for leftover in (folder / name for name in names if pattern.fullmatch(name)):
        with suppress(OSError):  # gone, or another user's
            handle = os.open(leftover, os.O_RDWR)
            try:
                is_left_over = lock(handle)
                if is_left_over and os.name != "nt":
                    leftover.unlink()  # while it is locked: its writer, if there is one, then sees that it is gone
            finally:
                os.close(handle)
            if is_left_over and os.name == "nt":
                leftover.unlink()


def lock(handle: int) -> bool | None:
    """Lock an open file. Return False if another process has it locked, None if the file system has no locks.

    Windows needs none: it does not remove an open file.
    """
    try:
        import fcntl
    except ImportError:
        return True
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def _unwritable(path: Path, error: OSError) -> OSError:
    return type(error)(f"{path} cannot be written: {error.strerror}")
