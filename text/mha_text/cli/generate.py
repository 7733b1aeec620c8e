"""``mha generate``: a language model continues a text, or answers a message; the text is printed as it grows."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from mha_core.cli.tables import prose_console

from ..models.language_model import LanguageModel


def run(prompt: str, model: Callable[[], LanguageModel], *, is_message: bool, **options: Any) -> None:
    """Print what the model writes after the prompt, or as the answer to it, and on standard error how fast it wrote.

    ``options`` are those of ``LanguageModel.stream``.
    """
    language_model = model()
    stream = language_model.stream([{"role": "user", "content": prompt}] if is_message else prompt, **options)
    started, first, pieces = time.perf_counter(), 0.0, 0
    if not is_message:
        print(prompt, end="", flush=True)
    for piece in stream:
        if not pieces:
            first, before = time.perf_counter() - started, stream.new_tokens
        pieces += 1
        print(piece, end="", flush=True)
    print()
    seconds = time.perf_counter() - started - first
    said = f"{stream.prompt_tokens} tokens of the prompt, {stream.new_tokens} new ones"
    if pieces > 1 and stream.new_tokens > before:
        said += f": the first piece after {first:.2f} s, then {(stream.new_tokens - before) / seconds:.1f} tokens a second"
    prose_console(stderr=True).print(said)
