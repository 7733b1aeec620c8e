"""Packing: texts sorted by length, in batches that are laid end to end in one matrix; and their results, put back in order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, TypeVar

from mha_core.shared import Array, LoadedBackend, Namespace

WINDOW = 4096  # texts that are sorted by length together, and so the maximum number in memory
TOKENS = 1024  # maximum number of tokens in one matrix
SHARE = 4  # the number of batches is a multiple of it, so that 2 or 4 threads finish at the same time
Item = TypeVar("Item")
Result = TypeVar("Result")


def windows(items: Iterable[Item]) -> Iterator[list[Item]]:
    """Yield the items, ``WINDOW`` at a time."""
    remaining = iter(items)
    while window := list(islice(remaining, WINDOW)):
        yield window


def sorted_batches(items: Sequence[Item], length: Callable[[Any], int] = len) -> tuple[list[int], list[list[Item]]]:
    """Return the order of items, longest first, and batches of them in this order, to be packed into matrices.

    ``length``: the number of tokens of an item. Batches have about as many tokens each, at most ``TOKENS``; a longer item is a
    separate batch. Batches do not depend on the number of threads.
    """
    order = sorted(range(len(items)), key=lambda at: -length(items[at]))
    return order, list(_batches([items[at] for at in order], length))


def _batches(items: Sequence[Item], length: Callable[[Any], int]) -> Iterator[list[Item]]:
    """Yield batches, each with its share of the tokens that are left."""
    left = sum(map(length, items))
    count = 1 if left <= TOKENS else SHARE * -(-left // (SHARE * TOKENS))
    batch: list[Item] = []
    tokens = 0
    for item in items:
        size = length(item)
        if batch and tokens + size / 2 > min(left / count, TOKENS - size / 2):
            yield batch
            left -= tokens
            count = max(1, min(count - 1, -(-SHARE * left // TOKENS)))  # few tokens after long texts are one batch
            batch, tokens = [], 0
        batch.append(item)
        tokens += size
    if batch:
        yield batch


def computed(
    backend: LoadedBackend, function: Callable[[list[Item]], Result], batches: Sequence[list[Item]], done: Callable[[int], Any]
) -> list[Result]:
    """Return the result of each batch, computed on all cores; ``done`` is told how many items are finished."""
    compute = map if len(batches) == 1 else backend.parallel  # a single batch may use all cores by itself
    results = []
    for batch, result in zip(batches, compute(function, batches), strict=True):
        results.append(result)
        done(len(batch))
    return results


def places(order: Sequence[int]) -> list[int]:
    """Return where each item is in the order of ``sorted_batches``."""
    return sorted(range(len(order)), key=order.__getitem__)


def in_order(xp: Namespace, batches: Sequence[Array], order: Sequence[int], device: Any) -> Array:
    """Return the rows of batches, put back from the order of ``sorted_batches`` to the one given."""
    return xp.take(xp.concat(list(batches), axis=0), xp.asarray(places(order), device=device), axis=0)
