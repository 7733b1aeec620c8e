"""Corrupted files of models and layers: each is read as if nothing had happened, or refused in one line that names the file."""

import copy
import json
import math
import shutil

import numpy as np
import pytest

import mha_core as mha
import mha_text as mt

pytestmark = [pytest.mark.full, pytest.mark.filterwarnings("ignore::mha_text.TruncationWarning")]

NESTED = {1, 2}  # no JSON, and equal after a copy
"""Stands for JSON nested so deeply that no parser reads it."""
VALUES = [
    *(None, True, False, 0, 1, -1, 3, 100_000_000, 10**20, 0.5, -0.5, math.nan, math.inf, -math.inf),
    *("", "x", "mean", "A" * 10_000, [], {}, [1], ["x"], {"a": 1}, {"array": None}, NESTED),
]


def places(value, path=()):
    """Every place in a JSON value, as the path of keys and indices to it."""
    yield path
    if isinstance(value, dict | list):
        for key in value if isinstance(value, dict) else range(len(value)):
            yield from places(value[key], (*path, key))


def damaged_json(text, rng):
    """JSON with one value replaced, removed or renamed."""
    whole = {"": json.loads(text)}  # so that the value as a whole has a place too
    every = list(places(whole))[1:]
    *path, last = every[rng.integers(len(every))]
    inside = whole
    for key in path:
        inside = inside[key]
    choice = rng.random()
    if choice < 0.8 or not path:
        inside[last] = copy.deepcopy(VALUES[rng.integers(len(VALUES))])
    elif choice < 0.9 or not isinstance(inside, dict):
        del inside[last]
    else:
        inside["renamed"] = inside.pop(last)
    return json.dumps(whole[""], default=lambda _: "NESTED").replace('"NESTED"', "[" * 100_000 + "]" * 100_000)


def damaged_bytes(data, rng):
    """Bytes that were cut, changed, removed, repeated or replaced; for half of them near the start."""
    at = int(rng.integers(len(data) if rng.random() < 0.5 else min(200, len(data))))
    size = int(rng.integers(1, 20))
    noise = rng.integers(0, 256, size=size, dtype=np.uint8).tobytes()
    kinds = [data[:at], data[:at] + noise + data[at + size :], data[:at] + noise + data[at:], data[:at] + data[at + size :]]
    kinds += [data[:at] + data[at : at + size] * 50 + data[at:], noise, b""]
    return kinds[rng.integers(len(kinds))]


def refused_in_one_line(errors, name, function):
    """Return the function's result; None if it raised one of ``errors``, which must be one line that contains the name."""
    try:
        return function()
    except errors as error:
        message = str(error)
    assert "\n" not in message and name in message, message
    return None


COUNTS = {"config.json": 250, "tokenizer.json": 300, "model.safetensors": 250}
COUNTS |= {"modules.json": 80, "1_Pooling/config.json": 80, "sentence_bert_config.json": 40}


@pytest.mark.parametrize(("file", "count"), COUNTS.items())
def test_a_model(tiny_model, tmp_path, rng, file, count):
    good = (tiny_model / file).read_bytes()
    expected = mt.TextEncoder.from_pretrained(tiny_model).encode(["a bird sings", ""])
    folder = tmp_path / "damaged"
    shutil.copytree(tiny_model, folder)
    refused = 0
    for _ in range(count):
        in_json = file.endswith("json") and rng.random() < 0.8
        content = damaged_json(good.decode(), rng).encode() if in_json else damaged_bytes(good, rng)
        (folder / file).write_bytes(content)

        def encode():
            with np.errstate(all="ignore"):  # damaged weights may overflow
                return mt.TextEncoder.from_pretrained(folder).encode(["a bird sings", ""])

        vectors = refused_in_one_line((mt.ModelError, mt.ModelNotFound), str(folder), encode)
        refused += vectors is None
        assert vectors is None or vectors.shape[0] == len(expected)
    assert count / 10 < refused < count + (count < 100), f"of {count} damaged files, {refused} were refused"


def test_a_layer(tmp_path, rng):
    layers = {
        "encoder": mha.Encoder.init(d_model=4, num_heads=2, d_ff=8, num_layers=2, seed=0),
        "decoder": mha.DecoderLayer.init(d_model=4, num_heads=2, d_ff=8, seed=0),
    }
    path, refused = tmp_path / "damaged.safetensors", 0
    for at in range(500):
        name = ("encoder", "decoder")[at % 2]
        layers[name].save(path)
        data = path.read_bytes()
        damage = with_damaged_plan if rng.random() < 0.8 else damaged_bytes
        path.write_bytes(damage(data, rng))

        def compute(name=name):
            layer = type(layers[name]).load(path)
            x = np.ones((3, 4), dtype=np.float32)
            with np.errstate(all="ignore"):
                return layer(x) if name == "encoder" else layer(x, x)

        result = refused_in_one_line(mha.LayerFileError, str(path), compute)
        refused += result is None
        assert result is None or result.shape == (3, 4)
    assert 50 < refused < 500, f"of 500 damaged files, {refused} were refused"


def with_damaged_plan(data, rng):
    """A safetensors file whose description of the layer is damaged."""
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    (key,) = header["__metadata__"]
    header["__metadata__"][key] = damaged_json(header["__metadata__"][key], rng)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + data[8 + size :]
