"""Layers: their initial weights, and moves between libraries. The conformance suite judges what they compute."""

import copy
import pickle
import re
from dataclasses import FrozenInstanceError, fields, replace

import array_api_strict as strict
import numpy as np
import pytest
from refusals import refusals
from together import for_each

import mha_core as mha
from mha_core.dispatch.backend import load

SMALL = {"d_model": 12, "num_heads": 3, "d_ff": 20}


# initial weights


test_sizes_that_no_layer_can_have_are_refused = refusals(
    {
        TypeError: {
            "num_heads is float; expected an int": lambda: mha.MultiHeadAttention.init(d_model=8, num_heads=2.0, seed=0)
        },
        ValueError: {"a weight would have shape (8, 0)": lambda: mha.FeedForward.init(d_model=8, d_ff=0, seed=0)},
    }
)


@pytest.mark.parametrize("cls", [mha.Encoder, mha.EncoderLayer, mha.Decoder, mha.DecoderLayer, mha.MultiHeadAttention])
def test_errors_about_the_arguments_of_init_name_the_class_that_was_written(cls):
    class Mine(cls):
        pass

    for named in (cls, Mine):
        for message, options in {
            "missing 1 required keyword-only argument: 'seed'": {},
            "got an unexpected ": {"heads": 3},
        }.items():
            with pytest.raises(TypeError, match=rf"^{named.__name__}\.init\(\) {message}"):
                named.init(**options)
        assert type(named.init(d_model=4, num_heads=2, seed=0)) is named


def test_a_wrong_number_of_features_is_blamed_on_the_input(backend):
    x, y = (backend.from_numpy(np.ones((3, width), np.float32)) for width in (9, 8))
    sizes = {"d_model": 8, "num_heads": 2, "d_ff": 12, "backend": backend.name, "seed": 0}
    takes_8 = "has 9 features; this layer takes 8 (d_model)"
    cases = []
    for norm_first in (False, True):
        encoder = mha.Encoder.init(**sizes, num_layers=1, norm_first=norm_first)
        decoder = mha.Decoder.init(**sizes, num_layers=1, norm_first=norm_first)
        layer = encoder.layers[0]
        for call in (encoder, layer, layer.attention, layer.attention.weights, layer.feed_forward, layer.norm_1):
            cases.append((f"x {takes_8}", call, x))
        for call in (decoder, decoder.layers[0]):
            cases += [(f"y {takes_8}", call, x, y), (f"memory {takes_8}", call, y, x)]

    def check(case):
        message, call, *inputs = case
        with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
            call(*inputs)

    for_each(dict(enumerate(cases)), check)


def test_the_defaults_are_the_base_model_of_the_paper():
    model = mha.Encoder.init(seed=0)
    assert len(model.layers) == 6
    assert model.norm is None
    for layer in (*model.layers, mha.EncoderLayer.init(seed=0)):
        shapes = {name: x.shape for name, x in layer.arrays().items()}
        assert {shapes[f"attention.{name}"] for name in ("w_q", "w_k", "w_v", "w_o")} == {(512, 512)}
        assert {shapes[f"attention.{name}"] for name in ("b_q", "b_k", "b_v", "b_o")} == {(512,)}
        assert (shapes["feed_forward.w_1"], shapes["feed_forward.w_2"]) == ((512, 2048), (2048, 512))
        assert (shapes["feed_forward.b_1"], shapes["feed_forward.b_2"]) == ((2048,), (512,))
        assert {shapes[f"norm_{n}.{name}"] for n in (1, 2) for name in ("weight", "bias")} == {(512,)}
        assert (layer.attention.num_heads, layer.feed_forward.activation, layer.norm_first) == (8, "relu", False)
    assert {x.dtype for x in model.arrays().values()} == {np.dtype("float32")}


def test_weights_are_uniform_within_the_bound_of_glorot_and_biases_are_zero():
    for name, x in mha.EncoderLayer.init(d_model=128, num_heads=4, d_ff=512, seed=3).arrays().items():
        if ".w_" not in name:
            assert (x == (1 if name.endswith("weight") else 0)).all()
            continue
        bound = np.sqrt(6 / sum(x.shape))
        assert np.abs(x).max() <= bound * (1 + 1e-6)
        assert np.abs(x).max() > 0.99 * bound
        of_bound = x.astype(np.float64) / bound
        deviation = 5 / np.sqrt(x.size)  # five standard deviations of the mean of values with a standard deviation of at most 1
        assert abs(of_bound.mean()) < deviation
        assert abs((of_bound**2).mean() - 1 / 3) < deviation
        assert abs((of_bound[:, 1:] * of_bound[:, :-1]).mean()) < deviation
        assert len(np.unique(x)) > 0.9 * x.size


def test_no_two_weight_matrices_are_equal():
    matrices = [x for name, x in mha.Encoder.init(**SMALL, num_layers=2, seed=0).arrays().items() if ".w_" in name]
    assert len({x.tobytes() for x in matrices}) == len(matrices) == 12


def test_seeds_determine_the_weights():
    weights = [mha.FeedForward.init(d_model=8, d_ff=8, seed=seed).w_1 for seed in (0, 1, 0)]
    assert (weights[0] == weights[2]).all()
    assert (weights[0] != weights[1]).mean() > 0.9


def test_dtype_is_a_dtype_of_the_library_or_its_name():
    assert mha.LayerNorm.init(d_model=2, dtype=np.float64).weight.dtype == np.float64
    assert mha.FeedForward.init(d_model=2, d_ff=2, seed=0, dtype="float16").w_1.dtype == np.float16
    for wrong in ("float1", "int32", np.int64, "bool"):
        with pytest.raises(TypeError, match=r"dtype is .*numpy"):
            mha.FeedForward.init(d_model=2, d_ff=2, seed=0, dtype=wrong)


@pytest.mark.parametrize("cls", [mha.MultiHeadAttention, mha.EncoderLayer, mha.Encoder])
@pytest.mark.parametrize(("d_model", "num_heads"), [(8, 3), (8, 16), (8, 0), (8, -2), (-8, 2), (0, 2)])
def test_num_heads_that_does_not_divide_d_model_is_a_value_error(cls, d_model, num_heads):
    with pytest.raises(ValueError, match=rf"d_model is {d_model}\b.*{num_heads}"):
        cls.init(d_model=d_model, num_heads=num_heads, seed=0)


def test_num_kv_heads_that_does_not_divide_num_heads_is_a_value_error():
    for num_kv_heads in (3, 8, 0, -1):
        with pytest.raises(ValueError, match=rf"num_kv_heads is {num_kv_heads}"):
            mha.MultiHeadAttention.init(d_model=8, num_heads=4, num_kv_heads=num_kv_heads, seed=0)


# a tree of arrays


def test_arrays_are_listed_by_dotted_names():
    model = mha.Encoder.init(**SMALL, num_layers=2, norm_first=True, seed=0)
    named = model.arrays()
    assert len(named) == 2 * 16 + 2
    assert named["layers.1.attention.w_q"] is model.layers[1].attention.w_q
    assert named["layers.0.feed_forward.b_2"] is model.layers[0].feed_forward.b_2
    assert named["norm.bias"] is model.norm.bias
    assert not any(name.startswith(("layers.2", ".")) for name in named)


def test_arrays_are_those_of_a_layer_whatever_was_listed_of_another():
    layer = mha.EncoderLayer.init(**SMALL, seed=0, backend="torch")
    layer.arrays().clear()
    changed = replace(layer, attention=replace(layer.attention, w_q=2 * layer.attention.w_q))
    copies = copy.copy(layer), copy.deepcopy(layer), pickle.loads(pickle.dumps(layer)), layer.map(lambda x: 2 * x)
    for each in (layer, changed, *copies):
        assert list(each.arrays()) == list(mha.EncoderLayer.init(**SMALL, seed=0).arrays())
        assert each.arrays()["attention.w_q"] is each.attention.w_q
        assert each.arrays()["norm_2.bias"] is each.norm_2.bias
    layer.attention.w_q.requires_grad_()  # after its arrays were listed
    layer(load("torch").xp.ones((3, 12))).sum().backward()
    assert layer.arrays()["attention.w_q"].grad is not None


def test_map_changes_every_array_and_no_setting():
    model = mha.Encoder.init(**SMALL, num_layers=2, activation="silu", norm_first=True, eps=0.25, seed=0)
    twice = model.map(lambda x: x * 2)
    assert type(twice) is mha.Encoder
    for name, x in model.arrays().items():
        np.testing.assert_array_equal(twice.arrays()[name], 2 * x)
    layer = twice.layers[1]
    assert (layer.norm_first, layer.norm_1.eps) == (True, 0.25)
    assert (layer.attention.num_heads, layer.feed_forward.activation) == (3, "silu")


def test_moving_to_another_library_and_dtype_and_back_keeps_every_number():
    model = mha.Encoder.init(**SMALL, num_layers=2, norm_first=True, seed=0)
    there = model.to("array_api_strict", dtype="float64")
    assert {(type(x), x.dtype) for x in there.arrays().values()} == {(type(strict.asarray(0)), strict.float64)}
    back = there.to("numpy", dtype=np.float32)
    assert {(type(x), x.dtype) for x in back.arrays().values()} == {(np.ndarray, np.dtype("float32"))}
    for name, x in model.arrays().items():
        np.testing.assert_array_equal(back.arrays()[name], x)
    assert back.layers[0].attention.num_heads == 3


def test_to_changes_only_what_its_arguments_name():
    model = mha.LayerNorm.init(d_model=3, dtype="float64")
    assert model.to("numpy").weight is model.weight
    assert model.to("array_api_strict").weight.dtype == strict.float64
    with pytest.raises(TypeError, match="dtype is 'half'"):
        model.to("array_api_strict", dtype="half")


@pytest.mark.parametrize("cls", [mha.LayerNorm, mha.FeedForward, mha.MultiHeadAttention, mha.EncoderLayer, mha.Encoder])
def test_layers_are_frozen(cls):
    settings = {} if cls is mha.LayerNorm else {"seed": 0}
    layer = cls.init(d_model=8, **settings)
    for name in (*(field.name for field in fields(cls)), "another"):
        with pytest.raises(FrozenInstanceError):
            setattr(layer, name, None)


# int8 weights


def test_linear_maps_are_quantized_and_the_rest_stays(backend):
    layer = mha.Encoder.init(**SMALL, num_layers=2, norm_first=True, seed=0, backend=backend.name)
    quantized = layer.quantized()
    maps = {
        f"layers.{at}.{name}" for at in (0, 1) for name in ("attention.w_q", "attention.w_k", "attention.w_v", "attention.w_o")
    }
    maps |= {f"layers.{at}.feed_forward.{name}" for at in (0, 1) for name in ("w_1", "w_2")}
    before, after = layer.arrays(), quantized.arrays()
    assert {name for name in after if name not in before} == {f"{name}.{part}" for name in maps for part in ("values", "scale")}
    assert all(after[name] is x for name, x in before.items() if name not in maps)
    again = quantized.quantized()
    assert all(again.arrays()[name] is x for name, x in after.items())


def test_a_decoder_with_int8_weights_decodes_step_by_step_as_at_once(rng):
    decoder = mha.Decoder.init(**SMALL, num_layers=2, seed=0).quantized()
    y, memory = (rng.normal(size=(length, 12)).astype(np.float32) for length in (4, 6))
    cache = mha.DecoderCache()
    steps = [decoder(y[at : at + 1], memory, cache=cache) for at in range(4)]
    np.testing.assert_allclose(np.concatenate(steps), decoder(y, memory), rtol=0, atol=0.05)


def test_features_of_a_layer_name_int8():
    layer = mha.FeedForward.init(d_model=4, d_ff=8, gated=True, seed=0)
    assert layer.quantized().features == layer.features | {"int8"}
    assert "int8" in mha.EncoderLayer.init(**SMALL, seed=0).quantized().features


def test_a_quantized_layer_is_pickled_and_copied(rng):
    layer, x = mha.EncoderLayer.init(**SMALL, seed=0).quantized(), rng.normal(size=(3, 12)).astype(np.float32)
    for again in (pickle.loads(pickle.dumps(layer)), copy.deepcopy(layer)):
        np.testing.assert_array_equal(again(x), layer(x))
