"""The repr of layers and text encoders: an outline that fits a screen, whatever the weights."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import mha_core as mha
from mha_core.layers.base import Layer

ENCODER = """\
Encoder, numpy float32, 1,216 parameters
  layers.0-1: EncoderLayer(norm_first=True)
    attention: MultiHeadAttention(num_heads=2)
      w_q, w_k, w_v, w_o (8, 8)
      b_q, b_k, b_v, b_o (8,)
    norm_1: LayerNorm(eps=1e-05)
      weight, bias (8,)
    feed_forward: FeedForward
      w_1 (8, 16)
      b_1 (16,)
      w_2 (16, 8)
      b_2 (8,)
    norm_2: LayerNorm(eps=1e-05)
      weight, bias (8,)
  norm: LayerNorm(eps=1e-05)
    weight, bias (8,)"""


def small_encoder(**more):
    return mha.Encoder.init(d_model=8, num_heads=2, d_ff=16, num_layers=2, norm_first=True, seed=0, **more)


def test_an_encoder_is_shown_as_an_outline_of_names_shapes_and_sizes():
    encoder = small_encoder()
    assert repr(encoder) == ENCODER
    assert sum(x.size for x in encoder.arrays().values()) == 1216


def test_the_base_model_fits_a_screen():
    lines = repr(mha.Encoder.init(seed=0)).splitlines()
    assert len(lines) < 24 and max(map(len, lines)) < 80
    assert lines[0] == "Encoder, numpy float32, 18,914,304 parameters"


def test_the_backend_and_the_dtype_are_those_of_the_arrays():
    pytest.importorskip("torch")
    assert repr(small_encoder(backend="torch", dtype="bfloat16")).startswith("Encoder, torch bfloat16, 1,216 parameters\n")


def test_int8_weights_are_shown_as_such():
    lines = repr(small_encoder().quantized()).splitlines()
    assert lines[0] == "Encoder, numpy float32, 1,328 parameters"  # and a scale for each column
    assert "      w_q, w_k, w_v, w_o (8, 8) int8" in lines and "      w_2 (16, 8) int8" in lines
    assert len(lines) == len(ENCODER.splitlines())


def test_arrays_of_another_dtype_and_layers_that_differ_are_shown():
    norm = mha.LayerNorm.init(d_model=8)
    mixed = mha.LayerNorm(norm.weight, np.zeros(8, dtype=np.float64), norm.eps)
    assert repr(mixed).splitlines()[1:] == ["  weight (8,)", "  bias (8,) numpy float64"]
    first, second = small_encoder().layers
    wide = mha.EncoderLayer.init(d_model=8, num_heads=4, d_ff=16, seed=0)
    lines = repr(mha.Encoder((first, second, wide))).splitlines()
    assert [line for line in lines if "layers." in line] == [
        "  layers.0-1: EncoderLayer(norm_first=True)",
        "  layers.2: EncoderLayer",
    ]


@dataclass(frozen=True, eq=False)
class Doubled(Layer):
    """A user's own layer."""

    inner: mha.LayerNorm
    factor: float = 1.0
    missing: Any = None


def test_a_layer_of_ones_own_is_shown_the_same_way():
    lines = repr(Doubled(mha.LayerNorm.init(d_model=4), 0.5)).splitlines()
    assert lines == [
        "Doubled(factor=0.5), numpy float32, 8 parameters",
        "  inner: LayerNorm(eps=1e-05)",
        "    weight, bias (4,)",
    ]


def test_a_layer_shows_itself_whatever_backend_is_demanded():
    """Debuggers call repr at any moment."""
    layer = mha.LayerNorm.init(d_model=4)
    with mha.use_backend("torch"):
        assert repr(layer).startswith("LayerNorm(eps=1e-05), numpy float32")
    assert repr(mha.LayerNorm(None, None)) == "LayerNorm(eps=1e-05), 0 parameters"


def test_a_text_encoder_is_shown_with_what_a_user_asks_of_a_model(tiny):
    first, second, *lines = repr(tiny).splitlines()
    pooling = "pooling=mean, normalize=True"
    assert first == f"TextEncoder(dim={tiny.dim}, max_seq_length={tiny.max_seq_length}, {pooling})"
    assert second.startswith("model: TextModel") and ", numpy float32, " in second
    assert len(lines) < 24 and max(map(len, (first, second, *lines))) < 100
