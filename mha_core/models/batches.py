"""Texts in windows, whose size bounds the memory: checked, tokenized, and counted if they are cut."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Sized
from typing import Any, TypeVar

from .packing import windows
from .tokens import Tokenizer, check_text

_T = TypeVar("_T")


class TruncationWarning(UserWarning):
    """Some texts were longer than the model's limit, and were cut."""


def check_texts(texts: object) -> None:
    """Raise TypeError for one string or bytes, which are iterables of other things than texts."""
    if isinstance(texts, str | bytes):
        raise TypeError(f"texts is one {type(texts).__name__}; expected a list of strings: write [text]")


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
        for window in windows(texts):
            for at, text in enumerate(window, start=count):
                check_text(f"texts[{at}]", text)
            ids, cut_here = tokenizer([prompt + text for text in window] if prompt else window)
            yield compute(ids, bar.update)
            count, cut = count + len(window), cut + cut_here
    warn_of_cut(cut, count, tokenizer)


def warn_of_cut(cut: int, count: int, tokenizer: Tokenizer, what: str = "texts") -> None:
    """Warn if texts, or pairs of them, were cut. The warning points at the first caller outside of this package."""
    if cut:
        frame, level = sys._getframe(), 1
        while frame.f_back is not None and frame.f_globals["__name__"].startswith(f"{__package__}."):
            frame, level = frame.f_back, level + 1
        message = f"{cut} of {count} {what} are longer than {tokenizer.max_seq_length} tokens, and were cut there"
        warnings.warn(message, TruncationWarning, stacklevel=level)
