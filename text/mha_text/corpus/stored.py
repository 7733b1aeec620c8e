"""Vectors in files, as ``mha encode`` writes them: one .npy file, or a folder of Parquet parts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mha_core.shared import atomic_file

from .errors import CorpusError, shortened
from .manifest import SUCCESS, digest, read
from .parts import Layout, Report, read_part
from .rows import Columns

_BLOCK = 4096  # vectors in memory


@dataclass(frozen=True)
class StoredVectors:
    """Vectors in files, in the order of their texts."""

    rows: int
    """The number of rows, with and without vectors."""
    dim: int
    """Numbers of a vector."""
    columns: Columns
    """The columns of the texts and their ids, as far as they are known."""
    blocks: Callable[[], Iterator[tuple[Sequence[Any], Any]]]
    """Yields ids, and vectors as NumPy arrays (n, d) in float32, for up to 4096 vectors at a time.

    Raises CorpusError if a file is damaged, at the latest after its last block.
    """
    truncate_dim: int | None = None
    """The option with which they were encoded, as far as it is known."""


def stored_vectors(path: str | Path) -> StoredVectors:
    """Open what ``mha encode --output`` wrote. Raises CorpusError if it is not whole, or of another kind."""
    path = Path(path)
    if path.is_dir():
        return _of_folder(path)
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist; expected a .npy file, or a folder that mha encode wrote")
    if not path.is_file():
        raise CorpusError(f"{path} is a pipe or a device; expected a .npy file, or a folder that mha encode wrote")
    return _of_npy(path)


@contextmanager
def npy_writer(path: Path) -> Iterator[Callable[[Any], None]]:
    """Yield a function that appends rows to a .npy file of float32. The file appears complete at the end, or not at all."""
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


def _of_npy(path: Path) -> StoredVectors:
    import numpy

    try:
        array = numpy.load(path, mmap_mode="r", allow_pickle=False)
    except OSError:
        raise
    except Exception as cause:  # NumPy evaluates the header as Python, with errors of many kinds
        raise CorpusError(f"{path} is not a .npy file of numbers: {shortened(str(cause))}") from cause
    if array.ndim != 2 or array.dtype.kind != "f":
        raise CorpusError(f"{path} holds {array.dtype} of shape {array.shape}; expected floating numbers of shape (n, d)")

    def blocks() -> Iterator[tuple[Sequence[Any], Any]]:
        for start in range(0, len(array), _BLOCK):
            block = numpy.array(array[start : start + _BLOCK], dtype=numpy.float32)
            if not (finite := numpy.isfinite(block).all(axis=1)).all():
                raise CorpusError(f"{path}, row {start + int(finite.argmin()) + 1}: the vector has NaN or infinity")
            yield range(start, start + len(block)), block

    return StoredVectors(array.shape[0], array.shape[1], Columns(), blocks)


def _of_folder(folder: Path) -> StoredVectors:
    manifest = read(folder)
    if not (folder / SUCCESS).exists():
        raise CorpusError(f"{folder} is not whole: run mha encode again, which goes on where it stopped")
    options = manifest["options"]
    layout = Layout(options["id_type"], options["precision"], manifest["dim"], digest(manifest))
    names = sorted(path for path in folder.glob("part-*.parquet"))
    if len(names) != manifest["parts"]:
        raise CorpusError(f"{folder} has {len(names)} parts; its manifest says {manifest['parts']}")
    for path in names[:1]:
        next(read_part(path, layout))  # checks that the manifest is that of the parts, before its numbers are used

    def blocks() -> Iterator[tuple[Sequence[Any], Any]]:
        rows = 0
        for path in names:
            for each in read_part(path, layout):
                if isinstance(each, Report):
                    rows += each.texts + len(each.rejected)
                else:
                    yield each
        if rows != manifest["rows"]:
            raise CorpusError(f"{folder} has parts of {rows} rows; its manifest says {manifest['rows']}; run mha encode again")

    columns = Columns(options["column"], options["id"])
    return StoredVectors(manifest["rows"], layout.dim, columns, blocks, options["truncate_dim"])
