"""Layers written to safetensors files and read back, in any backend."""

import json
import re
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import save_file

import mha_core as mha

SMALL = {"d_model": 8, "num_heads": 2, "d_ff": 12, "num_layers": 2}


def same(a, b, backend):
    assert list(a.arrays()) == list(b.arrays())
    for name, x in a.arrays().items():
        y = b.arrays()[name]
        assert x.dtype == y.dtype
        assert (backend.to_numpy(x) == backend.to_numpy(y)).all()


@pytest.mark.parametrize("cls", [mha.Encoder, mha.Decoder])
def test_a_layer_is_read_back_unchanged(backend, tmp_path, rng, cls):
    layer = cls.init(**SMALL, activation="gelu", norm_first=True, eps=1e-3, seed=0, backend=backend.name)
    layer.save(tmp_path / "layer.safetensors")
    back = cls.load(tmp_path / "layer.safetensors", backend=backend.name)
    assert type(back) is cls
    assert back.layers[1].norm_first and back.layers[1].norm_1.eps == 1e-3
    assert back.layers[0].feed_forward.activation == "gelu"
    same(layer, back, backend)
    x = backend.from_numpy(rng.normal(size=(3, 8)).astype(np.float32))
    inputs = (x,) if cls is mha.Encoder else (x, x)
    assert (backend.to_numpy(layer(*inputs)) == backend.to_numpy(back(*inputs))).all()
    assert [path.name for path in tmp_path.iterdir()] == ["layer.safetensors"]


def test_a_layer_is_read_back_in_another_library(tmp_path):
    layer = mha.Encoder.init(**SMALL, seed=0, backend="torch")
    layer.save(tmp_path / "layer.safetensors")
    with mha.use_backend("numpy"):
        back = mha.Encoder.load(tmp_path / "layer.safetensors")
    assert all(type(x) is np.ndarray for x in back.arrays().values())
    assert (back.layers[0].attention.w_q == layer.layers[0].attention.w_q.numpy()).all()


def test_settings_and_optional_layers_are_read_back(tmp_path):
    rotary = mha.Rotary.init(max_length=4, dim=2, interleaved=True)
    attention = mha.MultiHeadAttention.init(d_model=8, num_heads=4, num_kv_heads=2, seed=0)
    layer = mha.EncoderLayer(
        type(attention)(**{**vars(attention), "rotary": rotary, "b_q": None}),
        mha.RMSNorm.init(d_model=8),
        mha.FeedForward.init(d_model=8, d_ff=4, activation="silu", gated=True, seed=0),
        mha.LayerNorm(None, None, np.float32(0.5)),
    )
    layer.save(tmp_path / "x")
    back = mha.EncoderLayer.load(tmp_path / "x")
    assert back.attention.num_kv_heads == 2 and back.attention.b_q is None and back.attention.rotary.interleaved is True
    assert type(back.norm_1) is mha.RMSNorm and back.norm_2.weight is None and back.norm_2.eps == 0.5
    x = np.ones((3, 8), dtype=np.float32)
    assert (layer(x) == back(x)).all()


def test_arrays_that_are_not_contiguous_are_read_back_unchanged(tmp_path):
    layer = mha.FeedForward.init(d_model=4, d_ff=6, seed=0).map(lambda x: x.T.copy().T if x.ndim == 2 else x)
    assert not layer.w_1.flags.c_contiguous
    layer.save(tmp_path / "x")
    assert (mha.FeedForward.load(tmp_path / "x").w_1 == layer.w_1).all()


def test_bfloat16_is_read_back_bit_for_bit(tmp_path):
    import torch

    layer = mha.FeedForward.init(d_model=4, d_ff=6, seed=0, backend="torch", dtype="bfloat16")
    layer.save(tmp_path / "x")
    back = mha.FeedForward.load(tmp_path / "x", backend="torch")
    assert back.w_1.dtype == torch.bfloat16 and torch.equal(back.w_1, layer.w_1)
    with pytest.raises(mha.LayerFileError, match="w_1 is bfloat16, which array_api_strict lacks"):
        mha.FeedForward.load(tmp_path / "x", backend="array_api_strict")


@pytest.mark.parametrize("cls", [mha.Encoder, mha.Decoder])
def test_int8_weights_stay_int8_in_a_file(backend, tmp_path, cls):
    layer = cls.init(**SMALL, seed=0, backend=backend.name).quantized()
    layer.save(tmp_path / "x")
    back = cls.load(tmp_path / "x", backend=backend.name)
    same(layer, back, backend)
    assert back.layers[1].feed_forward.w_1.values.dtype == backend.xp.int8


def test_a_file_of_int8_weights_is_smaller(tmp_path):
    layer = mha.FeedForward.init(d_model=64, d_ff=256, seed=0)
    layer.save(tmp_path / "whole")
    layer.quantized().save(tmp_path / "x")
    assert (tmp_path / "x").stat().st_size < 0.4 * (tmp_path / "whole").stat().st_size


@dataclass(frozen=True, eq=False)
class Scaled(mha.LayerNorm):
    """A layer of a user, whose fields have types that only the user knows."""

    mode: Literal["up", "down"] = "up"
    note: Any = None


def test_a_user_s_own_layer_is_read_back_whatever_its_fields_are(tmp_path):
    plain = mha.LayerNorm.init(d_model=4)
    Scaled(plain.weight, plain.bias, 1e-5, "down", "a note").save(tmp_path / "x")
    back = Scaled.load(tmp_path / "x")
    assert (back.mode, back.note) == ("down", "a note")


SETTINGS = {
    "metadata that do not describe a layer": {"norm_1": {"weight": {"array": None, "shape": [8]}}},
    "eps is -1.0; expected a number of at least 0": {"norm_1": {"eps": -1.0}},
    "eps is nan; expected a finite number": {"norm_1": {"eps": float("nan")}},
    "num_heads is 0; expected an int of at least 1": {"attention": {"num_heads": 0}},
    "num_kv_heads is 3; expected an int of at least 1 that divides": {"attention": {"num_kv_heads": 3}},
    "w_q makes heads of 4 features, but w_k of 8": {"attention": {"num_kv_heads": 1}},
    "w_q and w_v do not divide into heads: num_heads is 3": {"attention": {"num_heads": 3}},
    "num_heads of MultiHeadAttention is '2'; expected int": {"attention": {"num_heads": "2"}},
    "activation is 'mish'; expected one of relu": {"feed_forward": {"activation": "mish"}},
    "norm_first of EncoderLayer is 1; expected bool": {"norm_first": 1},
    "holds a 'Layer', which this mha-core does not know": {"class": "Layer"},
    "does not fit the layers of this mha-core": {"gain": 3},
}
"""By the error, changes of the settings in the metadata of a file."""


def with_settings(changes):
    def change(arrays, metadata):
        plan = json.loads(metadata["mha_core.layer"])
        for name, value in changes.items():
            plan["layer"][name] = {**plan["layer"][name], **value} if isinstance(value, dict) else value
        return arrays, {"mha_core.layer": json.dumps(plan)}

    return change


def with_metadata(text):
    return lambda arrays, metadata: (arrays, {"mha_core.layer": text})


def with_arrays(**changes):
    """Return a change of arrays; those that are None are left out."""
    return lambda arrays, metadata: ({name: x for name, x in {**arrays, **changes}.items() if x is not None}, metadata)


NO_LAYER = "metadata that do not describe a layer"
WRONG_FILES = [
    *((message, with_settings(changes)) for message, changes in SETTINGS.items()),
    *((NO_LAYER, with_metadata(text)) for text in ("{", "[]", '{"format": 1}')),
    (NO_LAYER, with_metadata('{"format": 1, "layer": {"weight": {"array": "weight"}}, "dtypes": {}}')),
    ("without the metadata of a layer", lambda arrays, metadata: (arrays, None)),
    ("has format 2; this mha-core reads format 1", with_metadata('{"format": 2}')),
    ("x lacks norm_1.bias", with_arrays(**{"norm_1.bias": None})),
    ("holds arrays that its layer does not have: gain", with_arrays(gain=np.ones(3))),
    ("norm_1.bias has shape (7,), expected (8,)", with_arrays(**{"norm_1.bias": np.ones(7, dtype=np.float32)})),
]


@pytest.mark.parametrize(("message", "change"), WRONG_FILES)
def test_a_file_that_does_not_fit_is_refused_with_what_is_wrong(tmp_path, message, change):
    path = tmp_path / "x"
    mha.EncoderLayer.init(d_model=8, num_heads=2, d_ff=12, seed=0).save(path)
    with safe_open(path, framework="numpy") as file:
        arrays, metadata = {name: file.get_tensor(name) for name in file.keys()}, file.metadata()  # noqa: SIM118
    arrays, metadata = change(arrays, metadata)
    save_file(arrays, path, metadata)
    with pytest.raises(mha.LayerFileError, match=re.escape(message)) as caught:
        mha.EncoderLayer.load(path)
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)


def test_what_is_no_file_of_this_layer_is_refused(tmp_path):
    path = tmp_path / "x"
    mha.LayerNorm.init(d_model=4).save(path)
    with pytest.raises(mha.LayerFileError, match="holds LayerNorm; expected Encoder"):
        mha.Encoder.load(path)
    path.write_bytes(path.read_bytes()[:50])
    with pytest.raises(mha.LayerFileError, match="truncated or corrupt"):
        mha.LayerNorm.load(path)
    with pytest.raises(mha.LayerFileError, match="is a directory; expected a file"):
        mha.LayerNorm.load(tmp_path)
    with pytest.raises(FileNotFoundError):
        mha.LayerNorm.load(tmp_path / "nowhere")


def test_a_write_that_fails_leaves_no_file(tmp_path):
    with pytest.raises(FileNotFoundError):
        mha.LayerNorm.init(d_model=4).save(tmp_path / "nowhere" / "x")
    (tmp_path / "d").mkdir()
    with pytest.raises(OSError, match="directory"):
        mha.LayerNorm.init(d_model=4).save(tmp_path / "d")
    assert [path.name for path in tmp_path.iterdir()] == ["d"]


def test_layers_of_any_dtype_and_strides_move_to_other_libraries():
    import torch

    half = mha.FeedForward.init(d_model=4, d_ff=6, seed=0, backend="torch", dtype="bfloat16")
    assert torch.equal(half.to("torch", device="cpu").w_1, half.w_1)
    assert (half.to("numpy", dtype="float32").w_1 == half.w_1.float().numpy()).all()
    expected = "expected float32, float64 or another floating dtype of array_api_strict"
    with pytest.raises(TypeError, match=f"dtype is 'bfloat16'; {expected}"):
        half.to("array_api_strict")
    with pytest.raises(TypeError, match="dtype is 'int32'"):
        half.to("numpy", dtype="int32")
    weight = np.arange(4, dtype=np.float32)
    weight.flags.writeable = False
    assert mha.LayerNorm(weight[::-1], None).to("torch").weight.tolist() == [3, 2, 1, 0]
    assert mha.LayerNorm(weight, None).to("torch").weight.tolist() == [0, 1, 2, 3]
