"""Texts in windows, whose size bounds the memory, and their token ids in batches, which are packed into matrices."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from itertools import islice
from typing import Any, TypeVar

from .tokens import Tokenizer

WINDOW = 4096  # texts that are sorted by length together, and so the maximum number in memory
TOKENS = 1024  # tokens in one matrix

_T = TypeVar("_T")


class TruncationWarning(UserWarning):
    """Some texts were longer than the model's limit, and were cut."""


def check_texts(texts: object) -> None:
    """Raise TypeError for one string or bytes, which are iterables of other things than texts."""
    if isinstance(texts, str | bytes):
        raise TypeError(f"texts is one {type(texts).__name__}; expected a list of strings: write [text]")


def check_text(name: str, text: object) -> None:
    """Raise TypeError for what is not a string, UnicodeError for a string that is not valid Unicode."""
    if not isinstance(text, str):
        raise TypeError(f"{name} is {type(text).__name__}; expected str")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UnicodeError(f"{name} cannot be written as UTF-8: {error.reason} at character {error.start}") from error


def tokenized(
    tokenizer: Tokenizer,
    texts: Iterable[str],
    prompt: str,
    progress: bool | None,
    compute: Callable[[list[list[int]], Callable[[int], Any]], _T],
) -> Iterator[_T]:
    """Yield what ``compute`` returns for the ids of each window of texts; it tells a bar how many are finished.

    ``prompt`` is put in front of each text. Warns once, at the end, if texts were cut.
    """
    from tqdm import tqdm

    total = len(texts) if isinstance(texts, Sized) else None
    disable = None if progress is None else not progress
    count = cut = 0
    with tqdm(total=total, unit=" texts", disable=disable, delay=1.0 if progress is None else 0.0) as bar:
        for window in _windows(texts):
            for at, text in enumerate(window, start=count):
                check_text(f"texts[{at}]", text)
            ids, cut_here = tokenizer([prompt + text for text in window] if prompt else window)
            yield compute(ids, bar.update)
            count, cut = count + len(window), cut + cut_here
    warn_of_cut(cut, count, tokenizer)


def warn_of_cut(cut: int, count: int, tokenizer: Tokenizer) -> None:
    """Warn if texts were cut. The warning points at the first caller outside of this package."""
    if cut:
        frame, level = sys._getframe(), 1
        while frame.f_back is not None and frame.f_globals["__name__"].startswith(f"{__package__}."):
            frame, level = frame.f_back, level + 1
        message = f"{cut} of {count} texts are longer than {tokenizer.max_seq_length} tokens, and were cut there"
        warnings.warn(message, TruncationWarning, stacklevel=level)


def sorted_batches(ids: Sequence[Sequence[int]]) -> tuple[list[int], list[list[Sequence[int]]]]:
    """Return the order of texts, longest first, and batches of them in this order, to be packed into matrices."""
    order = sorted(range(len(ids)), key=lambda at: -len(ids[at]))
    return order, list(_batches([ids[at] for at in order]))


def places(order: Sequence[int]) -> list[int]:
    """Return where each text is in an order of texts."""
    return sorted(range(len(order)), key=order.__getitem__)


def _windows(texts: Iterable[str]) -> Iterator[list[str]]:
    rest = iter(texts)
    while window := list(islice(rest, WINDOW)):
        yield window


def _batches(ids: Sequence[Sequence[int]]) -> Iterator[list[Sequence[int]]]:
    """Yield batches of adjacent texts, of up to ``TOKENS`` tokens together; a longer text is a separate batch."""
    batch: list[Sequence[int]] = []
    tokens = 0
    for text in ids:
        if batch and tokens + len(text) > TOKENS:
            yield batch
            batch, tokens = [], 0
        batch.append(text)
        tokens += len(text)
    if batch:
        yield batch
