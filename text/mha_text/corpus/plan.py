"""A corpus cut into parts, each of which makes one file of vectors."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

from .errors import CorpusError
from .rows import Columns, Scan, Span
from .sources import FORMATS, Source

STEP = 512
"""Rows between two places at which a file may be cut."""
_PARTS = 64
"""A small corpus is cut into about as many parts, for workers to share; a large one into parts of _LARGEST rows."""
_LARGEST = 16 * STEP


@dataclass(frozen=True)
class Scanned:
    """A file of a corpus, which has been read once."""

    source: Source
    scan: Scan
    sha256: str
    """The digest of its contents."""


@dataclass(frozen=True)
class Part:
    """Adjacent rows of a corpus, which make one file of vectors."""

    name: str
    spans: tuple[Span, ...]
    first: int
    """The number of rows before these."""
    rows: int


@dataclass(frozen=True)
class Plan:
    """The parts of a corpus: as many rows in each as fit into ``part_rows``."""

    files: Sequence[Scanned]
    step: int
    part_rows: int

    @classmethod
    def of(cls, files: Sequence[Scanned], part_rows: int | None) -> Plan:
        """Choose the size of a part, by the number of rows alone, so that it is the same however many workers there are."""
        if part_rows is not None:
            return cls(files, part_rows, part_rows)
        steps = -(-sum(file.scan.rows for file in files) // (_PARTS * STEP))
        return cls(files, STEP, min(max(1, steps) * STEP, _LARGEST))

    @property
    def rows(self) -> int:
        """The number of rows of the corpus."""
        return sum(file.scan.rows for file in self.files)

    @property
    def id_type(self) -> str:
        """The type of the ids. Raises CorpusError if those of two files differ."""
        types = {file.scan.id_type: file.source.path for file in self.files if file.scan.rows}
        if len(types) > 1:
            (one, first), (other, second) = types.items()
            raise CorpusError(
                f"the ids of {first} are {one}, and those of {second} {other}; expected the same type in all files"
            )
        return next(iter(types), "int64")

    def parts(self) -> Iterator[Part]:
        """Yield the parts, in order of their rows and of their names."""
        digits = len(f"{self.rows // self.step + len(self.files):05}")
        spans: list[Span] = []
        number = first = rows = 0
        for span, count in self._pieces():
            if rows + count > self.part_rows:
                yield Part(f"part-{number:0{digits}}.parquet", tuple(spans), first, rows)
                spans, number, first, rows = [], number + 1, first + rows, 0
            if spans and spans[-1].path == span.path and spans[-1].stop == span.start:
                spans[-1] = replace(spans[-1], stop=span.stop)
            else:
                spans.append(span)
            rows += count
        if spans:
            yield Part(f"part-{number:0{digits}}.parquet", tuple(spans), first, rows)

    def _pieces(self) -> Iterator[tuple[Span, int]]:
        """Yield spans of up to ``step`` rows, with their numbers of rows."""
        for file in self.files:
            for at, (start, stop) in enumerate(pairwise(file.scan.starts)):
                first = at * self.step
                span = Span(str(file.source.path), file.source.format, start, stop, first)
                yield span, min(self.step, file.scan.rows - first)


def scan(columns: Columns, numbered: tuple[int, Source, int]) -> tuple[int, Scanned]:
    """Read a file once; returns its number too. Raises CorpusError if it is not what its suffix says, or has no such column."""
    number, source, step = numbered
    if source.path.exists() and not source.path.is_file():
        raise CorpusError(f"{source.path} is a pipe or a device, which can be read only once; expected a file")
    if not source.path.is_file():
        raise FileNotFoundError(
            f"{source.path} is not on {platform.node()}: every worker must find texts, model and output under the same paths"
        )
    rows = FORMATS[source.format].scan(source.path, columns, step)
    sha256 = digest_of(None, (number, source.path))[1]
    assert sha256 is not None
    return number, Scanned(source, rows, sha256)


def digest_of(_: None, numbered: tuple[int, Path]) -> tuple[int, str | None]:
    """Return the number of a file, and the sha256 of its contents; None if it is gone."""
    number, path = numbered
    try:
        with path.open("rb") as file:
            return number, hashlib.file_digest(file, "sha256").hexdigest()
    except FileNotFoundError:
        return number, None
