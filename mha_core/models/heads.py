"""The names of settings and weights in the classification head of each family. A new family takes a few lines here."""

from __future__ import annotations

from dataclasses import dataclass, replace


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
    """The mode of pooling (see ``Pooling``), or the field that holds it."""
    norm: str | None = None
    """The norm after the activation; None: the head has none."""
    norm_eps: str = "layer_norm_eps"
    """The field that holds what the norm adds to the variance."""
    dense_bias: bool | str = True
    norm_bias: bool | str = True
    classifier_bias: bool | str = True
    """Whether these have a bias, or the field that says so."""


_BERT = Head("bert.pooler.dense", "classifier")
_ROBERTA = Head("classifier.dense", "classifier.out_proj")

HEADS: dict[str, Head] = {
    "bert": _BERT,
    "roberta": _ROBERTA,
    "xlm-roberta": _ROBERTA,
    "camembert": _ROBERTA,
    "mpnet": _ROBERTA,
    "distilbert": Head("pre_classifier", "classifier", activation="relu"),
    "electra": replace(_ROBERTA, activation="gelu"),
}
"""The heads, by ``model_type`` in config.json."""
