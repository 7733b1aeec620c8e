"""Small random text models of every family, made with transformers, and transformers' own results for them.

Weights, also those of padding tokens, are large enough for attention to be far from uniform. They are float64, so that a wrong
formula shows far above rounding.
"""

import json
from functools import cache

import torch
from project import ROOT
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    PreTrainedTokenizerFast,
)

SENTENCES = (ROOT / "examples" / "sentences.txt").read_text(encoding="utf-8").splitlines()

# the kind of tokenizer, and how many rows of the position table come before the first token's
FAMILIES = {
    "bert": ("wordpiece", 0),
    "electra": ("wordpiece", 0),
    "distilbert": ("wordpiece", 0),
    "mpnet": ("wordpiece with <pad>", 2),
    "roberta": ("bpe", 2),
    "xlm-roberta": ("unigram", 2),
    "camembert": ("unigram", 2),
}
LENGTH = 300  # tokens of the longest text: more than relative positions distinguish
_OLD = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
_NEW = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]


def write_model(folder, kind, *, seed=0, masked_lm=False, **settings):
    """Write a model directory in sentence-transformers' layout; ``settings`` go into the model's configuration.

    With ``num_labels`` among them, the model has a head for sequence classification, and the directory is laid out as by
    transformers.
    """
    is_classifier = "num_labels" in settings
    auto = AutoModelForMaskedLM if masked_lm else AutoModelForSequenceClassification if is_classifier else AutoModel
    tokenizer = trained_tokenizer(FAMILIES[kind][0])
    torch.manual_seed(seed)
    model = auto.from_config(
        AutoConfig.for_model(kind, **_sizes(kind, tokenizer.get_vocab_size()) | settings), attn_implementation="eager"
    )
    model = model.double().eval()
    fill(model, seed)
    if is_classifier:
        names = {"model_input_names": ["input_ids", "token_type_ids", "attention_mask"]} if kind in ("bert", "electra") else {}
        return save(folder, model, tokenizer, names)
    return write(folder, model, tokenizer)


def save(folder, model, tokenizer, settings=(), **options):
    """Write a model and a tokenizer, with ``settings`` of the tokenizer, as transformers does."""
    model.save_pretrained(folder, **options)
    special = {"pad_token": "[PAD]" if tokenizer.token_to_id("[PAD]") is not None else "<pad>"} | dict(settings)
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=10**30, **special).save_pretrained(folder)
    return folder


def write(folder, model, tokenizer, **options):
    """Write a model of transformers and a tokenizer in sentence-transformers' layout, with pooling by the mean."""
    save(folder, model, tokenizer, **options)
    modules = [{"idx": 0, "path": ""}, {"idx": 1, "path": "1_Pooling"}]
    for module, name in zip(modules, ("Transformer", "Pooling"), strict=True):
        module |= {"name": str(module["idx"]), "type": f"sentence_transformers.models.{name}"}
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    pooling = {"word_embedding_dimension": 32, "pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    return folder


def fill(model, seed, *, norms=1.0):
    """Give a model random weights; those of norms are about ``norms``."""
    rng = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weights in model.named_parameters():
            mean = norms if "norm" in name.lower() and name.endswith("weight") else 0.0
            weights.copy_(mean + torch.randn(weights.shape, generator=rng, dtype=torch.float64) * 0.3)


def reference(folder):
    """Return transformers' function from the ids of a text to hidden states (L, d) and weights (layers, heads, L, L)."""
    model = AutoModel.from_pretrained(folder, attn_implementation="eager", dtype=torch.float64).eval()

    def evaluate(ids):
        tokens = torch.asarray([list(ids)])
        with torch.no_grad():
            outputs = model(tokens, attention_mask=torch.ones_like(tokens), output_attentions=True)
        return outputs.last_hidden_state[0].numpy(), torch.cat(outputs.attentions).numpy()

    return evaluate


def reference_logits(folder):
    """Return transformers' function from a pair of texts to logits (labels,), in float64."""
    model = AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.float64).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)

    def evaluate(a, b):
        with torch.no_grad():
            return model(**tokenizer([(a, b)], truncation=True, return_tensors="pt")).logits[0].numpy()

    return evaluate


def texts(rng):
    """Return texts of many lengths, up to LENGTH tokens."""
    words = " ".join(SENTENCES).split()
    return ["", "a", "a", *(" ".join(rng.choice(words, size=size)) for size in (3, 3, 8, 25)), "a." * (LENGTH // 4)]


def _sizes(kind, vocabulary):
    sizes = {
        "vocab_size": vocabulary,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "max_position_embeddings": LENGTH + FAMILIES[kind][1],
        "hidden_dim" if kind == "distilbert" else "intermediate_size": 48,
    }
    if kind == "electra":
        sizes["embedding_size"] = 32
    if kind in ("roberta", "xlm-roberta", "camembert"):
        sizes |= {"type_vocab_size": 1, "layer_norm_eps": 1e-5}
    return sizes


@cache
def trained_tokenizer(kind):
    """Return a tokenizer trained on the demo's sentences. What it learns does not matter: both sides read the same file."""
    first, *_ = special = {"wordpiece": _OLD, "wordpiece with <pad>": [*_NEW[:3], "[UNK]", "<mask>"]}.get(kind, _NEW)
    unknown = next(token for token in special if "unk" in token.lower())
    if kind == "bpe":
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=320, special_tokens=special, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
        )
    elif kind == "unigram":
        tokenizer = Tokenizer(models.Unigram())
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
        tokenizer.decoder = decoders.Metaspace()
        trainer = trainers.UnigramTrainer(vocab_size=200, special_tokens=special, unk_token=unknown, show_progress=False)
    else:
        tokenizer = Tokenizer(models.WordPiece(unk_token=unknown))
        tokenizer.normalizer = normalizers.BertNormalizer()
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        tokenizer.decoder = decoders.WordPiece()
        trainer = trainers.WordPieceTrainer(vocab_size=200, special_tokens=special, show_progress=False)
    tokenizer.train_from_iterator(SENTENCES, trainer)
    start, end = ("[CLS]", "[SEP]") if first == "[PAD]" else ("<s>", "</s>")
    second = f"$B:1 {end}:1" if first == "[PAD]" else f"{end} $B {end}"
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{start} $A {end}",
        pair=f"{start} $A {end} {second}",
        special_tokens=[(token, tokenizer.token_to_id(token)) for token in (start, end)],
    )
    return tokenizer
