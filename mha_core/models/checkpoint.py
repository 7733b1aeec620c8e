"""Text models from config.json and model.safetensors, with the names of each family."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from ..algebra.arrays import Array
from ..layers.attention import MultiHeadAttention
from ..layers.encoder import Encoder, EncoderLayer
from ..layers.feed_forward import FeedForward
from ..layers.norm import LayerNorm
from .families import Family
from .files import ModelError, WeightsFile, field, one_of, read_json
from .text_model import TextModel

ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
}
_DEFAULTS = {"type_vocab_size": 2, "pad_token_id": 1, "relative_attention_num_buckets": 32, "layer_norm_eps": 1e-12}
_BUCKETS = 32  # MPNet uses this many, even if its table has more


def read_model(folder: Path, family: Family, make: Callable[[Any], Array]) -> TextModel:
    """Return the model in ``folder``; ``make`` turns a NumPy array into the backend's.

    Raises ModelError for unsupported settings, and for weights that are missing or have another shape.
    """
    file = WeightsFile(folder / "model.safetensors")
    file.use_prefix(family.prefix)
    model = build_model(folder, family, file, make)
    file.finish()
    return model


class Source(Protocol):
    """Where the arrays of a model come from, by their names in its file."""

    prefix: str
    """What is put before every name."""

    def check_count(self, name: str, count: int, setting: str) -> None:
        """Raise ModelError unless there are arrays of ``count`` layers."""

    def take(self, name: str, shape: tuple[int, ...]) -> Any:
        """Return the array of a name."""


def build_model(folder: Path, family: Family, file: Source, make: Callable[[Any], Array]) -> TextModel:
    """Return the model that config.json describes, of arrays from ``file``."""
    path = folder / "config.json"
    config = _DEFAULTS | read_json(path)

    def size(name: str, least: int = 1) -> int:
        found: int = field(config, path, name, least=least)
        return found

    d_model, d_ff, num_heads, num_layers = map(size, (family.d_model, family.d_ff, family.num_heads, family.num_layers))
    if d_model % num_heads:
        raise ModelError(f"{path}: {family.d_model} is {d_model}; expected a multiple of {family.num_heads} = {num_heads}")
    activation = ACTIVATIONS[one_of(config.get(family.activation, "gelu"), ACTIVATIONS, path, family.activation)]
    one_of(config.get("position_embedding_type", "absolute"), ["absolute"], path, "position_embedding_type")
    eps = field(config, path, "layer_norm_eps", float, least=0)
    rows, padding = size("max_position_embeddings"), family.padding
    if isinstance(padding, str):
        padding = size(padding, least=0)
    if padding is not None and rows <= padding + 1:
        raise ModelError(f"{path}: max_position_embeddings is {rows}; expected more than {padding + 1}, where positions begin")

    file.check_count(family.layers, num_layers, family.num_layers)

    def take(name: str, *shape: int) -> Array:
        return make(file.take(name, shape))

    def linear(name: str, inputs: int, outputs: int) -> tuple[Array, Array]:
        w = file.take(f"{name}.weight", (outputs, inputs)).T  # stored for y = W x, used as y = x w
        return make(w), take(f"{name}.bias", outputs)

    def norm(name: str) -> LayerNorm:
        return LayerNorm(take(f"{name}.weight", d_model), take(f"{name}.bias", d_model), eps)

    def layer(base: str) -> EncoderLayer:
        names = (family.query, family.key, family.value, family.attention_output)
        (w_q, b_q), (w_k, b_k), (w_v, b_v), (w_o, b_o) = (linear(f"{base}.{name}", d_model, d_model) for name in names)
        w_1, b_1 = linear(f"{base}.{family.linear_1}", d_model, d_ff)
        w_2, b_2 = linear(f"{base}.{family.linear_2}", d_ff, d_model)
        return EncoderLayer(
            attention=MultiHeadAttention(w_q, w_k, w_v, w_o, num_heads, b_q, b_k, b_v, b_o),
            norm_1=norm(f"{base}.{family.norm_1}"),
            feed_forward=FeedForward(w_1, b_1, w_2, b_2, activation),
            norm_2=norm(f"{base}.{family.norm_2}"),
        )

    words = take("embeddings.word_embeddings.weight", size("vocab_size"), d_model)
    positions = take("embeddings.position_embeddings.weight", rows, d_model)
    token_types = relative_table = None
    if family.token_types is not None:
        token_types = take("embeddings.token_type_embeddings.weight", size(family.token_types), d_model)
    if family.buckets is not None:
        buckets = size(family.buckets, least=4)
        relative_table = take("encoder.relative_attention_bias.weight", buckets, num_heads)[:_BUCKETS, :]
    return TextModel(
        words=words,
        positions=positions,
        token_types=token_types,
        norm=norm("embeddings.LayerNorm"),
        encoder=Encoder(tuple(layer(f"{family.layers}.{at}") for at in range(num_layers))),
        padding=padding,
        relative_table=relative_table,
    )
