"""Storage of vectors: as float32, or in fewer bits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ..models.quantize import pack_bits
from .errors import CorpusError


@dataclass(frozen=True)
class Precision:
    """A way to store vectors, (n, d) in float32."""

    element: str
    """The type of the stored numbers, to NumPy and Arrow."""
    store: Callable[[Any], tuple[Any, Any]]
    """A function from vectors to the stored numbers, (n, width), and the scale of each vector, (n,), or None."""
    restore: Callable[[Any, Any, int], Any]
    """A function from the stored numbers, the scales and d to vectors."""
    packed: int = 1
    """How many numbers of a vector are in one stored number."""
    has_scale: bool = False
    encoding: str = "PLAIN"
    """The encoding of Parquet, in which an integer of 8 bits takes 32 in plain encoding."""


def _float16(vectors: Any) -> tuple[Any, None]:
    import numpy

    with numpy.errstate(over="ignore"):
        stored = vectors.astype(numpy.float16)
    if numpy.isinf(stored).any() and not numpy.isinf(vectors).any():
        raise CorpusError("vectors have numbers beyond 65504, the greatest of float16: store float32, or normalize")
    return stored, None


def _int8(vectors: Any) -> tuple[Any, Any]:
    import numpy

    scale = abs(vectors).max(axis=1, initial=0) / numpy.float32(127)
    return numpy.rint(vectors / numpy.where(scale == 0, 1, scale)[:, None]).astype(numpy.int8), scale


def _binary(vectors: Any) -> tuple[Any, None]:
    import numpy

    return pack_bits(numpy, vectors > 0), None


def _signs(stored: Any, scale: None, dim: int) -> Any:
    import numpy

    return numpy.unpackbits(stored, axis=1, count=dim).astype(numpy.float32) * 2 - 1


_PACKED = "DELTA_BINARY_PACKED"

PRECISIONS: Mapping[str, Precision] = {
    "float32": Precision("float32", lambda x: (x, None), lambda stored, scale, dim: stored),
    "float16": Precision("float16", _float16, lambda stored, scale, dim: stored.astype("float32")),
    "int8": Precision("int8", _int8, lambda stored, scale, dim: stored.astype("float32") * scale[:, None], 1, True, _PACKED),
    "binary": Precision("uint8", _binary, _signs, 8, False, _PACKED),
}
"""By name. int8: the numbers divided by the scale of their vector, its largest magnitude / 127, and rounded. binary: the signs
of the numbers, 8 in a byte, the first in the highest bit; they are restored as 1 and -1.

``quantize_embeddings`` differs in int8: there a range of each of the d numbers, taken from many vectors, gives the scale, so a
part of a corpus could not be stored before the others are encoded. binary here is ubinary there."""
