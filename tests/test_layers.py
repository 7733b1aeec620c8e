"""Layers: their formulas against plain NumPy float64, their initial weights, and moves between libraries."""

from dataclasses import FrozenInstanceError, fields, replace

import array_api_strict as strict
import numpy as np
import pytest

import mha_core as mha
from mha_core.dispatch.backend import load

SMALL = {"d_model": 12, "num_heads": 3, "d_ff": 20}

# the formulas in plain NumPy, one head and one row at a time


def softmax(s):
    e = np.exp(s - s.max())
    return e / e.sum()


def layer_norm(x, norm):
    mean = x.mean(axis=-1, keepdims=True)
    return (x - mean) / np.sqrt(((x - mean) ** 2).mean(axis=-1, keepdims=True) + norm.eps) * norm.weight + norm.bias


def feed_forward(x, net):
    return np.maximum(0, x @ net.w_1 + net.b_1) @ net.w_2 + net.b_2


def multi_head(x, net, *, context=None, allowed=None, softcap=None):
    """x (L, d_model), context (S, d_context), allowed (L, S)."""
    context = x if context is None else context
    q, k, v = x @ net.w_q + net.b_q, context @ net.w_k + net.b_k, context @ net.w_v + net.b_v
    width = net.w_q.shape[1] // net.num_heads
    group = net.num_heads // (net.num_kv_heads or net.num_heads)
    joined = np.zeros((x.shape[0], net.w_o.shape[0]))
    for head in range(net.num_heads):
        own, shared = (slice(n * width, (n + 1) * width) for n in (head, head // group))
        for i in range(x.shape[0]):
            seen = np.flatnonzero(np.ones(len(context)) if allowed is None else allowed[i])
            s = k[seen, shared] @ q[i, own] / np.sqrt(width)
            joined[i, own] = softmax(s if softcap is None else softcap * np.tanh(s / softcap)) @ v[seen, shared]
    return joined @ net.w_o + net.b_o


def encoder_layer(x, layer, **options):
    if layer.norm_first:
        y = x + multi_head(layer_norm(x, layer.norm_1), layer.attention, **options)
        return y + feed_forward(layer_norm(y, layer.norm_2), layer.feed_forward)
    y = layer_norm(x + multi_head(x, layer.attention, **options), layer.norm_1)
    return layer_norm(y + feed_forward(y, layer.feed_forward), layer.norm_2)


def encoder(x, model, **options):
    for layer in model.layers:
        x = encoder_layer(x, layer, **options)
    return x if model.norm is None else layer_norm(x, model.norm)


@pytest.fixture
def shaken(rng):
    """A function that adds noise to a layer's arrays: no bias is 0 and no norm weight 1, so leaving one out shows."""
    return lambda layer: layer.map(lambda x: x + 0.3 * rng.normal(size=x.shape))


def assert_close(result, expected):
    np.testing.assert_allclose(result, expected, rtol=1e-12, atol=1e-12)


def on(backend, layer, *arrays):
    """A NumPy layer and NumPy arrays, moved to a backend."""
    return (layer.to(backend.name), *(backend.from_numpy(x) for x in arrays))


# the layers against the formulas


@pytest.mark.parametrize("norm_first", [False, True], ids=["post-norm", "pre-norm"])
@pytest.mark.parametrize("causal", [False, True], ids=["whole", "causal"])
def test_an_encoder_layer_equals_its_formula(backend, shaken, rng, norm_first, causal):
    layer = shaken(mha.EncoderLayer.init(**SMALL, norm_first=norm_first, eps=0.1, seed=1, dtype="float64"))
    x = rng.normal(size=(7, 12))
    expected = encoder_layer(x, layer, allowed=np.tri(7) if causal else None)
    there, y = on(backend, layer, x)
    assert_close(backend.to_numpy(there(y, mask=mha.causal() if causal else None)), expected)


@pytest.mark.parametrize("norm_first", [False, True], ids=["post-norm", "pre-norm"])
def test_an_encoder_applies_its_layers_in_turn_with_one_mask(backend, shaken, rng, norm_first):
    model = shaken(mha.Encoder.init(**SMALL, num_layers=3, norm_first=norm_first, seed=1, dtype="float64"))
    assert (model.norm is not None) == norm_first
    x, allowed = rng.normal(size=(2, 5, 12)), rng.random(size=(5, 5)) < 0.6
    np.fill_diagonal(allowed, True)
    there, y, mask = on(backend, model, x, allowed)
    for options, seen in (({}, None), ({"mask": mha.causal()}, np.tri(5)), ({"mask": mask}, allowed)):
        expected = np.stack([encoder(element, model, allowed=seen) for element in x])
        assert_close(backend.to_numpy(there(y, **options)), expected)


@pytest.mark.parametrize("num_kv_heads", [None, 2, 1])
def test_multi_head_attention_equals_its_formula_with_a_context(backend, shaken, rng, num_kv_heads):
    net = mha.MultiHeadAttention.init(d_model=24, num_heads=4, num_kv_heads=num_kv_heads, d_context=10, seed=1, dtype="float64")
    net = shaken(net)
    assert net.w_k.shape == net.w_v.shape == (10, 6 * (num_kv_heads or 4))
    x, context = rng.normal(size=(3, 24)), rng.normal(size=(5, 10))
    there, y, c = on(backend, net, x, context)
    assert_close(backend.to_numpy(there(y, context=c)), multi_head(x, net, context=context))
    expected = multi_head(x, net, context=context, allowed=np.tri(3, 5, 2), softcap=0.5)  # without softcap b_k has no effect
    assert_close(backend.to_numpy(there(y, context=c, mask=mha.causal(), query_offset=2, softcap=0.5)), expected)


def test_attention_without_biases_equals_attention_with_biases_of_zero(rng):
    net = mha.MultiHeadAttention.init(d_model=8, num_heads=2, seed=1, dtype="float64")
    bare = replace(net, b_q=None, b_k=None, b_v=None, b_o=None)
    assert list(bare.arrays()) == ["w_q", "w_k", "w_v", "w_o"]
    x = rng.normal(size=(3, 8))
    assert_close(bare(x), multi_head(x, net))


@pytest.mark.parametrize("activation", ["relu", "gelu", "gelu_tanh", "silu"])
def test_feed_forward_applies_the_activation_it_names(shaken, rng, activation):
    net = shaken(mha.FeedForward.init(d_model=6, d_ff=9, activation=activation, seed=1, dtype="float64"))
    x = rng.normal(size=(4, 6))
    f = {"gelu_tanh": lambda x: mha.gelu(x, approximate="tanh")}.get(activation) or getattr(mha, activation)
    assert_close(net(x), f(x @ net.w_1 + net.b_1) @ net.w_2 + net.b_2)


@pytest.mark.parametrize("norm_first", [False, True], ids=["post-norm", "pre-norm"])
def test_rows_of_a_padded_batch_equal_those_of_each_sequence_alone(backend, shaken, rng, norm_first):
    model = shaken(mha.Encoder.init(**SMALL, num_layers=2, norm_first=norm_first, seed=1, dtype="float64"))
    lengths = [3, 6, 1]
    batch = rng.normal(size=(3, 6, 12)) * 100
    there, x, n = on(backend, model, batch, np.asarray(lengths))
    result = backend.to_numpy(there(x, mask=mha.key_lengths(n)))
    for element, length in enumerate(lengths):
        alone = backend.to_numpy(there(x[element, :length, :]))
        assert_close(result[element, :length], alone)


# initial weights


def test_the_defaults_are_the_base_model_of_the_paper():
    model = mha.Encoder.init(seed=0)
    assert len(model.layers) == 6
    assert model.norm is None
    layer = mha.EncoderLayer.init(seed=0)
    for found in (*model.layers, layer):
        shapes = {name: x.shape for name, x in found.arrays().items()}
        assert {shapes[f"attention.{name}"] for name in ("w_q", "w_k", "w_v", "w_o")} == {(512, 512)}
        assert {shapes[f"attention.{name}"] for name in ("b_q", "b_k", "b_v", "b_o")} == {(512,)}
        assert (shapes["feed_forward.w_1"], shapes["feed_forward.w_2"]) == ((512, 2048), (2048, 512))
        assert (shapes["feed_forward.b_1"], shapes["feed_forward.b_2"]) == ((2048,), (512,))
        assert {shapes[f"norm_{n}.{name}"] for n in (1, 2) for name in ("weight", "bias")} == {(512,)}
        assert (found.attention.num_heads, found.feed_forward.activation, found.norm_first) == (8, "relu", False)
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


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_one_seed_gives_the_same_numbers_on_every_backend(dtype):
    here = mha.Encoder.init(**SMALL, num_layers=2, norm_first=True, seed=5, backend="numpy", dtype=dtype).arrays()
    there = mha.Encoder.init(**SMALL, num_layers=2, norm_first=True, seed=5, backend="array_api_strict", dtype=dtype).arrays()
    assert here.keys() == there.keys()
    for name, x in there.items():
        assert isinstance(x, type(strict.asarray(0)))
        assert str(x.dtype).endswith(dtype)
        np.testing.assert_array_equal(load("array_api_strict").to_numpy(x), here[name])


def test_seeds_determine_the_weights():
    weights = [mha.FeedForward.init(d_model=8, d_ff=8, seed=seed).w_1 for seed in (0, 1, 0)]
    assert (weights[0] == weights[2]).all()
    assert (weights[0] != weights[1]).mean() > 0.9


def test_dtype_is_a_dtype_of_the_library_or_its_name():
    assert mha.LayerNorm.init(d_model=2, dtype=np.float64).weight.dtype == np.float64
    assert mha.FeedForward.init(d_model=2, d_ff=2, seed=0, dtype="float16").w_1.dtype == np.float16
    with pytest.raises(TypeError, match=r"dtype is 'float1'.*numpy"):
        mha.LayerNorm.init(d_model=2, dtype="float1")


@pytest.mark.parametrize("dtype", ["int32", np.int64, "bool"])
def test_integer_dtypes_are_a_type_error(dtype):
    with pytest.raises(TypeError, match="dtype"):
        mha.FeedForward.init(d_model=2, d_ff=2, seed=0, dtype=dtype)


@pytest.mark.parametrize("cls", [mha.MultiHeadAttention, mha.EncoderLayer, mha.Encoder])
@pytest.mark.parametrize(("d_model", "num_heads"), [(8, 3), (8, 16), (8, 0), (8, -2), (-8, 2), (0, 2)])
def test_num_heads_that_does_not_divide_d_model_is_a_value_error(cls, d_model, num_heads):
    with pytest.raises(ValueError, match=rf"d_model is {d_model}\b.*{num_heads}"):
        cls.init(d_model=d_model, num_heads=num_heads, seed=0)


@pytest.mark.parametrize("num_kv_heads", [3, 8, 0, -1])
def test_num_kv_heads_that_does_not_divide_num_heads_is_a_value_error(num_kv_heads):
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


def test_map_changes_every_array_and_no_setting():
    model = mha.Encoder.init(**SMALL, num_layers=2, activation="silu", norm_first=True, eps=0.25, seed=0)
    twice = model.map(lambda x: x * 2)
    assert type(twice) is mha.Encoder
    for name, x in model.arrays().items():
        np.testing.assert_array_equal(twice.arrays()[name], 2 * x)
    layer = twice.layers[1]
    assert (layer.norm_first, layer.norm_1.eps, layer.attention.num_heads, layer.feed_forward.activation) == (
        True,
        0.25,
        3,
        "silu",
    )


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
    for field in fields(cls):
        with pytest.raises(FrozenInstanceError):
            setattr(layer, field.name, None)
    with pytest.raises(FrozenInstanceError):
        layer.another = 1
