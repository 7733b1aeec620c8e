"""A text that grows token by token: what may be shown of it already, and where it stops."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any


class Written:
    """The text of the tokens after a prompt, up to the first of the strings that stop it."""

    def __init__(self, tokenizer: Any, prompt: Sequence[int], stop: Sequence[str]) -> None:
        """``tokenizer``: a ``tokenizers.Tokenizer``; ``prompt``: the tokens before, which say whether a space comes first."""
        from tokenizers.decoders import DecodeStream

        self.prompt, self.text, self.is_stopped, self.count = prompt, "", False, 0
        self._tokenizer, self._stop, self._shown = tokenizer, stop, 0
        self._decoder: Any = DecodeStream(ids=list(prompt), skip_special_tokens=True)

    def add(self, token: int) -> None:
        """Append a token. Bytes that are no whole letter yet wait for the next one."""
        self.count += 1
        start = max(0, len(self.text) - max(map(len, self._stop), default=0))
        self.text += self._decoder.step(self._tokenizer, token) or ""
        places = [at for word in self._stop if (at := self.text.find(word, start)) >= 0]
        if places:
            self.text, self.is_stopped = self.text[: min(places)], True

    def piece(self, *, last: bool = False) -> str:
        """Return what was not returned before; what may become a string that stops the text only with ``last``."""
        held = 0
        if not (last or self.is_stopped):
            held = max((n for word in self._stop for n in range(1, len(word)) if self.text.endswith(word[:n])), default=0)
        piece = self.text[self._shown : len(self.text) - held]
        self._shown += len(piece)
        return piece


class TextStream(Iterator[str]):
    """The pieces of a text as it grows, and how far it is."""

    def __init__(self, written: Written, steps: Iterator[None]) -> None:
        self._written, self._pieces = written, self._of(written, steps)

    def __next__(self) -> str:
        return next(self._pieces)

    @property
    def text(self) -> str:
        """What was written so far."""
        return self._written.text

    @property
    def prompt_tokens(self) -> int:
        """The number of tokens of the prompt."""
        return len(self._written.prompt)

    @property
    def new_tokens(self) -> int:
        """The number of tokens that were written so far."""
        return self._written.count

    @staticmethod
    def _of(written: Written, steps: Iterator[None]) -> Iterator[str]:
        for _ in steps:
            if piece := written.piece():
                yield piece
        if piece := written.piece(last=True):
            yield piece
