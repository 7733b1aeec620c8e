"""The record of a family of models: the names of its settings and weights, and how it differs from BERT."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias


@dataclass(frozen=True)
class WeightPart:
    """One of ``of`` equal parts of a weight, by rows: such as the queries of one product for queries, keys and values."""

    name: str
    at: int
    of: int


Name: TypeAlias = str | WeightPart
"""The name of a weight without ``.weight``."""
Flag: TypeAlias = bool | str
"""True if the family has something; or the name of the field of config.json that says so."""


@dataclass(frozen=True)
class RotaryNames:
    """The fields with the bases of rotary embeddings, if config.json lacks ``rope_parameters``, and their defaults."""

    base: float
    name: str = "rope_theta"
    local_base: float | None = None
    """The base of layers with a window, if they have their own."""
    local_name: str = ""
    scales_local: bool = False
    """True if ``rope_scaling`` applies to layers with a window too."""


@dataclass(frozen=True)
class Windows:
    """The layers that see a window only, if config.json has no ``layer_types``."""

    size: str
    """The field with the number of positions in a window; with causal attention the last of them is the query's own."""
    every: tuple[str, int] | None = None
    """The field with a number n, and its default: one of n layers sees everything."""
    first: bool = False
    """True if this is the first of n layers, not the last."""
    start: str | None = None
    """The field with the number of layers, from the first, that see everything."""
    enabled: str | None = None
    """The field that must be true for any layer to have a window."""
    may_be_null: bool = False
    """True if no layer has a window where ``size`` is null. Without ``every`` and ``start`` all layers have one."""


@dataclass(frozen=True)
class Family:
    """Names in config.json and in files of weights; BERT's by default."""

    prefix: str
    """The start of the names of weights in the file of a whole model; absent in the file of an encoder alone."""

    # fields of config.json
    d_model: str = "hidden_size"
    d_ff: str = "intermediate_size"
    num_heads: str = "num_attention_heads"
    num_kv_heads: str | None = None
    """None: as many as heads."""
    head_dim: str | None = None
    """None, or a field that is absent: d_model / heads."""
    num_layers: str = "num_hidden_layers"
    max_length: str = "max_position_embeddings"
    activation: str = "hidden_act"
    eps: str = "layer_norm_eps"
    token_types: str | None = "type_vocab_size"
    """The number of token types; None: the family has no token types."""
    least_token_types: int = 1
    padding: str | int | None = None
    """The id of the padding token, or the field that holds it: positions begin after it. None: positions begin at 0."""
    buckets: str | None = None
    """The number of buckets in the table of relative positions; None: the family has no such table."""
    score_size: str | None = None
    """The number whose square root divides the scores; None: the number of features of a head."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """The values of fields that config.json may lack."""
    only: Mapping[str, tuple[Any, ...]] = field(default_factory=lambda: {"position_embedding_type": ("absolute",)})
    """Fields that change what is computed, and the values that are supported; the first stands for an absent field."""

    # which biases there are
    attention_bias: Flag = True
    bias_1: Flag = True
    """The biases of ``linear_1`` and ``gate``."""
    bias_2: Flag = True
    norm_bias: Flag = True

    # what layers compute
    norm_first: bool = False
    skips_first_norm: bool = False
    """True if the first layer has no ``norm_1``."""
    rms_norm: bool = False
    norms_are_shifted: bool = False
    """True if files hold the weights of norms less 1."""
    scales_words: bool = False
    """True if the embeddings of words are multiplied by the square root of d_model."""
    alibi: bool = False
    rotary: RotaryNames | None = None
    causal: bool = False
    bidirectional: str | None = None
    """The field that turns causal attention off if it is true."""
    windows: Windows | None = None

    # weights: before the layers, the layers, and below each of them
    words: str = "embeddings.word_embeddings"
    positions: str | None = "embeddings.position_embeddings"
    type_table: str = "embeddings.token_type_embeddings"
    embedding_norm: str | None = "embeddings.LayerNorm"
    relative_table: str = "encoder.relative_attention_bias"
    final_norm: str | None = None
    layers: str = "encoder.layer"
    query: Name = "attention.self.query"
    key: Name = "attention.self.key"
    value: Name = "attention.self.value"
    norm_q: str | None = None
    norm_k: str | None = None
    attention_output: str = "attention.output.dense"
    norm_1: str = "attention.output.LayerNorm"
    post_norm_1: str | None = None
    linear_1: Name = "intermediate.dense"
    gate: Name | None = None
    """The product that the activation is multiplied by; None: the network has no gate."""
    linear_2: str = "output.dense"
    norm_2: str = "output.LayerNorm"
    post_norm_2: str | None = None
