"""The attention maps of a text, and the choice of layer and head."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self, TypeAlias

from mha_core import MhaError

from ...models.text_encoder import TextEncoder

Head: TypeAlias = int | Literal["mean"]
"""A head, counted from 0, or the mean of all heads of a layer."""


class NoTokens(MhaError, ValueError):
    """The text has no tokens."""


class NoSuchHead(MhaError, IndexError):
    """The model has no such layer or head."""


class NoSuchToken(MhaError, IndexError):
    """The text has no such token, or several."""


@dataclass(frozen=True, eq=False)
class AttentionMaps:
    """The attention maps of a text in all heads of a model."""

    text: str
    tokens: tuple[str, ...]
    special: tuple[bool, ...]
    """True if each token is a special token, such as [CLS]."""
    weights: Any
    """(layers, heads, L, L) in NumPy float32; each row holds the weights with which its token attends to all tokens."""
    model: str
    """Name of the model, without its path."""
    backend: str

    @property
    def special_tokens(self) -> tuple[str, ...]:
        """The distinct special tokens; () if the text has only special tokens."""
        special = (token for token, is_special in zip(self.tokens, self.special, strict=True) if is_special)
        return () if all(self.special) else tuple(dict.fromkeys(special))

    def of(self, layer: int, head: Head) -> Any:
        """Return the weights (L, L) of a head, or the mean of all heads of a layer."""
        return self.weights[layer].mean(axis=0) if head == "mean" else self.weights[layer, head]

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
    """A layer and a head, counted from 0 as in ``TextEncoder.attention_maps``; None means all. A page may select a token."""

    layer: int | None
    head: Head | None
    token: int | None = None

    @classmethod
    def of(cls, maps: AttentionMaps, layer: int | None, head: Head | None, token: str | None = None) -> Self:
        """Return the choice; ``token`` is a number from 0, or a token as it is spelled.

        Raises NoSuchHead if the model has no such layer or head, and NoSuchToken for a token that the text lacks or repeats.
        """
        for name, asked, count in (("layer", layer, maps.layers), ("head", head, maps.heads)):
            if isinstance(asked, int) and not 0 <= asked < count:
                raise NoSuchHead(f"--{name} is {asked}; the model has {name}s 0 to {count - 1}")
        return cls(layer, head, None if token is None else _place(token, maps.tokens))

    def reason(self, maps: AttentionMaps) -> str:
        """Return why ``one`` chooses what it does; "" if nothing is left to choose."""
        if self.head == "mean" or None not in (self.layer, self.head):
            return ""
        what = "layer" if self.layer is None and self.head is not None else "head"
        of = " of this layer" if self.layer is not None else ""
        return f"the {what}{of} with the largest weights{_pairs(maps)[0]}"

    def one(self, maps: AttentionMaps) -> tuple[int, Head]:
        """Return a single layer and head: where one was not chosen, the most telling; of a mean, the last layer."""
        if self.head == "mean":
            return maps.layers - 1 if self.layer is None else self.layer, "mean"
        values = telling(maps)
        layers = range(maps.layers) if self.layer is None else [self.layer]
        heads = range(maps.heads) if self.head is None else [self.head]
        return max(((layer, head) for layer in layers for head in heads), key=lambda at: float(values[at]))


def _place(token: str, tokens: tuple[str, ...]) -> int:
    """Return the number of a token, which is given by its number or its spelling."""
    if token.isdecimal() and int(token) < len(tokens):
        return int(token)
    places = [at for at, each in enumerate(tokens) if each == token]
    if len(places) == 1:
        return places[0]
    numbered = ", ".join(f"{at} {tokens[at]}" for at in places or range(len(tokens)))
    what = "several tokens" if places else "not one of the tokens"
    raise NoSuchToken(f"--token is {token!r}, {what}; give one of the numbers: {numbered}")


def telling(maps: AttentionMaps) -> Any:
    """Return how large the weights between words are in each head, as (layers, heads).

    It is the largest weight that a word gives to a word which is not next to it, averaged over all words. Special tokens and
    punctuation are no words. A text without such pairs is judged by neighbours too, and one without two words by all tokens.
    """
    xp = maps.weights.__array_namespace__()
    _, allowed = _pairs(maps)
    return xp.where(allowed, maps.weights, 0).max(axis=-1)[..., allowed.any(axis=-1)].mean(axis=-1)


def _pairs(maps: AttentionMaps) -> tuple[str, Any]:
    """Return the pairs of tokens by whose weights a head is judged, in words and as booleans (L, L)."""
    xp = maps.weights.__array_namespace__()
    is_word = [any(map(str.isalnum, token)) and not out for token, out in zip(maps.tokens, maps.special, strict=True)]
    word, at = xp.asarray(is_word), xp.arange(len(is_word))
    distance = xp.abs(at[:, None] - at[None, :])
    pairs = word[:, None] & word[None, :]
    for name, allowed in (
        (" between words that are not neighbours", pairs & (distance > 1)),
        (" between words", pairs & (distance > 0)),
    ):
        if allowed.any():
            return name, allowed
    return "", distance >= 0


def attention_maps(text: str, model: str, backend: str | None) -> AttentionMaps:
    """Compute the maps of a text on a backend, with the model from a directory or repository id."""
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
        model=_name(model),
        backend=encoder.backend.record.name,
    )


def _name(model: str) -> str:
    """Return the last part of a path or repository id that tells something."""
    path = Path(model).absolute()
    return path.parent.name if path.name == "model" else path.name or model
