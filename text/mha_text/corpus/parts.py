"""A part of a corpus as a Parquet file of ids and vectors."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mha_core.shared import atomic_file

from .parquet import pyarrow
from .precision import PRECISIONS

_KEY = b"mha_core"


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


def write_part(path: Path, ids: Sequence[Any], vectors: Any, report: Report, *, id_type: str, precision: str, job: str) -> None:
    """Write vectors, (n, d) in float32, whole or not at all. The file says for which job it was written."""
    library = pyarrow()
    stored, scale = PRECISIONS[precision].store(vectors)
    numbers = library.array(stored.reshape(-1), type=library.type_for_alias(PRECISIONS[precision].element))
    columns = {
        "id": library.array(ids, type=library.type_for_alias(id_type)),
        "vector": library.FixedSizeListArray.from_arrays(numbers, stored.shape[1]),
    }
    if scale is not None:
        columns["scale"] = library.array(scale)
    metadata = {_KEY: json.dumps({"job": job, **asdict(report)})}
    table = library.table(columns).replace_schema_metadata(metadata)
    with atomic_file(path) as file:
        # numbers of vectors are hardly ever equal: a dictionary and compression would cost time and save nothing
        library.parquet.write_table(
            table,
            file,
            compression="none",
            use_dictionary=False,
            write_statistics=["id"],
            column_encoding={"vector.list.element": PRECISIONS[precision].encoding},
        )


def read_report(path: Path, job: str) -> Report | None:
    """Return the report of a part that was written whole for this job; None if there is no such file."""
    library = pyarrow()
    if not path.exists():
        return None
    try:
        with library.parquet.ParquetFile(path) as file:
            fields = json.loads((file.schema_arrow.metadata or {}).get(_KEY, b"{}"))
    except (library.ArrowInvalid, ValueError):
        return None  # such as after a loss of power: it is encoded again
    if fields.pop("job", None) != job:
        return None
    return Report(**fields | {"rejected": tuple(map(tuple, fields["rejected"]))})
