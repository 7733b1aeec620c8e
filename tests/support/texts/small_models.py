"""Small random text models of every family, made with transformers, and transformers' own results for them.

Weights, also those of padding tokens, are large enough for attention to be far from uniform. They are float64, so that a wrong
formula shows far above rounding. transformers computes norms, softmax and rotary embeddings in float32 whatever the dtype of
the model; inside ``wide()`` it computes them in float64.
"""

import json
from functools import cache

import numpy as np
from needs import Library
from project import ROOT

tokenizers, torch, transformers = map(Library, ("tokenizers", "torch", "transformers"))

SENTENCES = (ROOT / "examples" / "sentences.txt").read_text(encoding="utf-8").splitlines()
LENGTH = 300
"""The maximum number of tokens of a text: more than relative positions distinguish, and more than any window here."""
LIMIT = 150
"""The maximum number of tokens of a pair of texts."""

_WORDS = " ".join(SENTENCES).split()
TEXTS = ["", "a", "a", *(" ".join(_WORDS[at : at + size]) for at, size in ((0, 3), (9, 3), (20, 8), (40, 25)))]
"""Texts of many lengths."""
PAIRS = [("a bird", ""), *((a, b) for a in TEXTS[:6] for b in TEXTS[:6]), ("the bird", "the bird"), ("the bird", "the bird")]
"""Pairs of many lengths, none longer than LIMIT, some with empty texts."""

_OLD = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
_NEW = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]

OFFSET = ("mpnet", "roberta", "xlm-roberta", "camembert")
"""The families whose table of positions has two rows before that of the first token."""
_TOKENIZERS = {"mpnet": "wordpiece with <pad>", "roberta": "bpe", "xlm-roberta": "unigram", "camembert": "unigram"}
FAMILIES = ("bert", "electra", "distilbert", *OFFSET)
"""Families of 2018 to 2020, with positions in a table or as biases."""

FULL, LOCAL = "full_attention", "sliding_attention"
_ROBERTA = {"type_vocab_size": 1, "layer_norm_eps": 1e-5}
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
_LLAMA_3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "rope_theta": 100.0}
_LLAMA_3["original_max_position_embeddings"] = 64  # two of the four rates lie between the wavelengths

MODELS = {
    "bert": ("bert", {}),
    "electra": ("electra", {"embedding_size": 32}),
    "distilbert": ("distilbert", {"hidden_dim": 40}),
    "mpnet": ("mpnet", {}),
    "roberta": ("roberta", _ROBERTA),
    "xlm-roberta": ("xlm-roberta", _ROBERTA),
    "camembert": ("camembert", _ROBERTA),
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
    "llama": ("llama", {"num_key_value_heads": 2, "attention_bias": True, "mlp_bias": True}),
    "llama 3": ("llama", {"num_key_value_heads": 2, "rope_parameters": _LLAMA_3}),
    "mistral with windows": ("mistral", {"num_key_value_heads": 2, "sliding_window": 11}),
    "mistral without windows": ("mistral", {"num_key_value_heads": 2, "sliding_window": None}),
    "gemma3": ("gemma3_text", _GEMMA),
    "gemma3 in both directions": ("gemma3_text", {**_GEMMA, "use_bidirectional_attention": True}),
    "gemma3 with linear scaling": ("gemma3_text", {**_GEMMA, "rope_parameters": _LINEAR}),
}
"""The model type and the settings of each model; what is not here is as in the configuration of transformers."""


@cache
def _wide():
    """Return the class of a mode of torch in which every call that asks for float32 gets float64."""
    import torch  # itself, since this is called for every function of torch
    from torch.overrides import TorchFunctionMode

    def wide(value):
        return torch.float64 if value is torch.float32 else value

    class Wide(TorchFunctionMode):
        def __torch_function__(self, function, types, arguments=(), options=None):
            function = torch.Tensor.double if function is torch.Tensor.float else function
            return function(*map(wide, arguments), **{name: wide(value) for name, value in (options or {}).items()})

    return Wide


def wide():
    """Return a context in which torch computes in float64 what it is told to compute in float32."""
    return _wide()()


@cache
def model(name, auto="AutoModel", **settings):
    """Return a model of MODELS in float64, of a class of transformers, with attention by plain products."""
    kind, of_family = MODELS[name]
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 40}
    sizes |= {"max_position_embeddings": LENGTH + 2 * (name in OFFSET), "vocab_size": tokenizer_of(name).get_vocab_size()}
    if name not in FAMILIES:
        sizes |= {"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3}
    torch.set_default_dtype(torch.float64)
    try:
        with wide():
            config = transformers.AutoConfig.for_model(kind, **sizes | of_family | settings)
            made = getattr(transformers, auto).from_config(config, attn_implementation="eager", dtype=torch.float64).eval()
    finally:
        torch.set_default_dtype(torch.float32)
    rng, mean = torch.Generator().manual_seed(len(name)), 0.0 if kind == "gemma3_text" else 1.0
    with torch.no_grad():
        for key, weights in made.named_parameters():
            random = torch.randn(weights.shape, generator=rng, dtype=torch.float64) * 0.3
            weights.copy_(random + mean * ("norm" in key.lower() and key.endswith("weight")))
    return made


def loaded(folder, auto="AutoModel"):
    """Return the model in a directory, as transformers reads it."""
    with wide():
        return getattr(transformers, auto).from_pretrained(folder, attn_implementation="eager", dtype=torch.float64).eval()


def outputs(model, tokens, **options):
    """Return the outputs of a model of transformers for the tensors of its tokenizer, or for the ids of one text."""
    if not hasattr(tokens, "keys"):
        tokens = {"input_ids": torch.asarray([list(tokens)]), "attention_mask": torch.ones(1, len(tokens), dtype=torch.int64)}
    with torch.no_grad(), wide():
        return model(**tokens, **options)


def states_and_weights(model, ids):
    """Return transformers' hidden states (L, d) of a text, and attention weights (layers, heads, L, L)."""
    results = outputs(model, ids, output_attentions=True)
    return results.last_hidden_state[0].numpy(), torch.cat(results.attentions).numpy()


def logits(folder, pairs, model=None):
    """Return transformers' logits of pairs of texts, (n, labels), in float64, of the model in a directory by default."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = loaded(folder, "AutoModelForSequenceClassification") if model is None else model
    tokens = (tokenizer([pair], truncation=True, return_tensors="pt") for pair in pairs)
    return np.concatenate([outputs(model, each).logits.numpy() for each in tokens])


def write_model(folder, name, *, auto="AutoModel", files=(), **settings):
    """Write the directory of a model of MODELS in sentence-transformers' layout, with pooling by the mean.

    ``settings`` go into the model's configuration. With ``num_labels`` among them the model has a head for sequence
    classification, its tokenizer cuts pairs at LIMIT tokens, and the directory is laid out as by transformers. ``files``:
    options of ``save_pretrained`` of transformers, as pairs.
    """
    if "num_labels" in settings:
        names = ["input_ids", "token_type_ids", "attention_mask"] if name in ("bert", "electra") else None
        options = {"model_max_length": LIMIT} | ({} if names is None else {"model_input_names": names})
        return save(folder, model(name, "AutoModelForSequenceClassification", **settings), tokenizer_of(name), **options)
    save(folder, model(name, auto, **settings), tokenizer_of(name), files)
    modules = [{"idx": 0, "path": ""}, {"idx": 1, "path": "1_Pooling"}]
    for module, kind in zip(modules, ("Transformer", "Pooling"), strict=True):
        module |= {"name": str(module["idx"]), "type": f"sentence_transformers.models.{kind}"}
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    pooling = {"word_embedding_dimension": 32, "pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    return folder


def save(folder, model, tokenizer, files=(), **settings):
    """Write a model and a tokenizer, with ``settings`` of the tokenizer, as transformers does."""
    model.save_pretrained(folder, **dict(files))
    special = {"pad_token": "[PAD]" if tokenizer.token_to_id("[PAD]") is not None else "<pad>", "model_max_length": 10**30}
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special | settings).save_pretrained(folder)
    return folder


def tokenizer_of(name):
    """Return the tokenizer of a model of MODELS."""
    return trained_tokenizer(_TOKENIZERS.get(name, "wordpiece"))


@cache
def trained_tokenizer(kind):
    """Return a tokenizer trained on the demo's sentences. What it learns does not matter: both sides read the same file."""
    models, pre, decoders, trainers = (
        getattr(tokenizers, name) for name in ("models", "pre_tokenizers", "decoders", "trainers")
    )
    first, *_ = special = {"wordpiece": _OLD, "wordpiece with <pad>": [*_NEW[:3], "[UNK]", "<mask>"]}.get(kind, _NEW)
    unknown = next(token for token in special if "unk" in token.lower())
    options = {"vocab_size": 200, "special_tokens": special, "show_progress": False}
    if kind == "bpe":
        options |= {"vocab_size": 320, "initial_alphabet": pre.ByteLevel.alphabet()}
        parts = models.BPE(), pre.ByteLevel(add_prefix_space=False), decoders.ByteLevel(), trainers.BpeTrainer
    elif kind == "unigram":
        options |= {"unk_token": unknown}
        parts = models.Unigram(), pre.Metaspace(), decoders.Metaspace(), trainers.UnigramTrainer
    else:
        parts = models.WordPiece(unk_token=unknown), pre.BertPreTokenizer(), decoders.WordPiece(), trainers.WordPieceTrainer
    tokenizer = tokenizers.Tokenizer(parts[0])
    _, tokenizer.pre_tokenizer, tokenizer.decoder, make_trainer = parts
    if kind.startswith("wordpiece"):
        tokenizer.normalizer = tokenizers.normalizers.BertNormalizer()
    tokenizer.train_from_iterator(SENTENCES, make_trainer(**options))
    tokenizer = _in_order(tokenizer, len(special))
    start, end = ("[CLS]", "[SEP]") if first == "[PAD]" else ("<s>", "</s>")
    second = f"$B:1 {end}:1" if first == "[PAD]" else f"{end} $B {end}"
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single=f"{start} $A {end}",
        pair=f"{start} $A {end} {second}",
        special_tokens=[(token, tokenizer.token_to_id(token)) for token in (start, end)],
    )
    return tokenizer


def _in_order(tokenizer, fixed):
    """Return a tokenizer whose tokens after the first ``fixed`` are sorted: the trainers number and add in a random order."""
    state = json.loads(tokenizer.to_str())
    vocabulary = state["model"]["vocab"]
    if isinstance(vocabulary, list):
        tokens = [(token, round(score, 2)) for token, score in vocabulary]
        state["model"]["vocab"] = tokens[:fixed] + sorted(tokens[fixed:])
    else:
        tokens = sorted(vocabulary, key=vocabulary.get)
        state["model"]["vocab"] = {token: at for at, token in enumerate(tokens[:fixed] + sorted(tokens[fixed:]))}
    return tokenizers.Tokenizer.from_str(json.dumps(state))
