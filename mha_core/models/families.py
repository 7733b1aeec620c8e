"""The names of settings and weights in each family of models. A new family takes a few lines here."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Family:
    """Names in config.json and model.safetensors; BERT's by default."""

    prefix: str
    """The start of the names of weights in the file of a whole model; absent in the file of an encoder alone."""

    # fields of config.json
    d_model: str = "hidden_size"
    d_ff: str = "intermediate_size"
    num_heads: str = "num_attention_heads"
    num_layers: str = "num_hidden_layers"
    activation: str = "hidden_act"
    token_types: str | None = "type_vocab_size"
    """The number of token types; None: the family has no token types."""
    padding: str | int | None = None
    """The id of the padding token, or the field that holds it: positions begin after it. None: positions begin at 0."""
    buckets: str | None = None
    """The number of buckets in the table of relative positions; None: the family has no such table."""

    # weights: the layers, and below each of them
    layers: str = "encoder.layer"
    query: str = "attention.self.query"
    key: str = "attention.self.key"
    value: str = "attention.self.value"
    attention_output: str = "attention.output.dense"
    norm_1: str = "attention.output.LayerNorm"
    linear_1: str = "intermediate.dense"
    linear_2: str = "output.dense"
    norm_2: str = "output.LayerNorm"


_BERT = Family("bert.")
_ROBERTA = Family("roberta.", padding="pad_token_id")
_MPNET = Family(
    "mpnet.",
    token_types=None,
    padding=1,
    buckets="relative_attention_num_buckets",
    query="attention.attn.q",
    key="attention.attn.k",
    value="attention.attn.v",
    attention_output="attention.attn.o",
    norm_1="attention.LayerNorm",
)
_DISTILBERT = Family(
    "distilbert.",
    d_model="dim",
    d_ff="hidden_dim",
    num_heads="n_heads",
    num_layers="n_layers",
    activation="activation",
    token_types=None,
    layers="transformer.layer",
    query="attention.q_lin",
    key="attention.k_lin",
    value="attention.v_lin",
    attention_output="attention.out_lin",
    norm_1="sa_layer_norm",
    linear_1="ffn.lin1",
    linear_2="ffn.lin2",
    norm_2="output_layer_norm",
)

MODEL_TYPES: dict[str, Family] = {
    "bert": _BERT,
    "roberta": _ROBERTA,
    "xlm-roberta": _ROBERTA,
    "camembert": _ROBERTA,
    "mpnet": _MPNET,
    "distilbert": _DISTILBERT,
    "electra": replace(_BERT, prefix="electra."),
}
"""The families, by ``model_type`` in config.json."""
