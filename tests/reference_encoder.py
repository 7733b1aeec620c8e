"""A BERT sentence encoder in NumPy float64, one text at a time and without padding, written apart from mha_core.

Sources: Devlin et al. 2019 (embeddings, post-norm encoder, GELU by the error function), Vaswani et al. 2017 (attention),
and the model card of sentence-transformers/all-MiniLM-L6-v2 (mean over the tokens, then length 1).
"""

import json
import math
from pathlib import Path

import numpy as np

_erf = np.frompyfunc(math.erf, 1, 1)


def gelu(x):
    return x * (1 + _erf(x / math.sqrt(2)).astype(np.float64)) / 2


class ReferenceEncoder:
    """``encoder(text)`` is the text's vector. ``weights`` stands in for the arrays of model.safetensors."""

    def __init__(self, folder, weights=None, activation=gelu):
        from safetensors.numpy import load_file
        from tokenizers import Tokenizer

        folder = Path(folder)
        self.activation = activation
        self.config = json.loads((folder / "config.json").read_text())
        self.limit = json.loads((folder / "sentence_bert_config.json").read_text())["max_seq_length"]
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.tokenizer.no_padding()
        self.tokenizer.no_truncation()
        stored = load_file(folder / "model.safetensors") if weights is None else weights
        self.weights = {name: array.astype(np.float64) for name, array in stored.items() if array.dtype.kind == "f"}

    def __call__(self, text, *, normalize=True):
        vector = self.hidden(text).mean(axis=0)
        return vector / np.sqrt(vector @ vector) if normalize else vector

    def ids(self, text):
        """Token ids; of a text beyond the limit the first ones, and [SEP] at the end all the same."""
        ids = self.tokenizer.encode(text).ids
        return ids if len(ids) <= self.limit else [*ids[: self.limit - 1], ids[-1]]

    def hidden(self, text):
        """The last layer's hidden states, (tokens, hidden_size)."""
        ids = self.ids(text)
        x = (
            self.weights["embeddings.word_embeddings.weight"][ids]
            + self.weights["embeddings.position_embeddings.weight"][: len(ids)]
            + self.weights["embeddings.token_type_embeddings.weight"][0]
        )
        x = self._norm(x, "embeddings.LayerNorm")
        for at in range(self.config["num_hidden_layers"]):
            layer = f"encoder.layer.{at}"
            x = self._norm(x + self._attention(x, f"{layer}.attention"), f"{layer}.attention.output.LayerNorm")
            inner = self.activation(self._linear(x, f"{layer}.intermediate.dense"))
            x = self._norm(x + self._linear(inner, f"{layer}.output.dense"), f"{layer}.output.LayerNorm")
        return x

    def _attention(self, x, name):
        q, k, v = (self._linear(x, f"{name}.self.{kind}") for kind in ("query", "key", "value"))
        width = x.shape[1] // self.config["num_attention_heads"]
        heads = []
        for start in range(0, x.shape[1], width):
            part = slice(start, start + width)
            weights = np.exp(q[:, part] @ k[:, part].T / math.sqrt(width))
            heads.append(weights / weights.sum(axis=1, keepdims=True) @ v[:, part])
        return self._linear(np.concatenate(heads, axis=1), f"{name}.output.dense")

    def _linear(self, x, name):
        return x @ self.weights[f"{name}.weight"].T + self.weights[f"{name}.bias"]

    def _norm(self, x, name):
        x = x - x.mean(axis=1, keepdims=True)
        x = x / np.sqrt((x * x).mean(axis=1, keepdims=True) + self.config["layer_norm_eps"])
        return x * self.weights[f"{name}.weight"] + self.weights[f"{name}.bias"]
