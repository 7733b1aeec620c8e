"""The work on one part of a corpus, as any process can do it: read the texts, encode them, write the vectors."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..algebra.arrays import compute_dtype
from ..models.text_encoder import TextEncoder
from .errors import CorpusError
from .parts import Report, read_report, write_part
from .plan import Part
from .rows import Columns
from .sources import bad_text, numbered_rows

_INT64 = range(-(2**63), 2**63)
_TEXTS = 1024  # that are tokenized at once: the tokenizer's results take more memory than token ids
_loading = threading.Lock()


@dataclass(frozen=True)
class Job:
    """What all parts of a corpus have in common."""

    model: TextEncoder | Callable[[], TextEncoder]
    """An encoder, or what returns it, called once in each process."""
    model_sha256: str
    folder: Path
    """Of the vectors."""
    base: Path
    """The folder that has all files of texts: their paths are written relative to it."""
    columns: Columns
    id_type: str
    prompt: str
    """Is put in front of each text."""
    truncate_dim: int | None
    normalize: bool | None
    precision: str
    skip_invalid: bool
    digest: str
    """Of the manifest."""


@dataclass(frozen=True)
class Done:
    """A part whose file is written."""

    report: Report
    reused: bool
    """Whether an earlier run had written it."""


def encode_part(job: Job, part: Part) -> Done:
    """Write the vectors of a part, unless they are there."""
    path = job.folder / part.name
    found = read_report(path, job.digest)
    if found is not None:
        return Done(found, reused=True)
    texts, ids, rejected = [], [], []
    for at, (span, number, row) in enumerate(numbered_rows(part.spans, job.columns), part.first):
        reason = row.reason or (_wrong_id(row.id, job) if job.columns.id is not None else None)
        if reason is None:
            texts.append(row.text)
            ids.append(at if job.columns.id is None else row.id)
        elif job.skip_invalid:
            rejected.append((os.path.relpath(span.path, job.base), number, reason))
        else:
            raise bad_text(span, number, reason)
    encoder = _encoder(job)
    tokens: list[list[int]] = []
    cut = 0
    for start in range(0, len(texts), _TEXTS):
        more, cut_here = encoder.tokenizer([job.prompt + text for text in texts[start : start + _TEXTS]])
        tokens, cut = tokens + more, cut + cut_here
    encoded = encoder.encode_ids(tokens, normalize=job.normalize, truncate_dim=job.truncate_dim, prompt=job.prompt)
    vectors = encoder.backend.to_numpy(encoded)
    report = Report(len(texts), sum(map(len, tokens)), cut, tuple(rejected))
    write_part(path, ids, vectors, report, id_type=job.id_type, precision=job.precision, job=job.digest)
    return Done(report, reused=False)


@dataclass(frozen=True)
class Model:
    """What the manifest says of a model."""

    sha256: str
    """Of its weights, tokenizer and pooling."""
    dim: int
    """Numbers of a vector, after ``truncate_dim``."""
    max_seq_length: int
    normalize: bool
    backend: str
    dtype: str


@dataclass(frozen=True)
class Wanted:
    """What a run asks of a model that only the model can answer."""

    prompt: str | None = None
    prompt_name: str | None = None
    truncate_dim: int | None = None


def describe(model: TextEncoder | Callable[[], TextEncoder], wanted: Wanted) -> tuple[Model, str]:
    """Return what tells a model from another one, and the text to put in front of each text.

    Raises ValueError for a prompt that the model lacks, and for more numbers than its vectors have.
    """
    with _loading:
        encoder = _load(model)
        digest = _sha256(encoder)
        _encoders[digest] = encoder
    prompt = encoder.settings.prompt(wanted.prompt, wanted.prompt_name)
    facts = Model(
        sha256=digest,
        dim=encoder.encode_ids([], truncate_dim=wanted.truncate_dim).shape[1],
        max_seq_length=encoder.max_seq_length,
        normalize=encoder.pooling.normalize,
        backend=encoder.backend.name,
        dtype=str(encoder.model.words.dtype).rpartition(".")[2],
    )
    return facts, prompt


_encoders: dict[str, TextEncoder] = {}  # one at most, by its digest


def _load(model: TextEncoder | Callable[[], TextEncoder]) -> TextEncoder:
    encoder = model if isinstance(model, TextEncoder) else model()
    if not isinstance(encoder, TextEncoder):
        raise TypeError(f"model returned {type(encoder).__name__}; expected a TextEncoder")
    _encoders.clear()
    return encoder


def _encoder(job: Job) -> TextEncoder:
    """Return this process's encoder. Raises CorpusError if it is not the one of the manifest."""
    with _loading:
        if job.model_sha256 not in _encoders:
            encoder = _load(job.model)
            found = _sha256(encoder)
            if found != job.model_sha256:
                raise CorpusError(
                    f"the model of this worker differs from that of the manifest: sha256 {found}, {job.model_sha256}"
                )
            _encoders[found] = encoder
        return _encoders[job.model_sha256]


def _sha256(encoder: TextEncoder) -> str:
    xp, digest = encoder.backend.xp, hashlib.sha256()
    dense = {f"dense.{at}.{name}": x for at, layer in enumerate(encoder.dense) for name, x in layer.arrays().items()}
    for name, array in sorted(encoder.model.arrays().items()) + sorted(dense.items()):
        digest.update(f"{name} {array.shape} {array.dtype}".encode())
        numbers = encoder.backend.to_numpy(xp.astype(array, compute_dtype(xp, array.dtype), copy=False))
        digest.update(numbers.data if numbers.flags.c_contiguous else numbers.tobytes())  # a copy only if it is needed
    activations = [layer.activation for layer in encoder.dense]
    limits = (encoder.tokenizer.max_seq_length, encoder.tokenizer.lower_case)
    digest.update(repr((encoder.model.settings, activations, limits, encoder.pooling)).encode())
    digest.update(encoder.tokenizer.tokenizer.to_str().encode())
    return digest.hexdigest()


def _wrong_id(id: Any, job: Job) -> str | None:
    if isinstance(id, str) != (job.id_type == "string"):
        return f"{job.columns.id} is {id!r}; ids of this corpus are {job.id_type}"
    if isinstance(id, int) and id not in _INT64:
        return f"{job.columns.id} is {id}, which int64 cannot hold"
    return None
