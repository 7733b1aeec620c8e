"""Text models from config.json and files of weights, with the names of each family."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from mha_core import Encoder, EncoderLayer, FeedForward, Identity, LayerNorm, MultiHeadAttention, RMSNorm
from mha_core.shared import Array, Norm

from .config import Config
from .family import Family, Flag, Name, WeightPart
from .files import ModelError, WeightsFile, read_json
from .patterns import read_patterns
from .text_model import TextModel

_BUCKETS = 32  # MPNet uses this many, even if its table has more


def read_model(folder: Path, families: Sequence[Family], make: Callable[[Any], Array]) -> TextModel:
    """Return the model in ``folder``; ``make`` turns a NumPy array into the backend's."""
    file = WeightsFile(folder)
    family = choose(folder, families, file)
    model = build_model(folder, family, file, make)
    file.finish()
    return model


def choose(folder: Path, families: Sequence[Family], file: WeightsFile) -> Family:
    """Return the family whose names config.json and the file have, by default the first; the file then uses its prefix."""
    config = read_json(folder / "config.json")
    for family in families:
        file.use_prefix(family.prefix)
        names = (family.query, family.attention_output, family.linear_1, family.linear_2)
        if family.d_model in config and all(file.has(f"{family.layers}.0.{_stored(name)}.weight") for name in names):
            return family
    file.use_prefix(families[0].prefix)
    return families[0]


def build_model(folder: Path, family: Family, file: WeightsFile, make: Callable[[Any], Array]) -> TextModel:
    """Return the model that config.json describes, of arrays from ``file``."""
    config = Config.read(folder, family)
    d_model, d_ff, num_layers = (config.size(name) for name in (family.d_model, family.d_ff, family.num_layers))
    num_heads, num_kv_heads, head_dim = config.heads(family)
    activation, eps = config.activation(family.activation), config.number(family.eps)
    max_length, padding = config.size(family.max_length), family.padding
    if isinstance(padding, str):
        padding = config.size(padding, least=0)
    if padding is not None and max_length <= padding + 1:
        expected = f"more than {padding + 1}, where positions begin"
        raise ModelError(f"{config.path}: {family.max_length} is {max_length}; expected {expected}")
    file.check_count(family.layers, num_layers, family.num_layers)
    patterns, pattern_of = read_patterns(config, family, num_layers, make)

    def take(name: str, *shape: int) -> Array:
        return make(file.take(name, shape))

    def part(name: Name, what: str, rows: int, *columns: int) -> Any:
        if isinstance(name, str):
            return file.take(f"{name}.{what}", (rows, *columns))
        whole = file.take(f"{name.name}.{what}", (rows * name.of, *columns))
        return whole[name.at * rows : (name.at + 1) * rows]

    def linear(base: str, name: Name, inputs: int, outputs: int, bias: Flag) -> tuple[Array, Array | None]:
        name = f"{base}.{name}" if isinstance(name, str) else WeightPart(f"{base}.{name.name}", name.at, name.of)
        w = make(part(name, "weight", outputs, inputs).T)  # stored for y = W x, used as y = x w
        return w, make(part(name, "bias", outputs)) if config.flag(bias) else None

    def norm(name: str, width: int = d_model) -> Norm:
        weight = file.take(f"{name}.weight", (width,))
        if family.norms_are_shifted:  # in float64, so that the sum is rounded once, to the dtype to compute in
            weight = weight.astype("float64") + 1.0
        weight = make(weight)
        if family.rms_norm:
            return RMSNorm(weight, eps)
        return LayerNorm(weight, take(f"{name}.bias", width) if config.flag(family.norm_bias) else None, eps)

    def optional(base: str, name: str | None, width: int = d_model) -> Norm | None:
        return None if name is None else norm(f"{base}.{name}", width)

    def layer(at: int) -> EncoderLayer:
        base = f"{family.layers}.{at}"
        width, kv_width = num_heads * head_dim, num_kv_heads * head_dim
        w_q, b_q = linear(base, family.query, d_model, width, family.attention_bias)
        w_k, b_k = linear(base, family.key, d_model, kv_width, family.attention_bias)
        w_v, b_v = linear(base, family.value, d_model, kv_width, family.attention_bias)
        w_o, b_o = linear(base, family.attention_output, width, d_model, family.attention_bias)
        w_1, b_1 = linear(base, family.linear_1, d_model, d_ff, family.bias_1)
        w_2, b_2 = linear(base, family.linear_2, d_ff, d_model, family.bias_2)
        gate = (None, None) if family.gate is None else linear(base, family.gate, d_model, d_ff, family.bias_1)
        attention = MultiHeadAttention(w_q, w_k, w_v, w_o, num_heads, b_q, b_k, b_v, b_o)
        return EncoderLayer(
            attention=replace(
                attention,
                num_kv_heads=None if num_kv_heads == num_heads else num_kv_heads,
                norm_q=optional(base, family.norm_q, head_dim),
                norm_k=optional(base, family.norm_k, head_dim),
            ),
            norm_1=Identity() if family.skips_first_norm and at == 0 else norm(f"{base}.{family.norm_1}"),
            feed_forward=FeedForward(w_1, b_1, w_2, b_2, activation, *gate),
            norm_2=norm(f"{base}.{family.norm_2}"),
            norm_first=family.norm_first,
            post_norm_1=optional(base, family.post_norm_1),
            post_norm_2=optional(base, family.post_norm_2),
        )

    words = take(f"{family.words}.weight", config.size("vocab_size"), d_model)
    positions = token_types = relative_table = None
    if family.positions is not None:
        positions = take(f"{family.positions}.weight", max_length, d_model)
    if family.token_types is not None and (types := config.size(family.token_types, family.least_token_types)):
        token_types = take(f"{family.type_table}.weight", types, d_model)
    if family.buckets is not None:
        buckets = config.size(family.buckets, least=4)
        relative_table = make(file.take(f"{family.relative_table}.weight", (buckets, num_heads))[:_BUCKETS])
    return TextModel(
        words=words,
        positions=positions,
        token_types=token_types,
        norm=Identity() if family.embedding_norm is None else norm(family.embedding_norm),
        encoder=Encoder(
            tuple(layer(at) for at in range(num_layers)), None if family.final_norm is None else norm(family.final_norm)
        ),
        padding=padding,
        relative_table=relative_table,
        length=max_length if positions is None else None,
        word_scale=d_model**0.5 if family.scales_words else None,
        score_scale=None if family.score_size is None else config.number(family.score_size, least=1) ** -0.5,
        alibi=family.alibi,
        patterns=patterns,
        pattern_of=pattern_of,
    )


def _stored(name: Name) -> str:
    return name if isinstance(name, str) else name.name
