"""The loop of generation: prompts of different lengths are read, then each text grows by a token a step until it ends."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

from mha_core.shared import LoadedBackend, compute_dtype

from .causal_model import CausalModel
from .sampling import Sampling

PREFILL = 1024
"""The most tokens of prompts that one step reads, so that memory does not grow with their lengths."""


def generated_tokens(
    model: CausalModel,
    backend: LoadedBackend,
    prompts: Sequence[Sequence[int]],
    sampling: Sampling,
    ends: Collection[int],
    max_new_tokens: int,
    is_done: Callable[[int], bool],
    cache_dtype: str | None = None,
) -> Iterator[list[tuple[int, int]]]:
    """Yield, for each step, the new token of each text that goes on, with the text's number.

    A text ends with a token of ``ends``, which is not yielded, after ``max_new_tokens``, or when ``is_done`` of its number. It
    then leaves the batch. No text is padded.
    """
    caches = model.caches(len(prompts), cache_dtype)
    states, live = _read(model, backend, prompts, caches), [*range(len(prompts))]
    for place in range(max_new_tokens):
        logits = model.logits(states)  # may be in bfloat16, which torch does not give to NumPy
        rows = backend.to_numpy(backend.xp.astype(logits, compute_dtype(backend.xp, logits.dtype), copy=False))
        tokens = {text: sampling.token(row, text, place) for text, row in zip(live, rows, strict=True)}
        new = [(text, token) for text, token in tokens.items() if token not in ends]
        if new:
            yield new
        ended = {text for text, token in tokens.items() if token in ends or is_done(text)}
        if place + 1 == max_new_tokens or len(ended) == len(live):
            return
        if ended:
            kept = [at for at, text in enumerate(live) if text not in ended]
            live = [live[at] for at in kept]
            for cache in caches:
                cache.select(kept)
        states = model.step([[tokens[text]] for text in live], caches)


def _read(model: CausalModel, backend: LoadedBackend, prompts: Sequence[Sequence[int]], caches: Any) -> Any:
    """Return the hidden state of the last token of each prompt, (n, d); prompts are read PREFILL tokens at a time."""
    read, states = [0] * len(prompts), []
    while any(at < len(ids) for at, ids in zip(read, prompts, strict=True)):
        room, parts = PREFILL, []
        for at, ids in zip(read, prompts, strict=True):
            parts.append(ids[at : at + room])
            room -= len(parts[-1])
        rows = model.step(parts, caches)
        read = [at + len(part) for at, part in zip(read, parts, strict=True)]
        ended = [at == len(ids) for at, ids, part in zip(read, prompts, parts, strict=True) if part]
        states += [rows[at : at + 1, :] for at, is_last in enumerate(ended) if is_last]
    return states[0] if len(states) == 1 else backend.xp.concat(states, axis=0)
