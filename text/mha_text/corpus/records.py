"""Files whose rows end with a newline: lines of text, JSON lines, CSV."""

from __future__ import annotations

import codecs
import csv
import json
from array import array
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import BinaryIO

from .errors import CorpusError, shortened
from .rows import Columns, Row, Scan, Span, checked, decoded, type_of_ids

_LONGEST = 1 << 26
"""The most bytes of a row of CSV: a quote that is never closed would otherwise take the rest of the file into memory."""


@dataclass(frozen=True)
class Records:
    """A format whose rows end with a newline."""

    split: Callable[[Iterable[bytes]], Iterator[bytes]]
    """A function from the lines of a file to its rows; a row may begin with blank lines that are none."""
    reader: Callable[[str, str, Columns], Callable[[str], Row]]
    """A function from the path and header of a file to the function that reads a row."""
    unit: str = "row"
    """The name of a row in messages: "line" or "row". Both are counted from 1, rows of CSV without the header."""
    has_columns: bool = True
    """True if texts are in a column or field that has a name."""
    has_header: bool = False

    def scan(self, path: Path, columns: Columns, step: int) -> Scan:
        """Return where every ``step``-th row begins. Raises CorpusError if a column is missing."""
        starts, rows = array("q"), 0
        with path.open("rb") as file:
            position = len(self._header(file, str(path), columns)[0])
            records = self.split(file)
            while block := list(islice(records, step)):
                starts.append(position)
                rows += len(block)
                position += sum(map(len, block))
        starts.append(position)
        return Scan(rows, starts, type_of_ids(self.read(Span(str(path), ""), columns), columns))

    def read(self, span: Span, columns: Columns) -> Iterator[Row]:
        """Yield the rows of a span."""
        with open(span.path, "rb") as file:
            yield from self.read_from(file, span, columns)

    def read_from(self, file: BinaryIO, span: Span, columns: Columns) -> Iterator[Row]:
        """Yield the rows of a span of an open file, which need not be seekable for a whole one."""
        header, read = self._header(file, span.path, columns)
        if span.start > len(header):
            file.seek(span.start)
        for number, record in enumerate(self.split(_until(file, span))):
            at_start = number == span.start == 0 and not self.has_header
            start = len(codecs.BOM_UTF8) if at_start and record.startswith(codecs.BOM_UTF8) else 0
            row = decoded(record[start:], self.unit)
            yield row if row.reason is not None else read(row.text)

    def _header(self, file: BinaryIO, path: str, columns: Columns) -> tuple[bytes, Callable[[str], Row]]:
        """Return the first row, if it has the names of columns, and the function that reads the others."""
        header = next(self.split(file), b"") if self.has_header else b""
        names = decoded(header.removeprefix(codecs.BOM_UTF8), "header")
        if names.reason:
            raise CorpusError(f"{path}: {names.reason}")
        return header, self.reader(path, names.text, columns)


def _until(file: BinaryIO, span: Span) -> Iterator[bytes]:
    """Yield the lines of a file from where it is to the end of a span."""
    remaining = None if span.stop is None else span.stop - span.start
    for line in file if remaining is None or remaining > 0 else ():
        yield line
        if remaining is not None:
            remaining -= len(line)
            if remaining <= 0:
                return


def _after_blank_lines(lines: Iterable[bytes]) -> Iterator[bytes]:
    """Yield lines that are not blank, each with the blank lines before it."""
    blank = b""
    for line in lines:
        if line.isspace():
            blank += line
        else:
            yield blank + line
            blank = b""


def _after_closed_quotes(lines: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the rows of CSV, each with the blank lines before it.

    A newline ends a row unless it is between quotes. A quote in a quoted value is doubled, so quotes are even outside.
    """
    row: list[bytes] = []
    quotes = length = 0
    for line in lines:
        row.append(line)
        quotes, length = quotes + line.count(b'"'), length + len(line)
        if length > _LONGEST:
            raise CorpusError(f"a row of CSV is longer than {_LONGEST} bytes: a quote is not closed")
        if quotes % 2 == 0 and not (quotes == 0 and line.isspace()):
            yield b"".join(row)
            row, quotes, length = [], 0, 0
    if quotes:
        yield b"".join(row)


def _line_reader(path: str, header: str, columns: Columns) -> Callable[[str], Row]:
    return lambda line: Row(line.rstrip("\r\n"))


def _json_reader(path: str, header: str, columns: Columns) -> Callable[[str], Row]:
    def read(line: str) -> Row:
        try:
            fields = json.loads(line)
        except (ValueError, RecursionError) as error:
            return Row("", None, shortened(f"not valid JSON: {error}"))
        if not isinstance(fields, dict):
            return Row("", None, f"holds a JSON {type(fields).__name__}; expected an object with the field {columns.text!r}")
        for name in columns.names:
            if name not in fields:
                return Row("", None, shortened(f"has no field {name!r}: its fields are {', '.join(fields)}"))
        return checked(fields[columns.text], fields[columns.id] if columns.id is not None else None, columns)

    return read


def _csv_reader(delimiter: str) -> Callable[[str, str, Columns], Callable[[str], Row]]:
    def values(row: str) -> list[str]:
        csv.field_size_limit(max(csv.field_size_limit(), _LONGEST))  # 128 KiB by default; it is the process's
        return next(csv.reader([row.lstrip("\r\n")], delimiter=delimiter, strict=True), [])

    def reader(path: str, header: str, columns: Columns) -> Callable[[str], Row]:
        try:
            names = values(header)
        except csv.Error as error:  # such as lines that end with \r alone, which are all in one
            raise CorpusError(f"{path}: the header is not valid CSV, whose lines end with \\n or \\r\\n: {error}") from error
        for name in columns.names:
            if names.count(name) != 1:
                many = "no column" if name not in names else "more than one column"
                raise CorpusError(f"{path} has {many} {name!r}: its columns are {shortened(', '.join(names))}")
        places = [names.index(name) for name in (columns.text, columns.id) if name is not None]

        def read(row: str) -> Row:
            try:
                cells = values(row)
            except csv.Error as error:
                return Row("", None, f"not valid CSV: {error}")
            if len(cells) != len(names):
                return Row("", None, f"has {len(cells)} values; the header has {len(names)}")
            return checked(cells[places[0]], cells[places[1]] if places[1:] else None, columns)

        return read

    return reader


LINES = Records(iter, _line_reader, unit="line", has_columns=False)
JSON_LINES = Records(_after_blank_lines, _json_reader)
CSV = Records(_after_closed_quotes, _csv_reader(","), has_header=True)
TSV = Records(_after_closed_quotes, _csv_reader("\t"), has_header=True)
