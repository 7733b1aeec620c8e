"""Jina's second embedding models: BERT with linear biases in place of positions and a gated network, against plain NumPy.

transformers computes them with code of their repository only.
"""

import numpy as np
import pytest
from tiny_models import CONFIG, close, edit, refused, states_of_packed, with_biases, write_tiny_model

import mha_text as mt
from mha_conformance.bench import plain_numpy

D, D_FF, HEADS, LAYERS = 12, 10, 3, 2
SLOPES = np.array([2.0**-4, 2.0**-8, 2.0**-2])  # of three heads (Press et al. 2022, as their code continues 2 heads)
SETTINGS = CONFIG | {
    "hidden_size": D,
    "intermediate_size": D_FF,
    "num_attention_heads": HEADS,
    "num_hidden_layers": LAYERS,
    "position_embedding_type": "alibi",
    "feed_forward_type": "geglu",
}


def weights():
    rng, d = np.random.default_rng(0), (D, D)
    shapes = {"embeddings.word_embeddings.weight": (CONFIG["vocab_size"], D), "embeddings.token_type_embeddings.weight": (2, D)}
    shapes |= with_biases("embeddings", LayerNorm=(D,))
    for at in range(LAYERS):
        base = f"encoder.layer.{at}"
        shapes |= with_biases(f"{base}.attention.self", query=d, key=d, value=d)
        shapes |= with_biases(f"{base}.attention.output", dense=d, LayerNorm=(D,))
        shapes |= with_biases(f"{base}.mlp", wo=(D, D_FF), layernorm=(D,))
        shapes[f"{base}.mlp.gated_layers.weight"] = (2 * D_FF, D)
    return {name: rng.normal(size=shape) for name, shape in shapes.items()}


def expected(w, ids):
    """Hidden states of one text, in float64."""
    from scipy.special import erf, softmax

    def norm(x, name):
        return plain_numpy.layer_norm(x, w[f"{name}.weight"], w[f"{name}.bias"], CONFIG["layer_norm_eps"])

    def linear(x, name):
        return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]

    def heads(x):
        return x.reshape(len(x), HEADS, D // HEADS).swapaxes(0, 1)

    words, types = (w[f"embeddings.{name}_embeddings.weight"] for name in ("word", "token_type"))
    x = norm(words[ids] + types[0], "embeddings.LayerNorm")
    distance = np.abs(np.subtract.outer(np.arange(len(ids)), np.arange(len(ids))))
    for at in range(LAYERS):
        base = f"encoder.layer.{at}"
        q, k, v = (heads(linear(x, f"{base}.attention.self.{name}")) for name in ("query", "key", "value"))
        scores = q @ k.swapaxes(1, 2) / np.sqrt(D // HEADS) - SLOPES[:, None, None] * distance
        joined = (softmax(scores, axis=-1) @ v).swapaxes(0, 1).reshape(len(ids), D)
        x = norm(x + linear(joined, f"{base}.attention.output.dense"), f"{base}.attention.output.LayerNorm")
        activated, gate = np.split(x @ w[f"{base}.mlp.gated_layers.weight"].T, 2, axis=1)
        hidden = activated * (1 + erf(activated / np.sqrt(2))) / 2 * gate
        x = norm(x + linear(hidden, f"{base}.mlp.wo"), f"{base}.mlp.layernorm")
    return x


@pytest.fixture
def folder(tmp_path):
    return write_tiny_model(tmp_path / "m", config=SETTINGS, weights=weights())


def test_hidden_states_equal_plain_numpy(folder):
    ids = [[2, 4, 5, 6, 3], [2, 3], [2, 7, 8, 9, 10, 11, 4, 3]]
    states = states_of_packed(mt.TextEncoder.from_pretrained(folder, dtype="float64"), ids)
    for x, text in zip(states, ids, strict=True):
        close(x, expected(weights(), text), 1e-12)


@pytest.mark.parametrize(
    ("name", "value", "supported"),
    [("feed_forward_type", "original", "geglu"), ("position_embedding_type", "absolute", "alibi")],
)
def test_other_variants_are_refused(folder, name, value, supported):
    edit(folder / "config.json", **{name: value})
    refused(folder, f"config.json: {name} is '{value}'; supported: {supported}")
