"""The directory of a small random BERT, in the layout of sentence-transformers, of which tests may break one file."""

import json
from contextlib import contextmanager

import numpy as np
import pytest

import mha_core as mha

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "bird", "sings", "in", "the", "tree", "at", "dawn"]
CONFIG = {
    "model_type": "bert",
    "hidden_size": 8,
    "intermediate_size": 16,
    "num_attention_heads": 2,
    "num_hidden_layers": 2,
    "vocab_size": len(WORDS),
    "max_position_embeddings": 10,
    "type_vocab_size": 2,
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-12,
}


def tiny_weights(seed=0):
    """Random weights that fit CONFIG, by their names in a BERT checkpoint."""
    rng = np.random.default_rng(seed)
    d, ff = CONFIG["hidden_size"], CONFIG["intermediate_size"]
    sizes = {"word": "vocab_size", "position": "max_position_embeddings", "token_type": "type_vocab_size"}
    shapes = {f"embeddings.{name}_embeddings.weight": (CONFIG[size], d) for name, size in sizes.items()}
    shapes |= with_biases("embeddings", LayerNorm=(d,))
    for at in range(CONFIG["num_hidden_layers"]):
        base = f"encoder.layer.{at}"
        shapes |= with_biases(f"{base}.attention.self", query=(d, d), key=(d, d), value=(d, d))
        maps = {"attention.output.dense": (d, d), "intermediate.dense": (ff, d), "output.dense": (d, ff)}
        shapes |= with_biases(base, **maps, **{"attention.output.LayerNorm": (d,), "output.LayerNorm": (d,)})
    return {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


def with_biases(base, **shapes):
    """Return the shapes of weights, and of their biases, by their names below ``base``."""
    kinds = {"weight": 2, "bias": 1}
    return {f"{base}.{name}.{kind}": shape[:axes] for name, shape in shapes.items() for kind, axes in kinds.items()}


def write_tiny_model(folder, *, config=CONFIG, weights=None, pooling=None, modules=("Transformer", "Pooling", "Normalize")):
    """Write the directory of a model, of which tests may then break one file, and return its path."""
    from safetensors.numpy import save_file
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    (folder / "1_Pooling").mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file(tiny_weights() if weights is None else weights, folder / "model.safetensors")
    tokenizer = Tokenizer(models.WordLevel({word: at for at, word in enumerate(WORDS)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", WORDS.index("[CLS]")), ("[SEP]", WORDS.index("[SEP]"))]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 8, "do_lower_case": False}))
    paths = {"Transformer": "", "Pooling": "1_Pooling", "Normalize": "2_Normalize"}
    listed = [{"path": paths.get(kind, kind), "type": f"sentence_transformers.models.{kind}"} for kind in modules]
    (folder / "modules.json").write_text(json.dumps(listed))
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling or {"pooling_mode_mean_tokens": True}))
    return folder


def edit(path, without=(), **changes):
    """Change fields of a JSON file, which is written if there is none, and remove those in ``without``."""
    fields = (json.loads(path.read_text()) if path.exists() else {}) | changes
    path.write_text(json.dumps({name: value for name, value in fields.items() if name not in without}))


@contextmanager
def editing(path):
    """Yield the contents of a JSON file, to be changed, and write them."""
    contents = json.loads(path.read_text())
    yield contents
    path.write_text(json.dumps(contents))


def refused(folder, *parts, kind="TextEncoder", error=None):
    """Assert that a model is refused, by ModelError or ``error``, with one line that contains ``parts``, and return it."""
    import mha_text as mt

    with pytest.raises(error or mt.ModelError) as caught:
        getattr(mt, kind).from_pretrained(folder)
    message = str(caught.value)
    for part in parts:
        assert part in message, message
    assert "\n" not in message
    return message


def close(actual, expected, atol=1e-6):
    """Assert that arrays differ by at most ``atol``."""
    np.testing.assert_allclose(np.asarray(actual), expected, rtol=0, atol=atol)


def states_of_packed(encoder, ids):
    """Return the hidden states (L, d) of each text, which an encoder computes with all texts laid end to end."""
    lengths, backend = [len(text) for text in ids], encoder.backend
    tokens, rows = encoder.model.end_to_end(backend.xp, ids, None)
    states = backend.to_numpy(encoder.model(tokens, rows, mask=mha.packed(lengths)))
    return np.split(states, np.cumsum(lengths[:-1]))
