"""Layers written to safetensors files and read back, in any backend."""

import json
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
        mha.LayerNorm(None, None),
    )
    layer.save(tmp_path / "x")
    back = mha.EncoderLayer.load(tmp_path / "x")
    assert back.attention.num_kv_heads == 2 and back.attention.b_q is None and back.attention.rotary.interleaved is True
    assert type(back.norm_1) is mha.RMSNorm and back.norm_2.weight is None
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


def test_a_file_that_does_not_fit_is_refused_with_what_is_wrong(tmp_path):
    path = tmp_path / "x"
    mha.LayerNorm.init(d_model=4).save(path)
    with pytest.raises(mha.LayerFileError, match="holds LayerNorm; expected Encoder"):
        mha.Encoder.load(path)
    with safe_open(path, framework="numpy") as file:
        metadata, arrays = file.metadata(), {name: file.get_tensor(name) for name in ("weight", "bias")}
    save_file({"weight": arrays["weight"]}, path, metadata)
    with pytest.raises(mha.LayerFileError, match="x lacks bias"):
        mha.LayerNorm.load(path)
    save_file({**arrays, "gain": arrays["bias"]}, path, metadata)
    with pytest.raises(mha.LayerFileError, match="holds arrays that its layer does not have: gain"):
        mha.LayerNorm.load(path)
    save_file(arrays, path)
    with pytest.raises(mha.LayerFileError, match="without the metadata of a layer"):
        mha.LayerNorm.load(path)
    plan = json.loads(metadata["mha_core.layer"])
    save_file(arrays, path, {"mha_core.layer": json.dumps({**plan, "format": 2})})
    with pytest.raises(mha.LayerFileError, match="has format 2; this mha-core reads format 1"):
        mha.LayerNorm.load(path)
    save_file({**arrays, "weight": np.ones(7, dtype=np.float32)}, path, metadata)
    with pytest.raises(mha.LayerFileError, match=r"weight has shape \(7,\), expected \(4,\)"):
        mha.LayerNorm.load(path)
    for broken in ("{", "[]", '{"format": 1}', '{"format": 1, "layer": {"weight": {"array": "weight"}}, "dtypes": {}}'):
        save_file(arrays, path, {"mha_core.layer": broken})
        with pytest.raises(mha.LayerFileError, match="x has metadata that do not describe a layer"):
            mha.LayerNorm.load(path)
    strange = json.loads(metadata["mha_core.layer"])
    strange["layer"]["gain"] = 3
    save_file(arrays, path, {"mha_core.layer": json.dumps(strange)})
    with pytest.raises(mha.LayerFileError, match="does not fit the layers of this mha-core"):
        mha.LayerNorm.load(path)
    with pytest.raises(mha.LayerFileError, match="is a directory; expected a file"):
        mha.LayerNorm.load(tmp_path)
    plan["layer"]["class"] = "Norm"
    save_file(arrays, path, {"mha_core.layer": json.dumps(plan)})
    with pytest.raises(mha.LayerFileError, match="holds a 'Norm', which this mha-core does not know"):
        mha.LayerNorm.load(path)
    path.write_bytes(path.read_bytes()[:50])
    with pytest.raises(mha.LayerFileError, match="truncated or corrupt"):
        mha.LayerNorm.load(path)
    with pytest.raises(FileNotFoundError):
        mha.LayerNorm.load(tmp_path / "nowhere")


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


WRONG_SETTINGS = {
    "no name of an array": ({"norm_1": {"weight": {"array": None, "shape": [8]}}}, "metadata that do not describe a layer"),
    "eps": ({"norm_1": {"eps": -1.0}}, "eps is -1.0; expected a number of at least 0"),
    "eps of NaN": ({"norm_1": {"eps": float("nan")}}, "eps is nan; expected a finite number"),
    "heads": ({"attention": {"num_heads": 0}}, "num_heads is 0; expected an int of at least 1"),
    "heads of keys": ({"attention": {"num_kv_heads": 3}}, "num_kv_heads is 3; expected an int of at least 1 that divides"),
    "heads of other widths": ({"attention": {"num_kv_heads": 1}}, "w_q makes heads of 4 features, but w_k of 8"),
    "heads that do not divide": ({"attention": {"num_heads": 3}}, "w_q and w_v do not divide into heads: num_heads is 3"),
    "heads as text": ({"attention": {"num_heads": "2"}}, "num_heads of MultiHeadAttention is '2'; expected int"),
    "activation": ({"feed_forward": {"activation": "mish"}}, "activation is 'mish'; expected one of relu"),
    "order": ({"norm_first": 1}, "norm_first of EncoderLayer is 1; expected bool"),
}


@pytest.mark.parametrize(("changes", "message"), WRONG_SETTINGS.values(), ids=WRONG_SETTINGS)
def test_settings_that_no_layer_can_use_are_refused_when_the_file_is_read(tmp_path, changes, message):
    path = tmp_path / "x"
    mha.EncoderLayer.init(d_model=8, num_heads=2, d_ff=12, seed=0).save(path)
    with safe_open(path, framework="numpy") as file:
        metadata, arrays = file.metadata(), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    plan = json.loads(metadata["mha_core.layer"])
    for name, change in changes.items():
        plan["layer"][name] = {**plan["layer"][name], **change} if isinstance(change, dict) else change
    save_file(arrays, path, {"mha_core.layer": json.dumps(plan)})
    with pytest.raises(mha.LayerFileError, match=message) as caught:
        mha.EncoderLayer.load(path)
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)


def test_a_write_that_fails_leaves_no_file(tmp_path):
    with pytest.raises(FileNotFoundError):
        mha.LayerNorm.init(d_model=4).save(tmp_path / "nowhere" / "x")
    (tmp_path / "d").mkdir()
    with pytest.raises(OSError, match="directory"):
        mha.LayerNorm.init(d_model=4).save(tmp_path / "d")
    assert [path.name for path in tmp_path.iterdir()] == ["d"]


def test_a_file_has_the_default_mode_and_a_symbolic_link_stays_one(tmp_path):
    layer = mha.LayerNorm.init(d_model=4, eps=np.float32(0.5))
    (tmp_path / "plain").touch()
    layer.save(tmp_path / "x")
    assert (tmp_path / "x").stat().st_mode == (tmp_path / "plain").stat().st_mode
    (tmp_path / "link").symlink_to(tmp_path / "plain")
    layer.save(tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert mha.LayerNorm.load(tmp_path / "plain").eps == 0.5


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
