"""The table of families: the names of settings and weights, by model type. A new family takes a few lines here."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from .family import Family, RotaryNames, WeightPart, Windows


def _parts(name: str, *fields: str) -> dict[str, Any]:
    """Return the equal parts of one weight, by the fields that they are for."""
    return {field: WeightPart(name, at, len(fields)) for at, field in enumerate(fields)}


_QKV = ("query", "key", "value")
_BIASES: dict[str, Any] = {"attention_bias": "attention_bias", "bias_1": "mlp_bias", "bias_2": "mlp_bias"}
_UNBIASED: dict[str, Any] = dict.fromkeys(_BIASES, False)
_FLASH: dict[str, Any] = {"embedding_norm": "emb_ln", "layers": "encoder.layers", "norm_1": "norm1", "norm_2": "norm2"}
"""The names in files of models that were trained with the layers of flash-attn."""

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
_JINA_2 = replace(  # Günther et al. 2023, section 4
    _BERT,
    only={"position_embedding_type": ("alibi",), "feed_forward_type": ("geglu",)},
    positions=None,
    alibi=True,
    bias_1=False,
    **_parts("mlp.gated_layers", "linear_1", "gate"),
    linear_2="mlp.wo",
    norm_2="mlp.layernorm",
)

_MODERNBERT = Family(  # Warner et al. 2024, section 2.1
    "model.",
    activation="hidden_activation",
    eps="norm_eps",
    token_types=None,
    defaults={"norm_eps": 1e-5, "attention_bias": False, "mlp_bias": False, "norm_bias": False, "local_attention": 128},
    **_BIASES,
    norm_bias="norm_bias",
    norm_first=True,
    skips_first_norm=True,
    rotary=RotaryNames(160_000.0, "global_rope_theta", 10_000.0, "local_rope_theta", scales_local=True),
    windows=Windows("local_attention", every=("global_attn_every_n_layers", 3), first=True),
    words="embeddings.tok_embeddings",
    positions=None,
    embedding_norm="embeddings.norm",
    final_norm="final_norm",
    layers="layers",
    **_parts("attn.Wqkv", *_QKV),
    attention_output="attn.Wo",
    norm_1="attn_norm",
    **_parts("mlp.Wi", "linear_1", "gate"),
    linear_2="mlp.Wo",
    norm_2="mlp_norm",
)

_SELF_ATTENTION: dict[str, Any] = {
    name: f"self_attn.{letter}_proj" for name, letter in zip((*_QKV, "attention_output"), "qkvo", strict=True)
}
_GATED: dict[str, Any] = {"linear_1": "mlp.gate_proj", "gate": "mlp.up_proj", "linear_2": "mlp.down_proj"}
_POST_NORM_ROTARY = Family(
    "",
    positions=None,
    layers="layers",
    **_SELF_ATTENTION,
    norm_1="post_attention_layernorm",
    norm_2="post_mlp_layernorm",
)
_NOMIC = replace(  # Nussbaum et al. 2024, section 3
    _POST_NORM_ROTARY,
    prefix="nomic_bert.",
    head_dim="head_dim",
    defaults={"hidden_act": "silu"},
    **_UNBIASED,
    rotary=RotaryNames(1000.0),
    **_GATED,
)
_NOMIC_FILE = replace(
    _NOMIC,
    prefix="bert.",
    **_FLASH,
    **_parts("attn.Wqkv", *_QKV),
    attention_output="attn.out_proj",
    linear_1="mlp.fc12",
    gate="mlp.fc11",
    linear_2="mlp.fc2",
)
_NOMIC_ORIGINAL = replace(
    _NOMIC_FILE,
    d_model="n_embd",
    d_ff="n_inner",
    num_heads="n_head",
    head_dim=None,
    num_layers="n_layer",
    max_length="n_positions",
    eps="layer_norm_epsilon",
    rotary=RotaryNames(10_000.0, "rotary_emb_base"),
    only={
        "activation_function": ("swiglu",),
        "rotary_emb_fraction": (1.0,),
        "rotary_scaling_factor": (None,),
        **dict.fromkeys(("num_experts", "moe_every_n_layers"), (None, 0)),
        **dict.fromkeys(("prenorm", "causal", "parallel_block", "use_rms_norm", "rotary_emb_interleaved"), (False, None)),
        **dict.fromkeys(("qkv_proj_bias", "mlp_fc1_bias", "mlp_fc2_bias"), (False,)),
        "rotary_emb_scale_base": (None,),
    },
)
_GTE = replace(  # Zhang et al. 2024, section 3.1
    _POST_NORM_ROTARY,
    prefix="gte.",
    least_token_types=0,
    defaults={"type_vocab_size": 1},
    bias_1=False,
    rotary=RotaryNames(160_000.0),
    **_GATED,
)
_GTE_FILE = replace(
    _GTE,
    layers="encoder.layer",
    **_parts("attention.qkv_proj", *_QKV),
    attention_output="attention.o_proj",
    norm_1="attn_ln",
    **_parts("mlp.up_gate_proj", "gate", "linear_1"),
    norm_2="mlp_ln",
)
_GTE_ORIGINAL = replace(
    _GTE_FILE,
    prefix="new.",
    rotary=RotaryNames(10_000.0),
    only={
        "position_embedding_type": ("rope",),
        "layer_norm_type": ("layer_norm",),
        **dict.fromkeys(("logn_attention_scale", "logn_attention_clip1"), (False,)),
    },
)
_JINA_3 = replace(  # Sturua et al. 2024, section 4
    _POST_NORM_ROTARY,
    prefix="roberta.",
    defaults={"type_vocab_size": 1, "layer_norm_eps": 1e-5},
    rotary=RotaryNames(20_000.0),
    linear_1="mlp.fc1",
    linear_2="mlp.fc2",
)
_JINA_3_FILE = replace(
    _JINA_3,
    **_FLASH,
    **_parts("mixer.Wqkv", *_QKV),
    attention_output="mixer.out_proj",
)

_EUROBERT = Family(  # Boizard et al. 2025, section 2.1
    "model.",
    num_kv_heads="num_key_value_heads",
    head_dim="head_dim",
    eps="rms_norm_eps",
    token_types=None,
    defaults={"hidden_act": "silu", "rms_norm_eps": 1e-5, "attention_bias": False, "mlp_bias": False},
    **_BIASES,
    norm_first=True,
    rms_norm=True,
    rotary=RotaryNames(10_000.0),
    words="embed_tokens",
    positions=None,
    embedding_norm=None,
    final_norm="norm",
    layers="layers",
    **_SELF_ATTENTION,
    norm_1="input_layernorm",
    **_GATED,
    norm_2="post_attention_layernorm",
)
_QWEN_3 = replace(  # Yang et al. 2025, section 2
    _EUROBERT,
    defaults={
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "attention_bias": False,
        "head_dim": 128,
        "num_key_value_heads": 32,
        "use_sliding_window": False,
        "max_window_layers": 28,
    },
    bias_1=False,
    bias_2=False,
    causal=True,
    windows=Windows("sliding_window", start="max_window_layers", enabled="use_sliding_window"),
    norm_q="self_attn.q_norm",
    norm_k="self_attn.k_norm",
)
_GEMMA_3 = replace(  # Gemma Team 2025, section 2
    _QWEN_3,
    activation="hidden_activation",
    score_size="query_pre_attn_scalar",
    defaults={
        "hidden_activation": "gelu_pytorch_tanh",
        "rms_norm_eps": 1e-6,
        "attention_bias": False,
        "head_dim": 256,
        "num_key_value_heads": 4,
        "query_pre_attn_scalar": 256,
        "sliding_window": 4096,
        "use_bidirectional_attention": False,
    },
    only={"attn_logit_softcapping": (None,)},
    bidirectional="use_bidirectional_attention",
    norms_are_shifted=True,
    scales_words=True,
    rotary=RotaryNames(1_000_000.0, "rope_theta", 10_000.0, "rope_local_base_freq"),
    windows=Windows("sliding_window", every=("sliding_window_pattern", 6)),
    post_norm_1="post_attention_layernorm",
    norm_2="pre_feedforward_layernorm",
    post_norm_2="post_feedforward_layernorm",
)
_LLAMA = replace(  # Touvron et al. 2023; Llama Team 2024, section 3.2
    _EUROBERT,
    defaults={"hidden_act": "silu", "rms_norm_eps": 1e-6, "attention_bias": False, "mlp_bias": False},
    only={"pretraining_tp": (1,)},
    causal=True,
)
_MISTRAL = replace(  # Jiang et al. 2023, section 2
    _LLAMA,
    defaults={"hidden_act": "silu", "rms_norm_eps": 1e-6, "num_key_value_heads": 8, "sliding_window": 4096},
    only={},
    **_UNBIASED,
    windows=Windows("sliding_window", may_be_null=True),
)

MODEL_TYPES: dict[str, tuple[Family, ...]] = {
    "bert": (_BERT, _JINA_2),
    "roberta": (_ROBERTA,),
    "xlm-roberta": (_ROBERTA,),
    "camembert": (_ROBERTA,),
    "mpnet": (_MPNET,),
    "distilbert": (_DISTILBERT,),
    "electra": (replace(_BERT, prefix="electra."),),
    "modernbert": (_MODERNBERT,),
    "nomic_bert": (_NOMIC, _NOMIC_FILE, replace(_NOMIC_FILE, prefix=_NOMIC.prefix), _NOMIC_ORIGINAL),
    "gte": (_GTE, _GTE_FILE),
    "new": (_GTE_ORIGINAL,),
    "jina_embeddings_v3": (_JINA_3, _JINA_3_FILE),
    "eurobert": (_EUROBERT,),
    "qwen3": (_QWEN_3,),
    "gemma3_text": (_GEMMA_3,),
    "llama": (_LLAMA,),
    "mistral": (_MISTRAL,),
}
"""The families, by ``model_type`` in config.json; several if files of one type come in several layouts."""
