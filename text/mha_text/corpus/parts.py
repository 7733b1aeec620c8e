"""A part of a corpus as a Parquet file of ids and vectors."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mha_core.shared import atomic_file

from .errors import CorpusError
from .parquet import pyarrow, readable
from .precision import PRECISIONS

_KEY = b"mha_core"
_BLOCK = 4096  # vectors in memory


@dataclass(frozen=True)
class Report:
    """The results for the rows of a part."""

    texts: int
    """The number of vectors."""
    tokens: int
    """The number of tokens of all texts, special tokens included."""
    cut: int
    """The number of texts that were longer than the model's limit."""
    rejected: tuple[tuple[str, int, str], ...] = ()
    """File, row from 1, and reason of each row that has no vector."""

    @classmethod
    def sum(cls, reports: Iterable[Report]) -> Report:
        """Return the results of several parts together."""
        every = list(reports)
        texts, tokens, cut = (sum(getattr(each, name) for each in every) for name in ("texts", "tokens", "cut"))
        return cls(texts, tokens, cut, tuple(sorted(row for each in every for row in each.rejected)))


@dataclass(frozen=True)
class Layout:
    """The columns of the parts of a folder, and the job that they were written for."""

    id_type: str
    precision: str
    dim: int
    job: str
    """The sha256 of the manifest."""

    def schema(self) -> Any:
        """Return the columns as Arrow knows them."""
        library, precision = pyarrow(), PRECISIONS[self.precision]
        numbers = library.list_(library.type_for_alias(precision.element), -(-self.dim // precision.packed))
        columns = [("id", library.type_for_alias(self.id_type)), ("vector", numbers)]
        return library.schema([*columns, ("scale", library.float32())] if precision.has_scale else columns)


class _Checksum:
    """The sha256 of ids, numbers and scales, which come in blocks of any size, and of a part's name and report."""

    def __init__(self) -> None:
        self._columns = [hashlib.sha256() for _ in range(3)]

    def add(self, ids: Iterable[Any], stored: Any, scale: Any) -> None:
        """Add rows; scale may be None."""
        numbers = [stored.tobytes(), b"" if scale is None else scale.tobytes()]
        for column, data in zip(self._columns, ["".join(f"{id!r}\n" for id in ids).encode(), *numbers], strict=True):
            column.update(data)

    def hex(self, name: str, report: Report) -> str:
        """Return the sum of all rows, for the file of this name: parts may have been exchanged."""
        about = json.dumps([name, asdict(report)]).encode()
        return hashlib.sha256(b"".join([*(column.digest() for column in self._columns), about])).hexdigest()


def write_part(path: Path, ids: Sequence[Any], vectors: Any, report: Report, layout: Layout) -> None:
    """Write vectors, (n, d) in float32, whole or not at all, with their report, a checksum, and the job in the metadata."""
    library, precision = pyarrow(), PRECISIONS[layout.precision]
    stored, scale = precision.store(vectors)
    checksum = _Checksum()
    checksum.add(ids, stored, scale)
    schema = layout.schema()
    vector = library.FixedSizeListArray.from_arrays(
        library.array(stored.reshape(-1), type=schema.field("vector").type.value_type), stored.shape[1]
    )
    columns = [library.array(ids, type=schema.field("id").type), vector, *([] if scale is None else [library.array(scale)])]
    metadata = {_KEY: json.dumps({"job": layout.job, "sha256": checksum.hex(path.name, report), **asdict(report)})}
    table = library.table(columns, schema=schema).replace_schema_metadata(metadata)
    with atomic_file(path) as file:
        # numbers of vectors are hardly ever equal: a dictionary and compression would cost time and save nothing
        library.parquet.write_table(
            table,
            file,
            compression="none",
            use_dictionary=False,
            write_statistics=["id"],
            column_encoding={"vector.list.element": precision.encoding},
        )


def read_part(path: Path, layout: Layout) -> Iterator[Report | tuple[Sequence[Any], Any]]:
    """Yield the report of a part; then ids and vectors, (n, d) in float32, in blocks.

    Raises CorpusError if it is damaged or was written for another job; that may be after its last block.
    """
    library, precision = pyarrow(), PRECISIONS[layout.precision]
    with readable(path), library.parquet.ParquetFile(path, pre_buffer=False) as file:
        report, job, sha256 = _report(path, (file.schema_arrow.metadata or {}).get(_KEY, b"{}"))
        if job != layout.job:
            raise CorpusError(f"{path} was written for another corpus, model or options than {path.parent} says")
        if not file.schema_arrow.equals(layout.schema()):
            raise CorpusError(f"{path} has other columns than mha encode writes: run mha encode again")
        yield report
        checksum, rows = _Checksum(), 0
        for batch in file.iter_batches(_BLOCK, use_threads=False):
            ids = batch.column("id").to_pylist()
            stored = batch.column("vector").flatten().to_numpy(zero_copy_only=False).reshape(batch.num_rows, -1)
            scale = batch.column("scale").to_numpy(zero_copy_only=False) if precision.has_scale else None
            checksum.add(ids, stored, scale)
            rows += batch.num_rows
            yield ids, precision.restore(stored, scale, layout.dim)
    if rows != report.texts or checksum.hex(path.name, report) != sha256:
        raise CorpusError(f"{path} is damaged: its rows are not those that were written; run mha encode again")


def read_report(path: Path, layout: Layout) -> Report | None:
    """Return the report of a part that was written whole for this job; None otherwise, such as after a loss of power."""
    if not path.exists():
        return None
    try:
        report, *_ = read_part(path, layout)
    except CorpusError:
        return None  # it is encoded again
    assert isinstance(report, Report)
    return report


def _report(path: Path, metadata: bytes) -> tuple[Report, str, str]:
    """Return the report, the job and the checksum in the metadata of a part. Raises CorpusError."""
    try:
        fields = json.loads(metadata)
        rejected = tuple((str(name), int(row), str(reason)) for name, row, reason in fields["rejected"])
        texts, tokens, cut = (int(fields[name]) for name in ("texts", "tokens", "cut"))
        return Report(texts, tokens, cut, rejected), str(fields["job"]), str(fields["sha256"])
    except (ValueError, TypeError, KeyError, RecursionError, OverflowError) as cause:
        raise CorpusError(
            f"{path} was not written by mha encode, or is damaged: its metadata are wrong; run mha encode again"
        ) from cause
