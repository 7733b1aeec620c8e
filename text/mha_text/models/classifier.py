"""Text models with a classification head: token ids in, logits out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any, TypeAlias

from mha_core import LayerNorm, linear, packed
from mha_core.shared import Array, Layer, activate, backend_of, compute_dtype, device_of, integers

from .checkpoint import build_model
from .config import ACTIVATIONS, Config
from .family import Family
from .files import WeightsFile, field, model_type, one_of, read_json
from .heads import HEADS
from .pooling import Pooling
from .text_model import TextModel

_ACTIVATIONS = {**ACTIVATIONS, "tanh": "tanh"}
Pool: TypeAlias = Callable[[str, Array], Array]
"""A function from a mode of pooling and features of all tokens to features of texts, (n, d), in their dtype."""


@dataclass(frozen=True, eq=False)
class TextScorer(Layer):
    """A text model, and what makes logits of its hidden states."""

    text: TextModel
    _: KW_ONLY
    padding: int | None = None
    """The id of the padding token, which the pooling lasttoken passes over at the end of a text; None: there is none."""

    def __call__(
        self,
        ids: Array,
        positions: Array,
        lengths: Sequence[int],
        *,
        token_type_ids: Array | None = None,
        ends: Sequence[int] | None = None,
    ) -> Array:
        """Tokens of n texts laid end to end, each array (sum of lengths,) -> logits (n, labels).

        ``ends``: the number of tokens of each text that are pooled, from the first; None: all.
        """
        if self.reads_first_states and all(lengths):
            hidden = self.text.first_states(ids, positions, lengths, token_type_ids=token_type_ids)
            lengths, ends = [1] * len(lengths), None
        else:
            hidden = self.text(ids, positions, mask=packed(lengths), token_type_ids=token_type_ids)
        xp = backend_of({"hidden": hidden}).xp  # the tape's, if gradients are recorded
        if ends is not None and list(ends) != list(lengths):
            starts = accumulate(lengths[:-1], initial=0)
            kept = [at for start, end in zip(starts, ends, strict=True) for at in range(start, start + end)]
            hidden, lengths = xp.take(hidden, integers(xp, kept, device_of(hidden)), axis=0), ends

        def pool(mode: str, x: Array) -> Array:
            wide = xp.astype(x, compute_dtype(xp, x.dtype), copy=False)
            return xp.astype(Pooling((mode,))(xp, wide, lengths), x.dtype, copy=False)

        return self.logits(hidden, pool)

    @property
    def reads_first_states(self) -> bool:
        """True if logits depend on the hidden state of each text's first token only."""
        return False

    def logits(self, hidden: Array, pool: Pool) -> Array:
        """Hidden states of n texts laid end to end -> logits (n, labels)."""
        raise NotImplementedError

    def end(self, ids: Sequence[int]) -> int:
        """Return the number of a text's tokens up to the last one that is no padding; at least 1 if there are any."""
        end = len(ids)
        while end > 1 and ids[end - 1] == self.padding:
            end -= 1
        return end


@dataclass(frozen=True, eq=False)
class ClassificationHead(Layer):
    """norm(f(x w + b)) w_out + b_out, with x the pooled hidden states; the first linear map and the norm may be absent."""

    w_out: Array
    """(d, labels)."""
    b_out: Array | None
    """(labels,)."""
    w: Array | None
    """(d, d)."""
    b: Array | None
    """(d,)."""
    norm: LayerNorm | None
    activation: str
    """The name of f, one of tanh, relu, gelu, gelu_tanh and silu."""
    pooling: str
    """The mode of pooling, cls, mean or lasttoken; late: the mean of f(x w + b) over the tokens of a text."""

    def __call__(self, hidden: Array, pool: Pool) -> Array:
        """Hidden states of n texts laid end to end -> logits (n, labels)."""
        if self.pooling == "late":
            return self._of_activated(pool("mean", self._activated(hidden)))
        return self._of_activated(self._activated(pool(self.pooling, hidden)))

    def _activated(self, x: Array) -> Array:
        """Return f(x w + b)."""
        if self.w is None:
            return x
        x = linear(x, self.w, self.b)
        if self.activation != "tanh":
            return activate(self.activation, x)
        xp = backend_of({"x": x}).xp
        return xp.astype(xp.tanh(xp.astype(x, compute_dtype(xp, x.dtype), copy=False)), x.dtype, copy=False)

    def _of_activated(self, x: Array) -> Array:
        return linear(x if self.norm is None else self.norm(x), self.w_out, self.b_out)


@dataclass(frozen=True, eq=False)
class Classifier(TextScorer):
    """A text model and its head."""

    head: ClassificationHead

    @property
    def reads_first_states(self) -> bool:
        return self.head.pooling == "cls"

    def logits(self, hidden: Array, pool: Pool) -> Array:
        return self.head(hidden, pool)

    @property
    def build(self) -> Callable[..., Classifier]:
        """The function that makes such a model of the arrays of a file."""
        return build_classifier

    @property
    def num_labels(self) -> int:
        """The number of logits of a text."""
        return self.head.w_out.shape[1]


def build_classifier(folder: Path, family: Family, file: WeightsFile, make: Callable[[Any], Array]) -> Classifier:
    """Return the model that config.json describes, of arrays from ``file``."""
    text = build_model(folder, family, file, make)
    file.prefix = ""  # the names of a head are whole
    head = HEADS[model_type(folder, HEADS)]
    path = folder / "config.json"
    config = Config(path, {"num_labels": 2, **head.defaults, **read_json(path)})  # 2 labels by default, as in transformers
    d_model = config.size(family.d_model)
    labels = len(field(config.fields, path, "id2label", dict)) if config.has("id2label") else config.size("num_labels")

    def setting(value: str) -> Any:
        return config.fields.get(value, value)

    def linear_map(name: str, outputs: int, bias: bool | str) -> tuple[Array, Array | None]:
        w = make(file.take(f"{name}.weight", (outputs, d_model)).T)
        return w, make(file.take(f"{name}.bias", (outputs,))) if config.flag(bias) else None

    w = b = norm = None
    if head.dense is not None:
        w, b = linear_map(head.dense, d_model, head.dense_bias)
    if head.norm is not None:
        weight = make(file.take(f"{head.norm}.weight", (d_model,)))
        shift = make(file.take(f"{head.norm}.bias", (d_model,))) if config.flag(head.norm_bias) else None
        norm = LayerNorm(weight, shift, config.number(head.norm_eps))
    w_out, b_out = linear_map(head.classifier, labels, head.classifier_bias)
    activation = _ACTIVATIONS[one_of(setting(head.activation), _ACTIVATIONS, path, head.activation)]
    pooling = head.poolings[one_of(setting(head.pooling), head.poolings, path, head.pooling)]
    padding = config.fields.get("pad_token_id") if pooling == "lasttoken" else None
    return Classifier(text, ClassificationHead(w_out, b_out, w, b, norm, activation, pooling), padding=padding)
