"""Parquet files as rows of texts, read in small batches."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

from .errors import CorpusError, shortened
from .rows import ID_TYPES, Columns, Row, Scan, Span, checked, decoded

_BATCH = 1024  # rows in memory
_BUFFER = 1 << 20  # bytes that are read ahead of a column


def pyarrow() -> Any:
    """Return pyarrow with what this package uses of it. Raises ModuleNotFoundError that says how to install it."""
    try:
        import pyarrow.parquet
    except ModuleNotFoundError as missing:
        if missing.name != "pyarrow":
            raise
        raise ModuleNotFoundError(
            "Parquet needs pyarrow, which is not installed: pip install 'mha-text[corpus]'", name="pyarrow"
        ) from missing
    return pyarrow


@dataclass(frozen=True)
class Parquet:
    """The format of Parquet files, with the properties and methods of ``Records``."""

    unit: str = "row"
    has_columns: bool = True

    def scan(self, path: Path, columns: Columns, step: int) -> Scan:
        with _opened(path) as file:
            schema, rows = file.schema_arrow, file.metadata.num_rows
        for name in columns.names:
            if schema.names.count(name) != 1:
                raise CorpusError(f"{path} has no column {name!r}: its columns are {', '.join(schema.names)}")
        kind = _kind(schema.field(columns.text).type)
        if kind != ID_TYPES[str]:
            raise CorpusError(f"{path}: column {columns.text!r} holds {schema.field(columns.text).type}; expected strings")
        id_type = ID_TYPES[int] if columns.id is None else _kind(schema.field(columns.id).type)
        if id_type is None:
            raise CorpusError(
                f"{path}: column {columns.id!r} holds {schema.field(columns.id).type}; ids are integers or strings"
            )
        return Scan(rows, array("q", [*range(0, rows, step), rows]), id_type)

    def read(self, span: Span, columns: Columns) -> Iterator[Row]:
        with _opened(Path(span.path)) as file:
            stop = file.metadata.num_rows if span.stop is None else span.stop
            groups, before = _row_groups(file.metadata, span.start, stop)
            skipped, remaining = span.start - before, stop - span.start
            with readable(Path(span.path)):
                for batch in file.iter_batches(_BATCH, row_groups=groups, columns=columns.names, use_threads=False):
                    part = batch.slice(skipped, remaining)
                    skipped = max(0, skipped - batch.num_rows)
                    remaining -= part.num_rows
                    yield from _rows(part, columns, self.unit)


def _opened(path: Path) -> Any:
    library = pyarrow()
    with readable(path):
        return library.parquet.ParquetFile(path, buffer_size=_BUFFER, pre_buffer=False)


@contextmanager
def readable(path: Path) -> Iterator[None]:
    """Raise CorpusError that names the file for whatever Arrow says of its contents, in a block that reads it."""
    library = pyarrow()
    try:
        yield
    except (library.ArrowException, OSError, UnicodeDecodeError) as cause:
        if isinstance(cause, OSError) and cause.errno is not None:
            raise  # of the system; Arrow's own have no number
        reason = shortened(str(cause).partition("\n")[0])
        raise CorpusError(f"{path} is not a Parquet file, or is damaged: {reason}") from cause


def _row_groups(metadata: Any, start: int, stop: int) -> tuple[list[int], int]:
    """Return the row groups that have any of the rows from ``start`` to ``stop``, and the number of rows before them."""
    count = metadata.num_row_groups
    firsts = list(accumulate((metadata.row_group(at).num_rows for at in range(count)), initial=0))
    groups = [at for at in range(count) if firsts[at + 1] > start and firsts[at] < stop]
    return groups, firsts[groups[0]] if groups else 0


def _rows(batch: Any, columns: Columns, unit: str) -> Iterator[Row]:
    texts = _as_bytes(batch.column(columns.text))
    ids = batch.column(columns.id).to_pylist() if columns.id is not None else [None] * batch.num_rows
    for text, id in zip(texts, ids, strict=True):
        row = checked(None, id, columns) if text is None else decoded(text, unit)
        yield row._replace(id=id) if row.reason else checked(row.text, id, columns)


def _as_bytes(texts: Any) -> list[bytes | None]:
    """Return a column of strings as bytes, since Arrow does not promise that they are UTF-8."""
    library = pyarrow()
    if library.types.is_dictionary(texts.type):
        texts = texts.dictionary_decode()
    column: list[bytes | None] = texts.cast(library.large_binary()).to_pylist()
    return column


def _kind(arrow_type: Any) -> str | None:
    """Return the one of ID_TYPES that an Arrow type is; None for any other."""
    types = pyarrow().types
    if types.is_dictionary(arrow_type):
        arrow_type = arrow_type.value_type
    if any(is_kind(arrow_type) for is_kind in (types.is_string, types.is_large_string, types.is_string_view, types.is_null)):
        return ID_TYPES[str]
    return ID_TYPES[int] if types.is_integer(arrow_type) else None
