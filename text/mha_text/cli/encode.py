"""``mha encode``: encode a stream of texts; memory does not grow with their number."""

from __future__ import annotations

import contextlib
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from mha_core import MhaError
from mha_core.cli.tables import prose_console

from ..corpus.records import LINES
from ..corpus.rows import Columns, Row, Span
from ..corpus.sources import FORMATS, Source, bad_text, find, numbered_rows, whole
from ..corpus.stored import npy_writer
from ..models.text_encoder import TextEncoder

_STEP = 1 << 16  # rows that are counted together
_SHOWN, _NUMBERS = 3, 5  # vectors of a summary, and numbers of each


class BadVector(MhaError, ValueError):
    """A vector contains NaN or infinity."""


STANDARD_INPUT = Source(Path("-"), "lines")


def sources_of(files: Sequence[Path], columns: Columns) -> list[Source]:
    """Return the files that a command names, in order; - is standard input."""
    return [source for path in files for source in ([STANDARD_INPUT] if path == STANDARD_INPUT.path else find(path, columns))]


def run(
    sources: Sequence[Source],
    columns: Columns,
    texts: Sequence[str],
    model: Callable[[], TextEncoder],
    output: str | None,
    similar: Callable[[Any, list[str], list[Any]], None] | None,
    **options: Any,
) -> None:
    """Encode the texts, and write or print the vectors. The output is opened first, so that a bad path fails immediately.

    ``similar`` prints the nearest texts to each, given the namespace, the texts and batches of vectors. With neither that nor
    an ``output``, a summary is printed. ``options`` are those of ``TextEncoder.stream``.
    """
    kept: list[str] = []
    empty = 0

    def watched(texts: Iterable[str]) -> Iterator[str]:
        nonlocal empty
        for text in texts:
            empty += not text.strip()
            yield text

    all_texts: Iterable[str] = watched(chain(_texts(sources, columns), texts))
    if similar:
        all_texts = _keep(all_texts, kept)
    if all(source.path.is_file() for source in sources):
        rows = (FORMATS[source.format].scan(source.path, columns, _STEP).rows for source in sources)
        all_texts = _Counted(all_texts, sum(rows) + len(texts))
    count = 0
    with contextlib.ExitStack() as stack:
        sinks: list[Callable[[Any], None]] = []
        if output == "-":
            sinks.append(_json_printer())
        elif output is not None:
            sinks.append(stack.enter_context(npy_writer(Path(output))))
        elif not similar:
            sinks.append(stack.enter_context(_summary()))
        encoder = model()
        stream = encoder.stream(all_texts, **options)
        none = encoder.backend.to_numpy(encoder.encode_ids([], truncate_dim=options["truncate_dim"]))
        for sink in sinks:  # write no rows, but their length: without texts the array is (0, d)
            sink(none)
        batches = []
        for batch in stream:
            count += batch.shape[0]
            vectors = encoder.backend.to_numpy(batch)
            for sink in sinks:
                sink(vectors)
            if similar:
                batches.append(batch)
        if similar and batches:
            similar(encoder.backend.xp, kept, batches)
    if empty:
        what = "is empty, and has a vector" if empty == 1 else "are empty, and have vectors"
        prose_console(stderr=True).print(f"{empty} of {count} text{'s' * (count != 1)} {what} all the same")
    if output not in (None, "-"):
        print(f"wrote {output}: {count} vector{'s' * (count != 1)} of {none.shape[1]} numbers")


@dataclass
class _Counted:
    """Texts of which the number is known, so that the bar shows the time left."""

    texts: Iterable[str]
    total: int

    def __iter__(self) -> Iterator[str]:
        return iter(self.texts)

    def __len__(self) -> int:
        return self.total


def _keep(texts: Iterable[str], kept: list[str]) -> Iterator[str]:
    for text in texts:
        kept.append(text)
        yield text


def _texts(sources: Sequence[Source], columns: Columns) -> Iterator[str]:
    for source in sources:
        rows = _of_standard_input() if source is STANDARD_INPUT else numbered_rows([whole(source)], columns)
        for where, number, row in rows:
            if row.reason is not None:
                raise bad_text(where, number, row.reason)
            yield row.text


def _of_standard_input() -> Iterator[tuple[Span, int, Row]]:
    span = Span("standard input", STANDARD_INPUT.format)
    if sys.stdin is None:
        raise OSError("standard input is closed; give FILE..., or --text T")
    for number, row in enumerate(LINES.read_from(sys.stdin.buffer, span, Columns()), start=1):
        yield span, number, row


@contextlib.contextmanager
def _summary() -> Iterator[Callable[[Any], None]]:
    """Yield a function that receives rows; at the end, print how many there were, their lengths, and the first numbers."""
    import numpy

    count, dim, shortest, longest, first = 0, 0, numpy.inf, 0.0, list[list[float]]()

    def append(rows: Any) -> None:
        nonlocal count, dim, shortest, longest
        count, dim, lengths = count + rows.shape[0], rows.shape[1], numpy.linalg.norm(rows, axis=1)
        shortest, longest = lengths.min(initial=shortest), lengths.max(initial=longest)
        first.extend(rows[: _SHOWN - len(first), :_NUMBERS].tolist())

    yield append
    lengths = list(dict.fromkeys((f"{shortest:.3f}", f"{longest:.3f}")))
    of = f", length{'s' * (len(lengths) - 1)} {' to '.join(lengths)}" if count else ""
    print(f"{count} vector{'s' * (count != 1)} of {dim} numbers{of}")
    for numbers in first:
        print("".join(f"{number:9.4f}" for number in numbers) + "  ..." * (dim > _NUMBERS))
    if count > len(first):
        print("  ...")
    if count:
        print("all numbers: --output vectors.npy, or --output - for JSON")


def _json_printer() -> Callable[[Any], None]:
    """Return a function that prints each row as JSON, which can represent neither NaN nor infinity."""
    texts = 0

    def append(rows: Any) -> None:
        nonlocal texts
        for row in rows:
            texts += 1
            numbers = row.tolist()
            if not all(map(math.isfinite, numbers)):
                raise BadVector(
                    f"the vector of text {texts} contains NaN or infinity, which JSON cannot represent: "
                    "write --output vectors.npy to look at it, and check the model's weights"
                )
            print("[" + ", ".join(f"{number:.9g}" for number in numbers) + "]")

    return append
