"""Jina's second embedding models: BERT with linear biases in place of positions and a gated network, against plain NumPy.

transformers computes them with code of their repository only.
"""

import numpy as np
import pytest

from conftest import CONFIG, mha, tiny_weights, write_tiny_model

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
    rng = np.random.default_rng(0)
    shapes = {"embeddings.word_embeddings.weight": (CONFIG["vocab_size"], D), "embeddings.token_type_embeddings.weight": (2, D)}
    shapes |= {f"embeddings.LayerNorm.{part}": (D,) for part in ("weight", "bias")}
    for at in range(LAYERS):
        base = f"encoder.layer.{at}"
        for name in ("attention.self.query", "attention.self.key", "attention.self.value", "attention.output.dense"):
            shapes |= {f"{base}.{name}.weight": (D, D), f"{base}.{name}.bias": (D,)}
        shapes |= {f"{base}.{name}.{part}": (D,) for name in NORMS for part in ("weight", "bias")}
        shapes |= {f"{base}.mlp.gated_layers.weight": (2 * D_FF, D), f"{base}.mlp.wo.weight": (D, D_FF)}
        shapes[f"{base}.mlp.wo.bias"] = (D,)
    return {name: rng.normal(size=shape) for name, shape in shapes.items()}


NORMS = ("attention.output.LayerNorm", "mlp.layernorm")


def expected(w, ids):
    """Hidden states of one text, in float64."""
    from scipy.special import erf, softmax

    def norm(x, name):
        x = x - x.mean(axis=-1, keepdims=True)
        x = x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + CONFIG["layer_norm_eps"])
        return x * w[f"{name}.weight"] + w[f"{name}.bias"]

    def linear(x, name):
        return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]

    def heads(x):
        return x.reshape(len(x), HEADS, D // HEADS).swapaxes(0, 1)

    x = norm(
        w["embeddings.word_embeddings.weight"][ids] + w["embeddings.token_type_embeddings.weight"][0], "embeddings.LayerNorm"
    )
    distance = np.abs(np.subtract.outer(np.arange(len(ids)), np.arange(len(ids))))
    for at in range(LAYERS):
        base = f"encoder.layer.{at}"
        q, k, v = (heads(linear(x, f"{base}.attention.self.{name}")) for name in ("query", "key", "value"))
        scores = q @ k.swapaxes(1, 2) / np.sqrt(D // HEADS) - SLOPES[:, None, None] * distance
        joined = (softmax(scores, axis=-1) @ v).swapaxes(0, 1).reshape(len(ids), D)
        x = norm(x + linear(joined, f"{base}.attention.output.dense"), f"{base}.{NORMS[0]}")
        activated, gate = np.split(x @ w[f"{base}.mlp.gated_layers.weight"].T, 2, axis=1)
        hidden = activated * (1 + erf(activated / np.sqrt(2))) / 2 * gate
        x = norm(x + linear(hidden, f"{base}.mlp.wo"), f"{base}.{NORMS[1]}")
    return x


def test_hidden_states_equal_plain_numpy(tmp_path):
    encoder = mha.TextEncoder.from_pretrained(
        write_tiny_model(tmp_path / "m", config=SETTINGS, weights=weights()), dtype="float64"
    )
    ids = [[2, 4, 5, 6, 3], [2, 3], [2, 7, 8, 9, 10, 11, 4, 3]]
    tokens = np.concatenate(ids)
    rows = np.concatenate([encoder.model.position_ids(text) for text in ids])
    found = encoder.model(tokens, rows, mask=mha.packed([len(text) for text in ids]))
    truth = np.concatenate([expected(weights(), text) for text in ids])
    np.testing.assert_allclose(found, truth, rtol=0, atol=1e-12)


def test_a_changed_model_is_saved_and_read_back(tmp_path):
    encoder = mha.TextEncoder.from_pretrained(write_tiny_model(tmp_path / "m", config=SETTINGS, weights=weights()))
    encoder.save_pretrained(tmp_path / "new")
    again = mha.TextEncoder.from_pretrained(tmp_path / "new")
    np.testing.assert_array_equal(again.encode(["a bird"]), encoder.encode(["a bird"]))


@pytest.mark.parametrize(("name", "value"), [("feed_forward_type", "original"), ("position_embedding_type", "absolute")])
def test_other_variants_are_refused(tmp_path, name, value):
    path = write_tiny_model(tmp_path / "m", config=SETTINGS | {name: value}, weights=weights())
    with pytest.raises(mha.ModelError, match=rf"config\.json: {name} is '{value}'; supported: "):
        mha.TextEncoder.from_pretrained(path)


def test_weights_of_bert_with_linear_biases_are_refused(tmp_path):
    path = write_tiny_model(tmp_path / "m", config=CONFIG | {"position_embedding_type": "alibi"}, weights=tiny_weights())
    with pytest.raises(mha.ModelError, match="position_embedding_type is 'alibi'; supported: absolute"):
        mha.TextEncoder.from_pretrained(path)
