"""The files of a corpus, from paths, folders and patterns."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from .errors import BadText, CorpusError
from .parquet import Parquet
from .records import CSV, JSON_LINES, LINES, TSV, Records
from .rows import Columns, Row, Span

FORMATS: Mapping[str, Records | Parquet] = {"lines": LINES, "json": JSON_LINES, "csv": CSV, "tsv": TSV, "parquet": Parquet()}
"""The formats of files by name."""

_SUFFIXES = {
    **dict.fromkeys((".jsonl", ".ndjson", ".json"), "json"),
    **dict.fromkeys((".parquet", ".pq"), "parquet"),
    ".csv": "csv",
    ".tsv": "tsv",
    ".txt": "lines",
}
_COMPRESSED = (".gz", ".bz2", ".xz", ".zst", ".lz4", ".zip")


@dataclass(frozen=True)
class Source:
    """A file of a corpus."""

    path: Path
    format: str
    """The name of its format, by its suffix; a file with another suffix has lines of text."""


def find(sources: str | os.PathLike[str] | Iterable[str | os.PathLike[str]], columns: Columns) -> list[Source]:
    """Return the files of a corpus, in order: those of a folder or of a pattern such as ``corpus/*.parquet`` sorted by path.

    Raises FileNotFoundError if there is none, and CorpusError if a format is not known or does not fit ``columns``.
    """
    paths = [sources] if isinstance(sources, str | os.PathLike) else list(sources)
    files = [source for path in paths for source in _matching(Path(path))]
    if not files:
        raise FileNotFoundError("there are no files of texts")
    for source in files:
        if FORMATS[source.format].has_columns and columns.text is None:
            raise CorpusError(f"{source.path} has columns: say which one holds the texts, with column (--column)")
        if not FORMATS[source.format].has_columns and columns != Columns():
            raise CorpusError(f"{source.path} has lines of text, and no columns: leave out column (--column) and id (--id)")
    return files


def whole(source: Source) -> Span:
    """Return all rows of a file."""
    return Span(str(source.path), source.format)


def numbered_rows(spans: Iterable[Span], columns: Columns) -> Iterator[tuple[Span, int, Row]]:
    """Yield the rows of spans, with their numbers in their files, from 1."""
    for span in spans:
        for number, row in enumerate(FORMATS[span.format].read(span, columns), span.first + 1):
            yield span, number, row


def bad_text(span: Span, number: int, reason: str) -> BadText:
    """Return the error for a row without a text that can be encoded."""
    return BadText(f"{span.path}, {FORMATS[span.format].unit} {number}: {reason}")


def _matching(path: Path) -> list[Source]:
    if path.is_dir():
        inside = sorted(each for each in path.rglob("*") if each.is_file() and not _is_hidden(each.relative_to(path)))
        unknown = next((each for each in inside if each.suffix not in _SUFFIXES), None)
        if unknown is not None:
            raise CorpusError(
                f"{path} holds {unknown.name}, whose format is not known: give a pattern such as '{path}/*.parquet'"
            )
        return [_source(each) for each in inside]
    if path.exists():
        return [_source(path)]
    if not glob.has_magic(str(path)):
        raise FileNotFoundError(f"{str(path)!r} does not exist")
    matching = [Path(name) for name in sorted(glob.glob(str(path), recursive=True)) if not os.path.isdir(name)]
    if not matching:
        raise FileNotFoundError(f"no file matches {str(path)!r}")
    return [_source(each) for each in matching]


def _is_hidden(path: Path) -> bool:
    """Return True if readers of such folders pass over a file: a mark of its writer, such as _SUCCESS."""
    return any(part.startswith((".", "_")) for part in path.parts)


def _source(path: Path) -> Source:
    if path.suffix in _COMPRESSED:
        raise CorpusError(f"{path} is compressed, and cannot be read from the middle: decompress it, or convert it to Parquet")
    return Source(path, _SUFFIXES.get(path.suffix, "lines"))
