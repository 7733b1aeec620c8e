"""BERT (Devlin et al. 2019): embeddings and a post-norm encoder, as MiniLM, BGE, E5 and GTE use them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from ..algebra.arrays import Array
from ..algebra.masks import Mask
from ..layers.attention import MultiHeadAttention
from ..layers.base import Layer
from ..layers.encoder import Encoder, EncoderLayer
from ..layers.feed_forward import FeedForward
from ..layers.norm import LayerNorm
from ..ops.pieces import embedding
from .files import ModelError, WeightsFile, field, one_of, read_json

_ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
}


@dataclass(frozen=True, eq=False)
class Bert(Layer):
    """words (vocabulary, d), positions (max_positions, d) and token_types (types, d), summed, normed and encoded."""

    words: Array
    positions: Array
    token_types: Array
    norm: LayerNorm
    encoder: Encoder

    @classmethod
    def read(cls, folder: Path, make: Callable[[Any], Array]) -> Self:
        """From config.json and model.safetensors; ``make`` turns a NumPy array into the backend's.

        Raises ModelError for an unsupported setting, and for weights that are missing or do not fit.
        """
        path = folder / "config.json"
        config = read_json(path)
        d_model, d_ff = field(config, path, "hidden_size"), field(config, path, "intermediate_size")
        num_heads, num_layers = field(config, path, "num_attention_heads"), field(config, path, "num_hidden_layers")
        if num_heads < 1 or d_model % num_heads:
            raise ModelError(f"{path}: hidden_size {d_model} does not divide into num_attention_heads {num_heads}")
        token_types = field({"type_vocab_size": 2} | config, path, "type_vocab_size")
        activation = _ACTIVATIONS[one_of(config.get("hidden_act", "gelu"), _ACTIVATIONS, path, "hidden_act")]
        one_of(config.get("position_embedding_type", "absolute"), ["absolute"], path, "position_embedding_type")
        eps = field({"layer_norm_eps": 1e-12} | config, path, "layer_norm_eps", float)

        file = WeightsFile(folder / "model.safetensors")
        file.use_prefix("bert.")

        def take(name: str, *shape: int) -> Array:
            return make(file.take(name, shape))

        def matrix(name: str, inputs: int, outputs: int) -> Array:
            return make(file.take(f"{name}.weight", (outputs, inputs)).T)  # stored for y = W x, used as y = x w

        def norm(name: str) -> LayerNorm:
            return LayerNorm(take(f"{name}.weight", d_model), take(f"{name}.bias", d_model), eps)

        def layer(at: int) -> EncoderLayer:
            base = f"encoder.layer.{at}"
            query, key, value = (f"{base}.attention.self.{name}" for name in ("query", "key", "value"))
            attended, widened, narrowed = (f"{base}.{name}.dense" for name in ("attention.output", "intermediate", "output"))
            return EncoderLayer(
                attention=MultiHeadAttention(
                    w_q=matrix(query, d_model, d_model),
                    w_k=matrix(key, d_model, d_model),
                    w_v=matrix(value, d_model, d_model),
                    w_o=matrix(attended, d_model, d_model),
                    num_heads=num_heads,
                    b_q=take(f"{query}.bias", d_model),
                    b_k=take(f"{key}.bias", d_model),
                    b_v=take(f"{value}.bias", d_model),
                    b_o=take(f"{attended}.bias", d_model),
                ),
                norm_1=norm(f"{base}.attention.output.LayerNorm"),
                feed_forward=FeedForward(
                    w_1=matrix(widened, d_model, d_ff),
                    b_1=take(f"{widened}.bias", d_ff),
                    w_2=matrix(narrowed, d_ff, d_model),
                    b_2=take(f"{narrowed}.bias", d_model),
                    activation=activation,
                ),
                norm_2=norm(f"{base}.output.LayerNorm"),
            )

        model = cls(
            words=take("embeddings.word_embeddings.weight", field(config, path, "vocab_size"), d_model),
            positions=take("embeddings.position_embeddings.weight", field(config, path, "max_position_embeddings"), d_model),
            token_types=take("embeddings.token_type_embeddings.weight", token_types, d_model),
            norm=norm("embeddings.LayerNorm"),
            encoder=Encoder(tuple(layer(at) for at in range(num_layers))),
        )
        file.finish()
        return model

    def __call__(self, ids: Array, positions: Array, *, mask: Mask | None = None) -> Array:
        """Token ids and their positions, both (..., L) -> hidden states (..., L, d_model)."""
        return self.encoder(self.embed(ids, positions), mask=mask)

    def embed(self, ids: Array, positions: Array) -> Array:
        """What the encoder receives; all tokens are of type 0."""
        return self.norm(embedding(ids, self.words) + embedding(positions, self.positions) + self.token_types[0, :])

    def attention_maps(self, ids: Array, positions: Array) -> list[Array]:
        """The weights of each layer, (heads, L, L)."""
        x, maps = self.embed(ids, positions), []
        for layer in self.encoder.layers:
            maps.append(layer.attention.weights(x))
            x = layer(x)
        return maps


MODEL_TYPES: dict[str, type[Bert]] = {"bert": Bert}
"""What ``model_type`` of config.json may say, and the class that reads it."""
