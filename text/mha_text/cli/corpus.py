"""``mha encode`` to a folder, or by several workers."""

from __future__ import annotations

import contextlib
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ..corpus import on_dask
from ..corpus.encode import CorpusReport, encode_corpus
from ..corpus.manifest import REJECTED, SUCCESS
from ..corpus.sources import Source
from ..corpus.stored import npy_writer, stored_vectors
from ..models.text_encoder import TextEncoder


def run(
    sources: Sequence[Source],
    model: Callable[[], TextEncoder],
    output: Path,
    *,
    workers: int | None,
    scheduler: str | None,
    **options: Any,
) -> None:
    """Encode files, and write a folder of vectors, or one array for a path that ends in .npy."""
    is_array = output.suffix == ".npy"
    folder = output.with_name(f"{output.name}.parts") if is_array else output
    is_whole = (folder / SUCCESS).exists()  # and is checked here before workers of this machine would have started
    with contextlib.ExitStack() as stack:
        client = None
        if scheduler is not None or (workers is not None and not is_whole):
            client = stack.enter_context(on_dask.connected(workers=workers, scheduler=scheduler))
            print(_cluster(client), file=sys.stderr)
        report = encode_corpus(client, [source.path for source in sources], folder, model, **options)
    if is_array:
        with npy_writer(output) as append:
            for _, vectors in stored_vectors(folder).blocks():
                append(vectors)
        shutil.rmtree(folder)
    _summarise(report, output, folder)


def _cluster(client: Any) -> str:
    threads = client.nthreads()
    workers = f"{len(threads)} worker{'s' * (len(threads) != 1)} with {sum(threads.values())} threads"
    return f"{workers if threads else 'no worker yet; the run begins when one connects'}; dashboard: {client.dashboard_link}"


def _summarise(report: CorpusReport, output: Path, folder: Path) -> None:
    where = f"{report.parts} file{'s' * (report.parts != 1)} of " if output == folder else ""
    vectors = f"{where}{report.texts} vectors of {report.dim} numbers"
    encoded, workers = report.texts - report.reused, report.workers
    is_whole = output == folder and report.reused and not encoded
    print(f"nothing was left to do: {output} has {vectors}" if is_whole else f"wrote {output}: {vectors}")
    if report.reused and not is_whole:
        print(f"{report.reused} of them had been written by an earlier run")
    if encoded:
        rate = encoded / max(report.seconds, 1e-9)
        each = f", {rate / workers:.0f} for each of {workers} workers" if workers > 1 else ""
        print(f"{encoded} texts in {report.seconds:.1f} s: {rate:.0f} texts/s{each}; {report.tokens} tokens in all texts")
    if report.cut:
        texts, were = ("1 text is", "was") if report.cut == 1 else (f"{report.cut} texts are", "were")
        print(f"{texts} longer than {report.max_seq_length} tokens, and {were} cut there")
    if report.rejected:
        rows = "1 row has" if report.rejected == 1 else f"{report.rejected} rows have"
        print(f"{rows} no text that can be encoded: see {folder / REJECTED}")
