"""The manifest of a folder of vectors: what was encoded, with which model, and how."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mha_core.shared import atomic_file, lock, remove_left_over

from .differences import differences
from .errors import CorpusError, shortened
from .parquet import pyarrow
from .precision import PRECISIONS
from .rows import ID_TYPES

MANIFEST = "_manifest.json"
SUCCESS = "_SUCCESS"
_FIELDS = {"rows": int, "dim": int, "parts": int, "model": dict, "options": dict, "sources": list}
_OPTIONS = {**dict.fromkeys(("column", "id"), str | None), "id_type": str, "truncate_dim": int | None, "precision": str}
REJECTED = "_rejected/rejected.parquet"
"""In a folder of its own, since readers take all Parquet files of a folder for parts."""


def as_bytes(manifest: Mapping[str, Any]) -> bytes:
    """Return a manifest as it is written; equal ones are equal bytes."""
    return json.dumps(manifest, indent=1).encode() + b"\n"


def digest(manifest: Mapping[str, Any]) -> str:
    """Return the sha256 of a manifest."""
    return hashlib.sha256(as_bytes(manifest)).hexdigest()


@dataclass(frozen=True)
class Whole:
    """What a folder of vectors says that is whole."""

    manifest: dict[str, Any]
    seal: bytes
    """What ``sealed`` returned for the manifest and the files of the model that made the vectors."""


def whole(folder: Path) -> Whole | None:
    """Return what a folder says; None if it is not whole, or was not sealed."""
    path = folder / SUCCESS
    seal = path.read_bytes() if path.exists() else b""
    return Whole(read(folder), seal) if seal else None


def sealed(manifest: Mapping[str, Any], files_sha256: str) -> bytes:
    """Return the digest of a manifest and of the digest of the model's files; nothing if that is not known.

    A later run with the same files need not read the model to know that it is the manifest's.
    """
    return hashlib.sha256(as_bytes(manifest) + files_sha256.encode()).hexdigest().encode() if files_sha256 else b""


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Make this the only run that writes into a folder, which is created. Raises CorpusError if another one does already.

    The system releases the folder when the process ends, however it ends. Windows, and some file systems, have no such lock.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if sys.platform == "win32":
        yield
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        if lock(handle) is False:
            raise CorpusError(f"another run writes into {folder}: wait for its end, or give another folder")
        yield
    finally:
        os.close(handle)


def begin(folder: Path, manifest: Mapping[str, Any]) -> None:
    """Write the manifest of a new or empty folder, or raise CorpusError that says what differs."""
    path = folder / MANIFEST
    remove_left_over(folder)  # of a run that was killed
    if path.exists():
        begun = read(folder)
        if begun != manifest:
            raise CorpusError(
                f"{folder} was begun with something else: {'; '.join(differences(begun, manifest))}. "
                "Give another folder, or remove this one"
            )
    elif any(folder.iterdir()):
        raise FileExistsError(f"{folder} has other files, and no {MANIFEST}; expected a new or empty folder")
    else:
        with atomic_file(path) as file:
            file.write(as_bytes(manifest))
    (folder / SUCCESS).unlink(missing_ok=True)


def finish(folder: Path, rejected: Sequence[tuple[str, int, str]], seal: bytes) -> None:
    """Write the list of rows without vectors, if there are any, and the mark of a whole folder, last; it holds the seal."""
    remove_left_over(folder)
    if rejected:
        library = pyarrow()
        names, types = ("file", "row", "reason"), (library.string(), library.int64(), library.string())
        values = [library.array(column, type=kind) for column, kind in zip(zip(*rejected, strict=True), types, strict=True)]
        (folder / REJECTED).parent.mkdir(exist_ok=True)
        with atomic_file(folder / REJECTED) as file:
            library.parquet.write_table(library.table(dict(zip(names, values, strict=True))), file)
    with atomic_file(folder / SUCCESS) as file:
        file.write(seal)


def read(folder: Path) -> dict[str, Any]:
    """Return the manifest of a folder. Raises CorpusError if there is none."""
    path = folder / MANIFEST
    try:
        manifest = json.loads(path.read_bytes())
    except FileNotFoundError as cause:
        raise CorpusError(f"{folder} has no {MANIFEST}: it was not written by mha encode") from cause
    except (ValueError, RecursionError) as cause:
        raise CorpusError(f"{path} is not valid JSON: {cause}") from cause
    if not isinstance(manifest, dict) or manifest.get("format") != 1:
        raise CorpusError(f"{path} is of another format; expected format 1")
    _check(path, manifest, _FIELDS)
    _check(path, manifest["options"], _OPTIONS, "options.")
    for name, known in (("precision", PRECISIONS), ("id_type", ID_TYPES.values())):
        if manifest["options"][name] not in known:
            raise CorpusError(
                f"{path}: options.{name} is not one of {', '.join(known)}; mha encode did not write this; give another folder"
            )
    return manifest


def _check(path: Path, values: Mapping[str, Any], types: Mapping[str, Any], prefix: str = "") -> None:
    """Raise CorpusError for a value that is missing, or of another type."""
    for name, kind in types.items():
        value = values.get(name, ...)
        if not isinstance(value, kind) or isinstance(value, bool) or (isinstance(value, int) and value < 0):
            what = "is missing" if value is ... else f"is {shortened(repr(value))}"
            raise CorpusError(f"{path}: {prefix}{name} {what}; mha encode did not write this; give another folder")
