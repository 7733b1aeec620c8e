"""Settings that are not supported are refused, with the file, the field, its value and what is supported."""

import shutil

import pytest
from small_models import FULL, LOCAL, write_model
from tiny_models import edit, refused

from mha_text.models.config import ACTIVATIONS

YARN = ("factor", "original_max_position_embeddings", "attention_factor", "beta_fast", "beta_slow")
ROPE = {"rope_type": "yarn", "factor": 4.0}
KINDS = "default, linear, ntk, llama3, yarn"
BASE = {"rope_theta": 1e4}
BOTH = {FULL: {"rope_theta": 1e6}, LOCAL: BASE}
ROTARY = [
    ({"rope_type": "dynamic", "factor": 2.0}, f": rope_parameters.rope_type is 'dynamic'; supported: {KINDS}"),
    ({"type": "llama3", "factor": 2.0}, ": rope_parameters.rope_type is llama3, but low_freq_factor is missing"),
    ({"rope_type": None}, f": rope_parameters.rope_type is None; supported: {KINDS}"),
    ({"rope_type": "linear"}, ": rope_parameters.rope_type is linear, but factor is missing"),
    ({"rope_type": "linear", "factor": 0.5}, ": factor is 0.5; expected at least 1, and finite"),
    ({"rope_type": "linear", "factor": "8"}, ": factor is '8'; expected float"),
    ({"rope_theta": 0}, ": rope_theta is 0; expected at least 1, and finite"),
    ({"factor": 2.0}, ": rope_parameters.factor is 2.0; supported with rope_type default: no other parameter"),
    (ROPE | {"mscale": 1.0}, f": rope_parameters.mscale is 1.0; supported with rope_type yarn: {', '.join(YARN)}"),
    ({"partial_rotary_factor": 0.5}, ": rope_parameters.partial_rotary_factor is 0.5; supported: 1"),
    (BOTH, f": rope_parameters is {BOTH}; expected the parameters of all layers"),
]
OTHER = [
    *(("roberta", {"pad_token_id": value}, f": pad_token_id is {value!r}; expected int") for value in (None, "1", True)),
    ("roberta", {"pad_token_id": -1}, ": pad_token_id is -1; expected at least 0"),
    (
        "roberta",
        {"max_position_embeddings": 2},
        ": max_position_embeddings is 2; expected more than 2, where positions begin",
    ),
    ("mpnet", {"relative_attention_num_buckets": 3}, ": relative_attention_num_buckets is 3; expected at least 4"),
    ("qwen3", {"rope_scaling": ROPE}, " has rope_parameters and rope_scaling; expected one of them"),
    ("qwen3", {"rope_parameters": "yarn"}, ": rope_parameters is 'yarn'; expected dict"),
    ("qwen3", {"partial_rotary_factor": 0.5}, ": partial_rotary_factor is 0.5; supported: None, 1"),
    ("qwen3", {"num_key_value_heads": 3}, ": num_key_value_heads is 3; expected a divisor of num_attention_heads = 4"),
    ("qwen3", {"head_dim": 7}, ": heads have 7 features; expected an even number, for rotary embeddings"),
    ("qwen3", {"layer_types": [FULL, LOCAL]}, f": layer_types has {LOCAL}, but use_sliding_window is false"),
    ("qwen3", {"layer_types": [FULL]}, f": layer_types is ['{FULL}']; expected a list of 2 names"),
    ("qwen3", {"layer_types": [FULL, "chunked"]}, f": layer_types[1] is 'chunked'; supported: {FULL}, {LOCAL}"),
    ("qwen3", {"attention_bias": "yes"}, ": attention_bias is 'yes'; expected bool"),
    ("qwen3", {"hidden_act": "tanh"}, f": hidden_act is 'tanh'; supported: {', '.join(ACTIVATIONS)}"),
    ("qwen3", {"rms_norm_eps": -1.0}, ": rms_norm_eps is -1.0; expected at least 0, and finite"),
    ("qwen3", {"max_position_embeddings": 2**21}, ": tables of 2097152 positions are too large; supported: up to 1048576"),
    ("modernbert", {"rope_parameters": BASE}, f": rope_parameters is {BASE}; expected parameters for {FULL} and {LOCAL}"),
    ("modernbert", {"local_attention": 0}, ": local_attention is 0; expected at least 1"),
    ("gemma3", {"sliding_window": None}, ": sliding_window is None; expected int"),
    ("gemma3", {"attn_logit_softcapping": 50.0}, ": attn_logit_softcapping is 50.0; supported: None"),
    ("gemma3", {"query_pre_attn_scalar": 0}, ": query_pre_attn_scalar is 0; expected at least 1, and finite"),
    ("gemma3", {"use_bidirectional_attention": 1}, ": use_bidirectional_attention is 1; expected bool"),
]
NOMIC = {"n_embd": 32, "n_inner": 40, "n_head": 4, "n_layer": 2, "n_positions": 300, "layer_norm_epsilon": 1e-12}
NOMIC |= {"activation_function": "swiglu", "rotary_emb_fraction": 1.0}
NATIVE = ("hidden_size", "intermediate_size", "num_attention_heads", "num_hidden_layers", "rope_parameters")
ORIGINAL_NOMIC = [
    ("activation_function", "gelu", "swiglu"),
    ("prenorm", True, "False, None"),
    ("causal", True, "False, None"),
    ("qkv_proj_bias", True, "False"),
    ("num_experts", 8, "None, 0"),
    ("rotary_emb_fraction", 0.5, "1.0"),
    ("rotary_scaling_factor", 2, "None"),
]
SCALING = {"rope_theta": 1e6, "rope_scaling": {"type": "linear"}}


@pytest.mark.parametrize(
    ("name", "changes", "end", "without"),
    [
        *(("qwen3", {"rope_parameters": parameters}, end, ()) for parameters, end in ROTARY),
        *((*case, ()) for case in OTHER),
        *(("distilbert", {}, f" has no '{field}'", [field]) for field in ("dim", "hidden_dim", "n_heads", "n_layers")),
        *(
            ("nomic", NOMIC | {field: value}, f": {field} is {value!r}; supported: {supported}", NATIVE)
            for field, value, supported in ORIGINAL_NOMIC
        ),
        # named in the words of older files
        ("gemma3", SCALING, ": rope_scaling.rope_type is linear, but factor is missing", ["rope_parameters"]),
    ],
)
def test_settings_that_cannot_be_used(once, tmp_path, name, changes, end, without):
    folder = shutil.copytree(once(write_model, name), tmp_path / "model")
    edit(folder / "config.json", without, **changes)
    assert refused(folder) == f"{folder / 'config.json'}{end}"
