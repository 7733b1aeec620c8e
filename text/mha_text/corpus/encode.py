"""Files of texts in, files of vectors out."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from ..models.text_encoder import TextEncoder
from . import manifest as manifests
from . import on_dask
from .errors import CorpusError
from .job import Description, Done, Job, Options, describe, encode_part
from .parquet import pyarrow
from .parts import Layout, Report
from .plan import STEP, Plan, digest_of, scan
from .precision import PRECISIONS
from .reader import Reader
from .rows import Columns
from .sources import find

Paths = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]
Execute = Callable[[Callable[[Any, Any], Any], Any, Iterable[Any]], Iterator[Any]]
"""Yields function(shared, item) for each item, in any order."""


@dataclass(frozen=True)
class CorpusReport:
    """The results of a run of ``encode_corpus``: numbers of texts, tokens and files."""

    texts: int
    """The vectors in the folder."""
    dim: int
    """Numbers of a vector."""
    tokens: int
    """Tokens of all texts, special tokens included."""
    cut: int
    """Texts that were longer than ``max_seq_length`` tokens, and were cut there."""
    max_seq_length: int
    rejected: int
    """Rows without a text that can be encoded."""
    parts: int
    """Files of vectors."""
    reused: int
    """Texts whose vectors an earlier run had written."""
    seconds: float
    """The time of all other texts, from the first task to the last."""
    workers: int


def encode_corpus(
    client: Any,
    sources: Paths,
    out: str | os.PathLike[str],
    model: str | os.PathLike[str] | TextEncoder | Callable[[], TextEncoder],
    *,
    column: str | None = None,
    id: str | None = None,
    prompt: str | None = None,
    prompt_name: str | None = None,
    truncate_dim: int | None = None,
    normalize: bool | None = None,
    precision: str = "float32",
    skip_invalid: bool = False,
    part_rows: int | None = None,
    progress: bool | None = None,
) -> CorpusReport:
    """Encode all texts of files, and write a folder of Parquet files with their ids and vectors, in the order of the input.

    The folder has files ``part-*.parquet`` with the columns ``id`` and ``vector``, ``_manifest.json``, and ``_SUCCESS`` once it
    is whole. A run that was stopped goes on where it was if it is repeated: what is written stays.

    Parameters
    ----------
    client : distributed.Client, or None
        Of the Dask cluster that computes; None: this process does. All workers must see the files, the model and ``out`` under
        the same paths.
    sources : path, or a sequence of paths
        Files, folders, or patterns such as ``corpus/*.parquet``: Parquet, CSV, TSV, JSON lines, by their suffixes; any other
        file has one text in each line.
    out : path
        A new or empty folder, or one that an earlier run began.
    model : path or repository, TextEncoder, or a function that returns one
        Each worker process reads it once. A function is called on the workers, such as for a device that only they have.
    column : str
        The column, or the field of JSON lines, that holds the texts.
    id : str
        The column or field of the ids, integers or strings; None: rows are numbered from 0.
    prompt, prompt_name, truncate_dim, normalize
        As in ``TextEncoder.encode``. ``prompt_name="document"`` is for texts that are searched, if the model has such a prompt.
    precision : "float32", "float16", "int8" or "binary"
        How vectors are stored. int8: as integers, with a column ``scale`` of what to multiply them by, unlike
        ``quantize_embeddings``, which has ranges of all vectors. binary: the signs of the numbers, 8 in a byte.
    skip_invalid : bool
        Whether rows without a text that can be encoded are listed in _rejected/rejected.parquet, instead of stopping the run.
    part_rows : int, or None
        The most rows of a file of vectors; None: 512 to 8192, by the size of the corpus.
    progress : bool, or None
        Whether to show a bar on standard error; None: on a terminal.

    Raises
    ------
    CorpusError
        If files cannot be read, have no such column, or change during the run; if another run writes into ``out``, or ``out``
        was begun with another corpus, model or options, which it names.
    BadText
        A CorpusError, for a row without a text that can be encoded; it names file and row.
    ValueError
        For a prompt that the model lacks, more numbers than its vectors have, and other options that cannot be used.
    FileNotFoundError, FileExistsError
        If a file is missing, or ``out`` has other files.
    """
    _check(precision, part_rows)
    pyarrow()
    columns, folder = Columns(column, id), Path(out).absolute()
    files = [replace(file, path=file.path.absolute()) for file in find(sources, columns)]
    execute: Execute = _here if client is None else partial(on_dask.run, client)
    load = _loader(model)
    asked = (prompt, prompt_name, truncate_dim, manifests.whole(folder))
    described: Description = next(iter(execute(describe, load, [asked])))
    facts = described.facts
    step = STEP if part_rows is None else part_rows
    scanned = dict(execute(scan, columns, ((at, file, step) for at, file in enumerate(files))))
    plan = Plan.of([scanned[at] for at in sorted(scanned)], part_rows)
    base = Path(os.path.commonpath([file.path.parent for file in files]))
    count = sum(1 for _ in plan.parts())
    options = Options(
        column, id, plan.id_type, described.before or None, truncate_dim, normalize, precision, skip_invalid, plan.part_rows
    )
    manifest = {
        "format": 1,
        "rows": plan.rows,
        "dim": facts.dim,
        "parts": count,
        "model": asdict(facts),
        "options": asdict(options),
        "sources": [
            {"path": os.path.relpath(file.source.path, base), "rows": file.scan.rows, "sha256": file.sha256}
            for file in plan.files
        ],
    }
    layout = Layout(plan.id_type, precision, facts.dim, manifests.digest(manifest))
    job = Job(load, facts.sha256, folder, base, options, layout)
    total, reused, begun = Report.sum(()), 0, time.monotonic()
    with manifests.locked(folder):
        manifests.begin(folder, manifest)
        try:
            for done in _with_bar(execute(encode_part, job, plan.parts()), plan, folder, progress):
                total = Report.sum((total, done.report))
                reused += done.report.texts if done.reused else 0
        except CorpusError:
            _check_unchanged(plan, folder, execute)  # it may be the cause
            raise
        seconds = time.monotonic() - begun
        _check_unchanged(plan, folder, execute)
        manifests.finish(folder, total.rejected, manifests.sealed(manifest, described.files_sha256))
    return CorpusReport(
        texts=total.texts,
        dim=facts.dim,
        tokens=total.tokens,
        cut=total.cut,
        max_seq_length=facts.max_seq_length,
        rejected=len(total.rejected),
        parts=count,
        reused=reused,
        seconds=seconds,
        workers=1 if client is None else len(client.nthreads()),
    )


def _check_unchanged(plan: Plan, folder: Path, execute: Execute) -> None:
    """Raise CorpusError if a file is not what it was before the run, after removing the parts that were made of it."""
    now = dict(execute(digest_of, None, ((at, file.source.path) for at, file in enumerate(plan.files))))
    changed = {str(file.source.path) for at, file in enumerate(plan.files) if now[at] != file.sha256}
    if changed:
        for part in plan.parts():
            if any(span.path in changed for span in part.spans):
                (folder / part.name).unlink(missing_ok=True)
        raise CorpusError(
            f"{min(changed)} was changed while it was encoded, so {folder} is not whole, and the parts made of it "
            "are removed: give another folder, or the file as it was"
        )


def _here(function: Callable[[Any, Any], Any], shared: Any, items: Iterable[Any]) -> Iterator[Any]:
    """Yield ``function(shared, item)`` for each item, computed in this process."""
    return (function(shared, item) for item in items)


def _with_bar(parts: Iterable[Done], plan: Plan, folder: Path, progress: bool | None) -> Iterator[Done]:
    """Yield the results of parts while a bar shows the number of texts that are done; Ctrl-C says how to go on."""
    from tqdm import tqdm

    written = 0
    with tqdm(total=plan.rows, unit=" texts", disable=None if progress is None else not progress) as bar:
        try:
            for done in parts:
                rows = done.report.texts + len(done.report.rejected)
                if done.reused and not bar.disable:
                    bar.initial += rows  # these count as done, and not for the rate
                bar.update(rows)
                written += rows
                yield done
        except KeyboardInterrupt as stopped:
            raise KeyboardInterrupt(
                f"stopped: {written} of {plan.rows} texts are done, and stay in {folder}; run the same again to go on"
            ) from stopped


def _loader(model: Any) -> TextEncoder | Callable[[], TextEncoder]:
    if isinstance(model, str | os.PathLike):
        return Reader.of(model)
    if isinstance(model, TextEncoder) or callable(model):
        return model
    raise TypeError(
        f"model is {type(model).__name__}; expected a path, a repository, a TextEncoder or a function that returns one"
    )


def _check(precision: str, part_rows: int | None) -> None:
    if precision not in PRECISIONS:
        raise ValueError(f"precision is {precision!r}; expected one of {', '.join(PRECISIONS)}")
    if part_rows is not None and (isinstance(part_rows, bool) or not isinstance(part_rows, int) or part_rows < 1):
        raise ValueError(f"part_rows is {part_rows!r}; expected an int of at least 1, or None")
