"""Texts in windows, whose size bounds the memory: checked, tokenized, and counted if they are cut."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Sized
from typing import TYPE_CHECKING, Any

from .packing import Result, computed, sorted_batches, windows
from .tokens import Tokenizer, check_text

if TYPE_CHECKING:
    from .pretrained import Pretrained


class TruncationWarning(UserWarning):
    """Some texts were longer than the model's limit, and were cut."""


def check_iterable(name: str, values: object, expected: str) -> None:
    """Raise TypeError for what is no iterable, and for one string or bytes, which are iterables of other things than texts."""
    is_one = isinstance(values, str | bytes)
    if is_one or not isinstance(values, Iterable):
        raise TypeError(f"{name} is {'one ' * is_one}{type(values).__name__}; expected {expected}")


def ids_of_texts(tokenizer: Tokenizer, prompt: str, texts: list[str], first: int = 0) -> tuple[list[list[int]], int]:
    """Return the ids of texts with ``prompt`` in front of each, and how many were cut; errors number texts from ``first``."""
    for at, text in enumerate(texts, start=first):
        check_text(f"texts[{at}]", text)
    return tokenizer([prompt + text for text in texts] if prompt else texts)


def by_windows(
    model: Pretrained,
    items: Iterable[Any],
    tokenize: Callable[[list[Any], int], tuple[list[Any], int]],
    compute: Callable[[list[Any]], Any],
    join: Callable[[list[Any], list[int]], Result],
    progress: bool | None,
    what: str = "texts",
) -> Iterator[Result]:
    """Yield the results of each window of items, which ``join`` makes of those of ``sorted_batches`` and their order.

    ``tokenize`` returns the tokens of items, given also how many came before, and how many of them were cut. Warns once, at the
    end, if any were.
    """
    from tqdm import tqdm

    total = len(items) if isinstance(items, Sized) else None
    disable = None if progress is None else not progress
    count = cut = 0
    with tqdm(total=total, unit=f" {what}", disable=disable, delay=1.0 if progress is None else 0.0) as bar:
        for window in windows(items):
            tokens, cut_here = tokenize(window, count)
            order, batches = sorted_batches(tokens)
            yield join(computed(model.backend, compute, batches, bar.update), order)
            count, cut = count + len(window), cut + cut_here
    warn_of_cut(cut, count, model.tokenizer, what)


def warn_of_cut(cut: int, count: int, tokenizer: Tokenizer, what: str = "texts") -> None:
    """Warn if texts, or pairs of them, were cut. The warning points at the first caller outside of this package."""
    if cut:
        frame, level = sys._getframe(), 1
        while frame.f_back is not None and frame.f_globals["__name__"].startswith(f"{__package__}."):
            frame, level = frame.f_back, level + 1
        message = f"{cut} of {count} {what} are longer than {tokenizer.max_seq_length} tokens, and were cut there"
        warnings.warn(message, TruncationWarning, stacklevel=level)
