"""Corrupted files of layers: each is read as if nothing had happened, or refused in one line that names the file."""

import json

import numpy as np
import pytest
from damaged_files import damaged_bytes, damaged_json, refusals

import mha_core as mha


def with_damaged_plan(data, rng):
    """A safetensors file whose description of the layer is damaged."""
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    (key,) = header["__metadata__"]
    header["__metadata__"][key] = damaged_json(header["__metadata__"][key], rng)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + data[8 + size :]


LAYERS = [
    (mha.Encoder.init(d_model=4, num_heads=2, d_ff=8, num_layers=2, seed=0), 1),
    (mha.DecoderLayer.init(d_model=4, num_heads=2, d_ff=8, seed=0), 2),
]


@pytest.mark.full
@pytest.mark.parametrize(("layer", "inputs"), LAYERS)
def test_a_layer(tmp_path, rng, layer, inputs):
    path, x = tmp_path / "damaged.safetensors", np.ones((3, 4), dtype=np.float32)
    layer.save(path)
    good = path.read_bytes()
    damaged = ((with_damaged_plan if rng.random() < 0.8 else damaged_bytes)(good, rng) for _ in range(250))

    def compute():
        assert type(layer).load(path)(*[x] * inputs).shape == (3, 4)

    refused = refusals(path, str(path), damaged, compute, mha.LayerFileError)
    assert 25 < refused < 250, f"of 250 damaged files, {refused} were refused"
