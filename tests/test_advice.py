"""What an error tells the user to write is Python, and works: each line is copied from the message and run."""

import inspect
import re

import numpy as np
import pytest

import mha_core as mha
from mha_core.dispatch.advice import odd_one
from mha_core.plugin import Backend

torch = pytest.importorskip("torch")


def advised(call, **arguments):
    """Return the call's result after doing what its error says, and the line that was written."""
    with pytest.raises((TypeError, mha.BackendMismatch)) as raised:
        call(**arguments)
    line = re.search(r"write (.*?)(?:, or |$)", str(raised.value)).group(1)
    scope = {"mha": mha, "numpy": np, "torch": torch, **arguments}
    if "(" in line.partition("=")[0]:  # an argument of a mask
        scope["mask"] = eval(f"mha.{line}", scope, {"n": arguments["mask"].n})
    else:
        exec(line, scope)
    return call(**{name: scope[name] for name in arguments}), line


def some(*shape, dtype="float32"):
    return np.random.default_rng(0).normal(size=shape).astype(dtype)


def small_layer(**more):
    return mha.EncoderLayer.init(d_model=8, num_heads=2, d_ff=8, seed=0, **more)


def apply(layer, x):
    return layer(x)


@pytest.mark.parametrize(
    ("kinds", "odd", "like"),
    [
        ({"x": "a", "w": "b"}, "w", "x"),
        ({"x": "a", "w": "b", "b": "b"}, "x", "w"),
        ({"query": "a", "key": "a", "value": "b"}, "value", "query"),
        ({"q": "a", "k": "b", "v": "c"}, "k", "q"),
    ],
)
def test_the_array_that_differs_from_most_is_to_be_converted(kinds, odd, like):
    assert odd_one(kinds) == (odd, like)


def test_a_wider_input_of_a_layer_is_cast_not_its_weights():
    layer = small_layer()
    y, line = advised(apply, layer=layer, x=some(3, 8, dtype="float64"))
    assert line == "x = x.astype('float32')"
    np.testing.assert_array_equal(y, layer(some(3, 8, dtype="float64").astype("float32")))


def test_a_torch_input_is_cast_as_torch_does():
    layer = small_layer(backend="torch")
    y, line = advised(apply, layer=layer, x=torch.ones(3, 8, dtype=torch.float64))
    assert line == "x = x.to(torch.float32)" and y.dtype == torch.float32


def test_integers_are_cast():
    y, line = advised(lambda query: mha.scaled_dot_product_attention(query, query, query), query=np.ones((2, 3, 4), dtype=int))
    assert line == "query = query.astype('float32')" and y.dtype == np.float32


def test_a_tensor_in_a_layer_of_numpy_is_converted_or_the_layer_moved():
    layer, x = small_layer(), torch.from_numpy(some(3, 8))
    y, line = advised(apply, layer=layer, x=x)
    assert line == "x = numpy.from_dlpack(x)"
    with pytest.raises(mha.BackendMismatch, match=r", or move the layer: layer = layer\.to\('torch'\)$"):
        layer(x)
    np.testing.assert_allclose(layer.to("torch")(x).numpy(), y, atol=1e-5)


def test_lengths_of_another_library_are_converted_inside_the_mask():
    q = torch.from_numpy(some(2, 1, 3, 4))

    def call(mask):
        return mha.scaled_dot_product_attention(q, q, q, mask=mask)

    out, line = advised(call, mask=mha.key_lengths(np.array([1, 3])))
    assert line == "key_lengths(torch.from_dlpack(n))"
    assert torch.equal(out, call(mha.key_lengths(torch.tensor([1, 3]))))


def test_a_mask_of_another_library_is_converted_in_a_layer_too():
    x, allowed = torch.from_numpy(some(3, 8)), np.tril(np.ones((3, 3), dtype=bool))
    layer = small_layer(backend="torch")
    y, line = advised(lambda mask: layer(x, mask=mask), mask=allowed)
    assert line == "mask = torch.from_dlpack(mask)"
    assert torch.equal(y, layer(x, mask=torch.from_numpy(allowed)))


def test_a_key_of_another_library_is_converted():
    q = torch.from_numpy(some(2, 3, 4))
    out, line = advised(lambda key: mha.scaled_dot_product_attention(q, key, q), key=some(2, 3, 4))
    assert line == "key = torch.from_dlpack(key)"
    assert torch.equal(out, mha.scaled_dot_product_attention(q, q, q))


def test_a_bias_of_another_dtype_is_cast():
    q = torch.from_numpy(some(2, 3, 4))
    bias = torch.zeros(3, 3, dtype=torch.int32)
    out, line = advised(lambda bias: mha.scaled_dot_product_attention(q, q, q, bias=bias), bias=bias)
    assert line == "bias = bias.to(torch.float32)"
    assert torch.equal(out, mha.scaled_dot_product_attention(q, q, q))


class Lazy:
    """Arrays without DLPack, like those of a library that computes later; NumPy can convert them."""

    def __init__(self, x):
        self.x, self.shape, self.ndim, self.dtype = x, x.shape, x.ndim, x.dtype

    def __array__(self, dtype=None, copy=None):
        return self.x

    def __array_namespace__(self):
        return np


def test_an_array_without_dlpack_is_converted_by_asarray(installed):
    installed(backends=[Backend("lazy", 1, (f"{Lazy.__module__}:Lazy",), lambda: np)])
    q = some(2, 3, 4)
    out, line = advised(lambda key: mha.scaled_dot_product_attention(q, key, q), key=Lazy(q))
    assert line == "key = numpy.asarray(key)"
    np.testing.assert_array_equal(out, mha.scaled_dot_product_attention(q, q, q))


def test_a_backend_that_is_demanded_gets_its_arrays():
    def call(query):
        with mha.use_backend("torch"):
            return mha.scaled_dot_product_attention(query, query, query)

    out, line = advised(call, query=some(2, 3, 4))
    assert line == "query = torch.from_dlpack(query)" and isinstance(out, torch.Tensor)


def test_a_weight_of_another_dtype_is_a_matter_of_the_layer():
    layer = small_layer()
    norm = mha.LayerNorm(layer.norm_1.weight.astype("float64"), layer.norm_1.bias)
    mixed = mha.EncoderLayer(layer.attention, norm, layer.feed_forward, layer.norm_2)
    y, line = advised(apply, layer=mixed, x=some(3, 8))
    assert line == "layer = layer.to('numpy', dtype='float32')"
    np.testing.assert_array_equal(y, layer(some(3, 8)))


# options that other libraries have

HINTS = {
    "is_causal": "mask=mha.causal()",
    "attn_mask": "write mask=, with True where a query attends to a key",
    "key_padding_mask": "write mask=mha.key_lengths(n)",
    "dropout_p": "weight_dropout=mha.weight_dropout(rate, seed=...)",
    "need_weights": "mha.attention_weights",
}


@pytest.mark.parametrize("name", HINTS)
@pytest.mark.parametrize("value", [None, True], ids=["None", "True"])
def test_names_of_other_libraries_are_refused_everywhere_with_ours(name, value):
    x, q = some(3, 8), some(2, 3, 4)
    layer = small_layer()
    calls = [
        lambda **option: mha.scaled_dot_product_attention(q, q, q, **option),
        lambda **option: mha.attention_state(q, q, q, **option),
        lambda **option: mha.attention_weights(q, q, **option),
        lambda **option: layer(x, **option),
        lambda **option: layer.attention(x, **option),
        lambda **option: layer.attention.weights(x, **option),
        lambda **option: mha.Encoder((layer,))(x, **option),
    ]
    for call in calls:
        with pytest.raises(TypeError, match=f"^there is no option {name}; expected mask, bias, .*{re.escape(HINTS[name])}"):
            call(**{name: value})


def test_several_unknown_options_are_named_with_each_hint_once():
    q = some(2, 3, 4)
    with pytest.raises(TypeError, match="there is no option attn_mask, src_mask, foo; expected") as raised:
        mha.scaled_dot_product_attention(q, q, q, attn_mask=None, src_mask=None, foo=1)
    assert str(raised.value).count("write mask=") == 1


@pytest.mark.parametrize(
    "function",
    [
        mha.scaled_dot_product_attention,
        mha.attention_state,
        mha.attention_weights,
        mha.self_attention,
        mha.multi_head_attention,
        mha.EncoderLayer.__call__,
        mha.Encoder.__call__,
        mha.MultiHeadAttention.__call__,
        mha.MultiHeadAttention.weights,
    ],
    ids=lambda function: function.__qualname__,
)
def test_signatures_show_the_options(function):
    names = list(inspect.signature(function).parameters)
    assert names[-7:] == ["mask", "bias", "scale", "softcap", "sink", "query_offset", "weight_dropout"]
    assert "options" not in names
