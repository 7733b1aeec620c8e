"""The names of settings and weights in the classification head of each family. A new family takes a few lines here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any


@dataclass(frozen=True)
class Head:
    """A head makes logits of hidden states: pool, then dense, activation and norm, which may be absent, then a linear map.

    Names of weights are those in the file of a whole model. Where a setting may be the name of a field of config.json, the
    field holds its value.
    """

    dense: str | None
    """The linear map before the activation; None: the head has none."""
    classifier: str
    """The linear map to the logits."""
    activation: str = "tanh"
    """The activation after ``dense``, or the field that holds it."""
    pooling: str = "cls"
    """The mode of pooling (see ``Pooling``), or the field that holds it; late: the mean after the activation."""
    poolings: Mapping[str, str] = field(default_factory=lambda: {mode: mode for mode in ("cls", "mean", "lasttoken")})
    """The modes of pooling, by the names that the field may hold."""
    norm: str | None = None
    """The norm after the activation; None: the head has none."""
    norm_eps: str = "layer_norm_eps"
    """The field that holds what the norm adds to the variance."""
    dense_bias: bool | str = True
    norm_bias: bool | str = True
    classifier_bias: bool | str = True
    """True if these have a bias; or the name of the field that says so."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Fields of config.json that may be absent, with their values then."""


_BERT = Head("bert.pooler.dense", "classifier")
_ROBERTA = Head("classifier.dense", "classifier.out_proj")
_MODERNBERT = Head(
    "head.dense",
    "classifier",
    activation="classifier_activation",
    pooling="classifier_pooling",
    norm="head.norm",
    norm_eps="norm_eps",
    dense_bias="classifier_bias",
    norm_bias="norm_bias",
    defaults={
        "classifier_activation": "gelu",
        "classifier_pooling": "cls",
        "classifier_bias": False,
        "norm_eps": 1e-5,
        "norm_bias": False,
    },
)
_EUROBERT = Head(
    "dense",
    "classifier",
    activation="gelu",
    pooling="classifier_pooling",
    poolings={"bos": "cls", "mean": "mean", "late": "late"},
    defaults={"classifier_pooling": "late"},
)
_DECODER = Head(None, "score", pooling="lasttoken", classifier_bias=False)

HEADS: dict[str, Head] = {
    "bert": _BERT,
    "roberta": _ROBERTA,
    "xlm-roberta": _ROBERTA,
    "camembert": _ROBERTA,
    "mpnet": _ROBERTA,
    "distilbert": Head("pre_classifier", "classifier", activation="relu"),
    "electra": replace(_ROBERTA, activation="gelu"),
    "modernbert": _MODERNBERT,
    "nomic_bert": Head("nomic_bert.pooler.dense", "classifier"),
    "gte": Head("gte.pooler.dense", "classifier"),
    "new": Head("new.pooler.dense", "classifier"),
    "jina_embeddings_v3": _ROBERTA,
    "eurobert": _EUROBERT,
    "qwen3": _DECODER,
    "gemma3_text": _DECODER,
    "llama": _DECODER,
    "mistral": _DECODER,
}
"""The heads, by ``model_type`` in config.json."""

LANGUAGE_MODELS = ("qwen3", "gemma3_text", "llama", "mistral")
"""The families of language models, which write texts, and score pairs by the logit of a token."""
