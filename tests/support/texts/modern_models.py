"""Small random models of today's families, made with transformers, in the structure of the models that people use.

transformers computes norms, softmax and rotary embeddings in float32 whatever the dtype of the model. ``Wide`` makes it compute
them in float64, so that a difference shows far above rounding.
"""

from functools import cache

import torch
from small_models import fill, save, trained_tokenizer, write
from torch.overrides import TorchFunctionMode
from transformers import AutoConfig, AutoModel, AutoModelForSequenceClassification

LENGTH = 64
"""The maximum number of tokens of a text, more than any window here."""

FULL, LOCAL = "full_attention", "sliding_attention"
_SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 40}
_SPECIAL = {"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3}
_GROUPS = {"num_key_value_heads": 2, "head_dim": 12}  # heads * head_dim is not hidden_size, as in Qwen3
_GEMMA = {
    "hidden_size": 36,
    "num_hidden_layers": 6,
    "num_attention_heads": 3,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "query_pre_attn_scalar": 24,  # not head_dim, as in Gemma 3 27B
    "sliding_window": 10,
}
_LINEAR = {
    FULL: {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
    LOCAL: {"rope_type": "default", "rope_theta": 1e4},
}
_YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16, "rope_theta": 1e6}

MODELS = {
    "modernbert": ("modernbert", {"num_hidden_layers": 5, "local_attention": 9, "cls_token_id": 2, "sep_token_id": 3}),
    "modernbert with biases": (
        "modernbert",
        {"attention_bias": True, "mlp_bias": True, "norm_bias": True, "local_attention": 6, "layer_types": [LOCAL, FULL]},
    ),
    "nomic": ("nomic_bert", {}),
    "gte": ("gte", {}),
    "gte without token types": ("gte", {"type_vocab_size": 0}),
    "jina 3": ("jina_embeddings_v3", {}),
    "eurobert": ("eurobert", {"num_key_value_heads": 2, "mask_token_id": 4, "rope_parameters": {"rope_theta": 250_000.0}}),
    "eurobert, mean": ("eurobert", {"mask_token_id": 4, "classifier_pooling": "mean"}),
    "eurobert, first": ("eurobert", {"mask_token_id": 4, "classifier_pooling": "bos"}),
    "qwen3": ("qwen3", {**_GROUPS, "rope_parameters": {"rope_theta": 1e6}}),
    "qwen3 with windows": (
        "qwen3",
        {**_GROUPS, "use_sliding_window": True, "sliding_window": 7, "max_window_layers": 1, "attention_bias": True},
    ),
    "qwen3 with yarn": ("qwen3", {**_GROUPS, "rope_parameters": _YARN}),
    "gemma3": ("gemma3_text", _GEMMA),
    "gemma3 in both directions": ("gemma3_text", {**_GEMMA, "use_bidirectional_attention": True}),
    "gemma3 with linear scaling": ("gemma3_text", {**_GEMMA, "rope_parameters": _LINEAR}),
}
"""The model type and the settings of each model; what is not here is as in the configuration of transformers."""


class Wide(TorchFunctionMode):
    """Inside, every call of torch that asks for float32 gets float64."""

    def __torch_function__(self, function, types, arguments=(), options=None):
        def wide(value):
            return torch.float64 if value is torch.float32 else value

        function = torch.Tensor.double if function is torch.Tensor.float else function
        return function(*map(wide, arguments), **{name: wide(value) for name, value in (options or {}).items()})


@cache
def model(name, auto=AutoModel, **more):
    """Return a model of MODELS in float64, with attention by plain products; ``more`` are settings."""
    kind, settings = MODELS[name]
    sizes = {
        **_SIZES,
        "max_position_embeddings": LENGTH,
        "vocab_size": trained_tokenizer("wordpiece").get_vocab_size(),
        **_SPECIAL,
        **more,
    }
    torch.set_default_dtype(torch.float64)
    try:
        with Wide():
            config = AutoConfig.for_model(kind, **sizes | settings)
            made = auto.from_config(config, attn_implementation="eager", dtype=torch.float64).eval()
    finally:
        torch.set_default_dtype(torch.float32)
    fill(made, seed=len(name), norms=0.0 if kind == "gemma3_text" else 1.0)
    return made


def write_modern(folder, name, **options):
    """Write the directory of a model; ``options`` go to ``save_pretrained`` of transformers."""
    return write(folder, model(name), trained_tokenizer("wordpiece"), **options)


def classifier(name):
    """Return a model of MODELS with a head of one label."""
    return model(name, AutoModelForSequenceClassification, num_labels=1)


def write_classifier(folder, name):
    """Write the directory of a model with a head of one label, as transformers does."""
    return save(folder, classifier(name), trained_tokenizer("wordpiece"))


def outputs(model, ids, **options):
    """Return the outputs of a model of transformers for one text."""
    tokens = torch.asarray([list(ids)])
    with torch.no_grad(), Wide():
        return model(tokens, attention_mask=torch.ones_like(tokens), **options)


def logits(name, ids):
    """Return transformers' logits of the tokens of a pair, all of type 0."""
    return outputs(classifier(name), ids).logits[0].numpy()


def hidden_states(name, ids):
    """Return transformers' hidden states (L, d) of a text."""
    return outputs(model(name), ids).last_hidden_state[0].numpy()


def attention_weights(name, ids):
    """Return transformers' attention weights (layers, heads, L, L) of a text."""
    return torch.cat(outputs(model(name), ids, output_attentions=True).attentions).numpy()
