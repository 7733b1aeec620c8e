"""The attention of one text, on the host, and which part of it people asked for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from ...dispatch.errors import MhaError
from ...models.text_encoder import TextEncoder


class NoTokens(MhaError, ValueError):
    """A text of which the tokenizer leaves nothing."""


class NoSuchHead(MhaError, IndexError):
    """A layer or a head that the model has not."""


@dataclass(frozen=True, eq=False)
class AttentionMaps:
    """weights (layers, heads, L, L) in NumPy float32: the rows look, the columns are looked at."""

    text: str
    tokens: tuple[str, ...]
    special: tuple[bool, ...]
    weights: Any
    model: str
    backend: str

    @property
    def special_tokens(self) -> tuple[str, ...]:
        """Each once; none where nothing else is left without them."""
        return (
            ()
            if all(self.special)
            else tuple(dict.fromkeys(t for t, out in zip(self.tokens, self.special, strict=True) if out))
        )

    @property
    def layers(self) -> int:
        return int(self.weights.shape[0])

    @property
    def heads(self) -> int:
        return int(self.weights.shape[1])


@dataclass(frozen=True)
class Choice:
    """A layer and a head, counted from 0 as in ``TextEncoder.attention_maps``; None: all of them."""

    layer: int | None
    head: int | None

    @classmethod
    def of(cls, maps: AttentionMaps, layer: int | None, head: int | None) -> Self:
        """Raises NoSuchHead for what the model has not."""
        for name, asked, count in (("layer", layer, maps.layers), ("head", head, maps.heads)):
            if asked is not None and not 0 <= asked < count:
                raise NoSuchHead(f"--{name} is {asked}; the model has {name}s 0 to {count - 1}")
        return cls(layer, head)


def attention_maps(text: str, model: str, backend: str | None) -> AttentionMaps:
    """From the model's directory or repository id; computed by ``attention_weights`` on the backend.

    Raises NoTokens, and what ``TextEncoder.from_pretrained`` and ``attention_maps`` raise.
    """
    encoder = TextEncoder.from_pretrained(model, backend=backend)
    weights, tokens = encoder.attention_maps(text)
    if not tokens:
        raise NoTokens(f"the text {text!r} has no tokens: nothing attends to anything")
    special = encoder.tokenizer.special_tokens
    return AttentionMaps(
        text=text,
        tokens=tuple(tokens),
        special=tuple(token in special for token in tokens),
        weights=encoder.backend.to_numpy(weights),
        model=Path(model).name or model,
        backend=encoder.backend.record.name,
    )
