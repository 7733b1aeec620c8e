"""Rows of a file, each a text with an id, in every format of files."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from .errors import shortened

ID_TYPES: dict[type, str] = {int: "int64", str: "string"}
"""The types that an id may have, and the names by which Arrow knows them."""


@dataclass(frozen=True)
class Columns:
    """The columns or fields of a file that hold the texts and their ids."""

    text: str | None = None
    """None: the file has lines of text."""
    id: str | None = None
    """None: the id of a row is its number in the corpus, from 0."""

    @property
    def names(self) -> tuple[str, ...]:
        """The names that are given, each once."""
        return tuple(dict.fromkeys(name for name in (self.text, self.id) if name is not None))


class Row(NamedTuple):
    """A text and its id, or the reason why the row has no text that can be encoded."""

    text: str
    id: Any = None
    reason: str | None = None


@dataclass(frozen=True)
class Span:
    """Adjacent rows of one file."""

    path: str
    format: str
    """The name of its format."""
    start: int = 0
    """Where the first row begins: a byte, or in Parquet a row."""
    stop: int | None = None
    """Where the last row ends; None: at the end of the file."""
    first: int = 0
    """The number of rows of the file before these."""


@dataclass(frozen=True)
class Scan:
    """The number of rows of a file, and the places at which it may be cut."""

    rows: int
    starts: array[int]
    """Where every ``step``-th row begins, and where the last row ends."""
    id_type: str
    """The type of the first id, a value of ID_TYPES."""


def checked(text: Any, id: Any, columns: Columns) -> Row:
    """Return two values of a file as a row."""
    if not isinstance(text, str):
        return Row("", id, f"{columns.text} is {_kind(text)}")
    if columns.id is not None and type(id) not in ID_TYPES:
        return Row("", None, f"{columns.id} is {_kind(id)}; an id is an integer or a string")
    for name, value in ((columns.text, text), (columns.id, id)):
        if isinstance(value, str):
            try:
                value.encode()
            except UnicodeEncodeError as error:
                reason = f"{name} cannot be written as UTF-8: {error.reason} at character {error.start + 1}"
                return Row("", None if value is id else id, shortened(reason))
    return Row(text, id)


def decoded(text: bytes, unit: str) -> Row:
    """Return bytes as a row without an id."""
    try:
        return Row(text.decode())
    except UnicodeDecodeError as error:
        return Row("", None, f"not valid UTF-8 (byte {error.start + 1} of the {unit}: {error.reason})")


def type_of_ids(rows: Iterator[Row], columns: Columns) -> str:
    """Return the type of the first id among rows; "int64" if there is none."""
    ids = (row.id for row in rows if row.reason is None) if columns.id is not None else iter(())
    return ID_TYPES[type(next(ids, 0))]


def _kind(value: Any) -> str:
    return "null" if value is None else f"a value of type {type(value).__name__}"
