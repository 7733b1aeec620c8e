"""The work on one part of a corpus, as any process can do it: read the texts, encode them, write the vectors."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mha_core.shared import compute_dtype, dtype_name

from ..models.pretrained import digest_of_model
from ..models.text_encoder import TextEncoder
from .errors import CorpusError, shortened
from .manifest import Whole, sealed
from .parts import Layout, Report, read_report, write_part
from .plan import Part
from .reader import Reader
from .rows import Columns
from .sources import bad_text, numbered_rows

_INT64 = range(-(2**63), 2**63)
_TEXTS = 1024  # that are tokenized at once: the tokenizer's results take more memory than token ids
_loading = threading.Lock()


@dataclass(frozen=True)
class Options:
    """The options of a run, as the manifest has them."""

    column: str | None
    id: str | None
    id_type: str
    prompt: str | None
    """The text in front of each text; None: there is none."""
    truncate_dim: int | None
    normalize: bool | None
    precision: str
    skip_invalid: bool
    part_rows: int


@dataclass(frozen=True)
class Job:
    """The properties that all parts of a corpus share."""

    model: TextEncoder | Callable[[], TextEncoder]
    """An encoder, or a function that returns it, called once in each process."""
    model_sha256: str
    folder: Path
    """The folder of the vectors."""
    base: Path
    """The folder that has all files of texts: their paths are written relative to it."""
    options: Options
    layout: Layout
    """The columns of the parts, and the sha256 of the manifest."""


@dataclass(frozen=True)
class Done:
    """A part whose file is written."""

    report: Report
    reused: bool
    """True if an earlier run had written it."""


def encode_part(job: Job, part: Part) -> Done:
    """Write the vectors of a part, unless they are there."""
    path, options = job.folder / part.name, job.options
    report = read_report(path, job.layout)
    if report is not None:
        return Done(report, reused=True)
    texts, ids, rejected, places = [], [], [], []
    rows = numbered_rows(part.spans, Columns(options.column, options.id))
    for at, (span, number, row) in enumerate(rows, part.first):
        reason = row.reason or (_wrong_id(row.id, options) if options.id is not None else None)
        if reason is None:
            texts.append(row.text)
            places.append((span, number))
            ids.append(at if options.id is None else row.id)
        elif options.skip_invalid:
            rejected.append((shortened(os.path.relpath(span.path, job.base)), number, reason))
        else:
            raise bad_text(span, number, reason)
    from numpy import isfinite

    if len(texts) + len(rejected) != part.rows:
        raise CorpusError(f"{part.spans[-1].path} was changed while it was encoded, and has other rows than before: run again")
    encoder = _encoder(job)
    prompt, tokens, cut = options.prompt or "", list[list[int]](), 0
    for start in range(0, len(texts), _TEXTS):
        more, cut_here = encoder.tokenizer([prompt + text for text in texts[start : start + _TEXTS]])
        tokens, cut = tokens + more, cut + cut_here
    encoded = encoder.encode_ids(tokens, normalize=options.normalize, truncate_dim=options.truncate_dim, prompt=prompt)
    vectors = encoder.backend.to_numpy(encoded)
    wrong = next(iter((~isfinite(vectors).all(axis=1)).nonzero()[0]), None)
    if wrong is not None:
        span, number = places[wrong]
        raise bad_text(span, number, "its vector has NaN or infinity: the model's weights or its dtype are at fault")
    report = Report(len(texts), sum(map(len, tokens)), cut, tuple(rejected))
    write_part(path, ids, vectors, report, job.layout)
    return Done(report, reused=False)


@dataclass(frozen=True)
class ModelFacts:
    """The properties of a model, as the manifest has them."""

    sha256: str
    """The digest of its weights, tokenizer and pooling."""
    dim: int
    """The number of numbers of a vector, after ``truncate_dim``."""
    max_seq_length: int
    normalize: bool
    backend: str
    dtype: str


@dataclass(frozen=True)
class Description:
    """The properties of a model and of a call."""

    facts: ModelFacts
    before: str
    """The text to put in front of each text."""
    files_sha256: str
    """The digest of the model's files; "" if the model may be another than they say."""


def describe(
    model: TextEncoder | Callable[[], TextEncoder],
    asked: tuple[str | None, str | None, int | None, Whole | None],
) -> Description:
    """Return the description of a model, which is read only if it differs from that of a whole folder, or is no path.

    ``asked``: prompt, prompt_name, truncate_dim, and the folder if it is whole.
    """
    prompt, prompt_name, truncate_dim, whole = asked
    if whole is not None and isinstance(model, Reader):
        options, facts, files = whole.manifest["options"], whole.manifest["model"], model.digest_of_files()
        same = options["truncate_dim"] == truncate_dim and facts["backend"] == model.backend_name()
        if same and whole.seal == sealed(whole.manifest, files):
            return Description(ModelFacts(**facts), model.settings().prompt(prompt, prompt_name), files)
    with _loading:
        encoder = _load(model)
        digest = _sha256(encoder)
        _encoders[digest] = encoder
    before = encoder.settings.prompt(prompt, prompt_name)
    facts = ModelFacts(
        sha256=digest,
        dim=encoder.encode_ids([], truncate_dim=truncate_dim).shape[1],
        max_seq_length=encoder.max_seq_length,
        normalize=encoder.pooling.normalize,
        backend=encoder.backend.name,
        dtype=dtype_name(encoder.model.words.dtype),
    )
    return Description(facts, before, digest_of_model(encoder))


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
            digest = _sha256(encoder)
            if digest != job.model_sha256:
                raise CorpusError(
                    f"the model of this worker differs from that of the manifest: sha256 {digest}, {job.model_sha256}"
                )
            _encoders[digest] = encoder
        return _encoders[job.model_sha256]


def _sha256(encoder: TextEncoder) -> str:
    xp, digest = encoder.backend.xp, hashlib.sha256()
    dense = {f"dense.{at}.{name}": x for at, layer in enumerate(encoder.dense) for name, x in layer.arrays().items()}
    for name, array in sorted(encoder.model.arrays().items()) + sorted(dense.items()):
        digest.update(f"{name} {array.shape} {array.dtype}".encode())
        if encoder.backend.is_floating(array.dtype):  # NumPy lacks bfloat16
            array = xp.astype(array, compute_dtype(xp, array.dtype), copy=False)
        numbers = encoder.backend.to_numpy(array)
        digest.update(numbers.data if numbers.flags.c_contiguous else numbers.tobytes())  # a copy only if it is needed
    activations = [layer.activation for layer in encoder.dense]
    limits = (encoder.tokenizer.max_seq_length, encoder.tokenizer.lower_case)
    digest.update(repr((encoder.model.settings, activations, limits, encoder.pooling)).encode())
    digest.update(encoder.tokenizer.tokenizer.to_str().encode())
    return digest.hexdigest()


def _wrong_id(id: Any, options: Options) -> str | None:
    if isinstance(id, str) != (options.id_type == "string"):
        return shortened(f"{options.id} is {id!r}; ids of this corpus are {options.id_type}")
    if isinstance(id, int) and id not in _INT64:
        return shortened(f"{options.id} is {id}, which int64 cannot hold")
    return None
