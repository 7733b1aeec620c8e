"""Text models with a classification head: token ids in, logits out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

from ..algebra.arrays import Array, compute_dtype, device_of, integers
from ..algebra.masks import packed
from ..dispatch.selection import backend_of
from ..layers.base import Layer
from ..layers.norm import LayerNorm
from ..ops.functional import activate, linear
from .checkpoint import Source, build_model
from .config import ACTIVATIONS
from .family import Family
from .files import field, one_of, read_json
from .heads import HEADS, Head
from .pooling import Pooling
from .text_model import TextModel

_ACTIVATIONS = {**ACTIVATIONS, "tanh": "tanh"}


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

    def __call__(self, hidden: Array, lengths: Sequence[int], ends: Sequence[int] | None = None) -> Array:
        """Hidden states of n texts laid end to end, (sum of lengths, d) -> logits (n, labels).

        ``ends``: the number of tokens of each text that are pooled, from the first; None: all.
        """
        xp = backend_of({"hidden": hidden}).xp  # the tape's, if gradients are recorded
        if ends is not None and list(ends) != list(lengths):
            starts = accumulate(lengths[:-1], initial=0)
            kept = [at for start, end in zip(starts, ends, strict=True) for at in range(start, start + end)]
            hidden, lengths = xp.take(hidden, integers(xp, kept, device_of(hidden)), axis=0), ends
        is_late = self.pooling == "late"
        x = self._activated(hidden) if is_late else hidden
        wide = xp.astype(x, compute_dtype(xp, x.dtype), copy=False)
        pooled = xp.astype(Pooling(("mean" if is_late else self.pooling,))(xp, wide, lengths), x.dtype, copy=False)
        return self._of_activated(pooled) if is_late else self.logits(pooled)

    def logits(self, x: Array) -> Array:
        """Pooled hidden states (n, d) -> logits (n, labels)."""
        return self._of_activated(self._activated(x))

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
class Classifier(Layer):
    """A text model and its head."""

    text: TextModel
    head: ClassificationHead
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
        """Tokens of n texts laid end to end, each array (sum of lengths,) -> logits (n, labels); ``ends`` as for the head."""
        if self.head.pooling == "cls" and all(lengths):
            return self.head.logits(self.text.first_states(ids, positions, lengths, token_type_ids=token_type_ids))
        return self.head(self.text(ids, positions, mask=packed(lengths), token_type_ids=token_type_ids), lengths, ends)

    def end(self, ids: Sequence[int]) -> int:
        """Return the number of a text's tokens up to the last one that is no padding; at least 1 if there are any."""
        end = len(ids)
        while end > 1 and ids[end - 1] == self.padding:
            end -= 1
        return end

    @property
    def build(self) -> Callable[..., Classifier]:
        """The function that makes such a model of the arrays of a file."""
        return build_classifier

    @property
    def num_labels(self) -> int:
        """The number of logits of a text."""
        return self.head.w_out.shape[1]


def build_classifier(folder: Path, family: Family, file: Source, make: Callable[[Any], Array]) -> Classifier:
    """Return the model that config.json describes, of arrays from ``file``."""
    text = build_model(folder, family, file, make)
    file.prefix = ""  # the names of a head are whole
    path, head = folder / "config.json", _head(folder)
    config = {**head.defaults, **read_json(path)}
    d_model, labels = field(config, path, family.d_model), _count_labels(config, path)

    def setting(value: str) -> Any:
        return config.get(value, value)

    def has(bias: bool | str) -> bool:
        return bias if isinstance(bias, bool) else bool(field(config, path, bias, bool))

    def linear_map(name: str, outputs: int, bias: bool | str) -> tuple[Array, Array | None]:
        w = make(file.take(f"{name}.weight", (outputs, d_model)).T)
        return w, make(file.take(f"{name}.bias", (outputs,))) if has(bias) else None

    w = b = norm = None
    if head.dense is not None:
        w, b = linear_map(head.dense, d_model, head.dense_bias)
    if head.norm is not None:
        weight = make(file.take(f"{head.norm}.weight", (d_model,)))
        shift = make(file.take(f"{head.norm}.bias", (d_model,))) if has(head.norm_bias) else None
        norm = LayerNorm(weight, shift, field(config, path, head.norm_eps, float, least=0))
    w_out, b_out = linear_map(head.classifier, labels, head.classifier_bias)
    activation = _ACTIVATIONS[one_of(setting(head.activation), _ACTIVATIONS, path, head.activation)]
    pooling = head.poolings[one_of(setting(head.pooling), head.poolings, path, head.pooling)]
    padding = config.get("pad_token_id") if pooling == "lasttoken" else None
    return Classifier(text, ClassificationHead(w_out, b_out, w, b, norm, activation, pooling), padding)


def _head(folder: Path) -> Head:
    path = folder / "config.json"
    return HEADS[one_of(field(read_json(path), path, "model_type", str), HEADS, path, "model_type")]


def _count_labels(config: dict[str, Any], path: Path) -> int:
    """Return the number of labels, as transformers does: of id2label, else num_labels, else 2."""
    if config.get("id2label") is not None:
        return len(field(config, path, "id2label", dict))
    return int(field({"num_labels": 2} | config, path, "num_labels"))
