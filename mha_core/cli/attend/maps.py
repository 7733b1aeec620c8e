"""The attention maps of a text, and the choice of layer and head."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from ...dispatch.errors import MhaError
from ...models.text_encoder import TextEncoder


class NoTokens(MhaError, ValueError):
    """The text has no tokens."""


class NoSuchHead(MhaError, IndexError):
    """The model has no such layer or head."""


@dataclass(frozen=True, eq=False)
class AttentionMaps:
    """The attention maps of a text in all heads of a model."""

    text: str
    tokens: tuple[str, ...]
    special: tuple[bool, ...]
    """Whether each token is a special token, such as [CLS]."""
    weights: Any
    """(layers, heads, L, L) in NumPy float32; each row holds the weights with which its token attends to all tokens."""
    model: str
    """Name of the model, without its path."""
    backend: str

    @property
    def special_tokens(self) -> tuple[str, ...]:
        """The distinct special tokens; () if the text has only special tokens."""
        return (
            ()
            if all(self.special)
            else tuple(dict.fromkeys(t for t, out in zip(self.tokens, self.special, strict=True) if out))
        )

    @property
    def layers(self) -> int:
        """Number of layers."""
        return int(self.weights.shape[0])

    @property
    def heads(self) -> int:
        """Number of heads per layer."""
        return int(self.weights.shape[1])


@dataclass(frozen=True)
class Choice:
    """A layer and a head, counted from 0 as in ``TextEncoder.attention_maps``; None means all."""

    layer: int | None
    head: int | None

    @classmethod
    def of(cls, maps: AttentionMaps, layer: int | None, head: int | None) -> Self:
        """Return the choice. Raises NoSuchHead if the model has no such layer or head."""
        for name, asked, count in (("layer", layer, maps.layers), ("head", head, maps.heads)):
            if asked is not None and not 0 <= asked < count:
                raise NoSuchHead(f"--{name} is {asked}; the model has {name}s 0 to {count - 1}")
        return cls(layer, head)


def attention_maps(text: str, model: str, backend: str | None) -> AttentionMaps:
    """Compute the maps of a text on a backend, with the model from a directory or repository id.

    Raises NoTokens, and what ``TextEncoder.from_pretrained`` and ``attention_maps`` raise.
    """
    encoder = TextEncoder.from_pretrained(model, backend=backend)
    weights, tokens = encoder.attention_maps(text)
    if not tokens:
        raise NoTokens(f"the text {text!r} has no tokens; expected at least one")
    special = encoder.tokenizer.special_tokens
    return AttentionMaps(
        text=text,
        tokens=tuple(tokens),
        special=tuple(token in special for token in tokens),
        weights=encoder.backend.to_numpy(weights),
        model=Path(model).name or model,
        backend=encoder.backend.record.name,
    )
