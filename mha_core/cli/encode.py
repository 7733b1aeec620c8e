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

from ..dispatch.errors import MhaError
from ..layers.atomic import atomic_file
from ..models.text_encoder import TextEncoder
from .similar import print_nearest


class BadText(MhaError, ValueError):
    """A line is not valid UTF-8."""


class BadVector(MhaError, ValueError):
    """A vector contains NaN or infinity."""


def run(
    files: Sequence[Path], texts: Sequence[str], model: str, backend: str | None, output: str | None, similar: int | None
) -> None:
    """Encode the texts, and write or print the vectors. The output is opened first, so that a bad path fails immediately."""
    kept: list[str] = []
    all_texts: Iterable[str] = chain(_lines(files), texts)
    if similar:
        all_texts = _keep(all_texts, kept)
    if all(path.is_file() for path in files):
        all_texts = _Counted(all_texts, sum(map(_number_of_lines, files)) + len(texts))
    count = 0
    with contextlib.ExitStack() as stack:
        sinks: list[Callable[[Any], None]] = []
        if output not in (None, "-"):
            sinks.append(stack.enter_context(_npy(Path(str(output)))))
        elif not similar:
            sinks.append(_json_printer())
        encoder = TextEncoder.from_pretrained(model, backend=backend)
        xp = encoder.backend.xp
        for sink in sinks:  # write no rows, but their length: without texts the array is (0, d)
            sink(encoder.backend.to_numpy(xp.zeros((0, encoder.dim), dtype=xp.float32)))
        batches = []
        for batch in encoder.stream(all_texts):
            count += batch.shape[0]
            vectors = encoder.backend.to_numpy(batch)
            for sink in sinks:
                sink(vectors)
            if similar:
                batches.append(batch)
        if similar and batches:
            print_nearest(xp, kept, batches, similar)
    if output not in (None, "-"):
        print(f"wrote {output}: {count} vector{'s' * (count != 1)} of {encoder.dim} numbers")


@dataclass
class _Counted:
    """Texts of which the number is known, so that the bar shows the time left."""

    texts: Iterable[str]
    total: int

    def __iter__(self) -> Iterator[str]:
        return iter(self.texts)

    def __len__(self) -> int:
        return self.total


def _number_of_lines(path: Path) -> int:
    with path.open("rb") as file:
        return sum(1 for _ in file)


def _keep(texts: Iterable[str], kept: list[str]) -> Iterator[str]:
    for text in texts:
        kept.append(text)
        yield text


def _lines(files: Sequence[Path]) -> Iterator[str]:
    for path in files:
        with contextlib.nullcontext(sys.stdin.buffer) if str(path) == "-" else path.open("rb") as file:
            name = "standard input" if str(path) == "-" else str(path)
            for number, line in enumerate(file, start=1):
                try:
                    text = line.decode("utf-8-sig" if number == 1 else "utf-8")
                except UnicodeDecodeError as error:
                    raise BadText(
                        f"{name}, line {number}: not valid UTF-8 (byte {error.start + 1} of the line: {error.reason})"
                    ) from error
                yield text.rstrip("\r\n")


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


@contextlib.contextmanager
def _npy(path: Path) -> Iterator[Callable[[Any], None]]:
    """Yield a function that appends rows to ``path``. The file appears complete at the end, or not at all."""
    import numpy

    shape = [0, 0]
    dtype = "<f4"

    def header(file: Any) -> None:
        # the format reserves space for the first axis to grow, so that the header can be rewritten in place
        numpy.lib.format.write_array_header_1_0(file, {"descr": dtype, "fortran_order": False, "shape": tuple(shape)})

    with atomic_file(path) as file:
        header(file)
        start = file.tell()

        def append(rows: Any) -> None:
            shape[0], shape[1] = shape[0] + rows.shape[0], rows.shape[1]
            file.write(numpy.ascontiguousarray(rows, dtype=dtype).data)

        yield append
        file.seek(0)
        header(file)
        if file.tell() != start:
            raise AssertionError("the header of the .npy file outgrew its reserved space")
