"""The line that an error tells the user to write is Python, and works: it is copied from the message and run."""

import re
from dataclasses import replace

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


def normal(*shape, dtype="float32"):
    return np.random.default_rng(0).normal(size=shape).astype(dtype)


def small_layer(**more):
    return mha.EncoderLayer.init(d_model=8, num_heads=2, d_ff=8, seed=0, **more)


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


LAYER, THERE = small_layer(), small_layer(backend="torch")
WIDE = replace(LAYER, norm_1=replace(LAYER.norm_1, weight=LAYER.norm_1.weight.astype("float64")))
X, Q, ALLOWED = normal(3, 8), normal(2, 1, 3, 4), np.tril(np.ones((3, 3), dtype=bool))
T = torch.from_numpy(Q)


def apply(layer, x):
    return layer(x)


def attend(**options):
    return mha.scaled_dot_product_attention(**{"query": T, "key": T, "value": T} | options)


def attend_to_itself(query):
    return mha.scaled_dot_product_attention(query, query, query)


def attend_on_torch(query):
    with mha.use_backend("torch"):
        return attend_to_itself(query)


ADVICE = {
    "a wider input of a layer, not its weights": (
        *(apply, {"layer": LAYER, "x": X.astype("float64")}),
        *("x = x.astype('float32')", {"layer": LAYER, "x": X.astype("float64").astype("float32")}),
    ),
    "a wider input, as torch casts": (
        *(apply, {"layer": THERE, "x": torch.ones(3, 8, dtype=torch.float64)}),
        *("x = x.to(torch.float32)", {"layer": THERE, "x": torch.ones(3, 8)}),
    ),
    "a weight of another dtype": (
        *(apply, {"layer": WIDE, "x": X}),
        *("layer = layer.to('numpy', dtype='float32')", {"layer": LAYER, "x": X}),
    ),
    "integers": (
        *(attend_to_itself, {"query": np.ones((2, 3, 4), dtype=int)}),
        *("query = query.astype('float32')", {"query": np.ones((2, 3, 4), dtype="float32")}),
    ),
    "a key of another library": (attend, {"key": Q}, "key = torch.from_dlpack(key)", {"key": T}),
    "a value of torch": (
        *(lambda value: mha.scaled_dot_product_attention(Q, Q, value), {"value": T}),
        *("value = numpy.from_dlpack(value)", {"value": Q}),
    ),
    "a sink of another library": (attend, {"sink": Q[0, 0, 0, :1]}, "sink = torch.from_dlpack(sink)", {"sink": T[0, 0, 0, :1]}),
    "a bias of another dtype": (
        *(attend, {"bias": torch.zeros(3, 3, dtype=torch.int32)}),
        *("bias = bias.to(torch.float32)", {"bias": torch.zeros(3, 3)}),
    ),
    "lengths inside a mask": (
        *(attend, {"mask": mha.key_lengths(np.array([1, 3]))}),
        *("key_lengths(torch.from_dlpack(n))", {"mask": mha.key_lengths(torch.tensor([1, 3]))}),
    ),
    "a mask of a layer": (
        *(lambda mask: THERE(torch.from_numpy(X), mask=mask), {"mask": ALLOWED}),
        *("mask = torch.from_dlpack(mask)", {"mask": torch.from_numpy(ALLOWED)}),
    ),
    "a backend that is demanded": (attend_on_torch, {"query": Q}, "query = torch.from_dlpack(query)", {"query": T}),
}


@pytest.mark.parametrize(("call", "wrong", "line", "right"), ADVICE.values(), ids=ADVICE)
def test_the_line_to_write_gives_what_the_right_arguments_give(call, wrong, line, right):
    result, written = advised(call, **wrong)
    expected = call(**right)
    assert written == line and type(result) is type(expected) and result.dtype == expected.dtype
    np.testing.assert_array_equal(result, expected)


def test_a_tensor_in_a_layer_of_numpy_is_converted_or_the_layer_moved():
    x = torch.from_numpy(X)
    y, line = advised(apply, layer=LAYER, x=x)
    assert line == "x = numpy.from_dlpack(x)"
    with pytest.raises(mha.BackendMismatch, match=r", or move the layer: layer = layer\.to\('torch'\)$"):
        LAYER(x)
    np.testing.assert_allclose(LAYER.to("torch")(x).numpy(), y, atol=1e-5)


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
    q = normal(2, 3, 4)
    out, line = advised(lambda key: mha.scaled_dot_product_attention(q, key, q), key=Lazy(q))
    assert line == "key = numpy.asarray(key)"
    np.testing.assert_array_equal(out, mha.scaled_dot_product_attention(q, q, q))


def test_a_backend_may_say_what_to_write(installed):
    advice = {"cast": "lazy.cast({x}, lazy.{dtype})", "convert": "lazy.array({x})"}
    installed(backends=[Backend("lazy", 1, (f"{Lazy.__module__}:Lazy",), lambda: np, advice=advice)])
    q = Lazy(normal(2, 3, 4))
    with pytest.raises(TypeError, match=re.escape("write key = lazy.cast(key, lazy.float32)")):
        mha.scaled_dot_product_attention(q, Lazy(normal(2, 3, 4).astype(int)), q)
    with pytest.raises(mha.BackendMismatch, match=re.escape("write value = lazy.array(value)")):
        mha.scaled_dot_product_attention(q, q, q.x)


@pytest.mark.parametrize("advice", [{"cast": "{y}.cast()"}, {"make": "{x}"}, {"convert": "{x"}, {"convert": "{x}.to({dtype})"}])
def test_advice_that_cannot_be_given_is_refused_when_the_plugin_is_registered(installed, advice):
    with pytest.raises(
        ValueError, match=r"advice of backend 'lazy' has .*; expected 'cast' with \{x\} and \{dtype\}, 'convert'"
    ):
        installed(backends=[Backend("lazy", 1, ("nowhere:Array",), lambda: np, advice=advice)])


# options that other libraries have

HINTS = {
    "is_causal": "mask=mha.causal()",
    "causal": "mask=mha.causal()",
    "window": "write mask=mha.window(left, right)",
    "dropout_p": "weight_dropout=mha.weight_dropout(rate, seed=...)",
    "maks": "did you mean 'mask'?",
    "attn_mask": "write mask=, with True where a query attends to a key",
    "key_padding_mask": "write mask=mha.key_lengths(n)",
    "need_weights": "mha.attention_weights",
    "backend": "leave it out: the arrays decide which library computes, and where; convert them by its asarray or from_dlpack, "
    "and a layer by layer.to(backend, device=..., dtype=...)",
}


@pytest.mark.parametrize("name", HINTS)
@pytest.mark.parametrize("value", [None, True], ids=["None", "True"])
def test_names_of_other_libraries_are_refused_everywhere_with_ours(name, value):
    x, q, layer = X, normal(2, 3, 4), LAYER
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
    q = normal(2, 3, 4)
    with pytest.raises(TypeError, match="there is no option attn_mask, src_mask, foo; expected") as raised:
        mha.scaled_dot_product_attention(q, q, q, attn_mask=None, src_mask=None, foo=1)
    assert str(raised.value).count("write mask=") == 1


def test_dropout_of_attention_is_called_weight_dropout():
    q = normal(2, 3, 4)
    for call in (
        lambda **option: small_layer().attention(X, **option),
        lambda **option: mha.attention_state(q, q, q, **option),
    ):
        with pytest.raises(
            TypeError, match=r"no option dropout; .*; write weight_dropout=mha\.weight_dropout\(rate, seed=\.\.\.\)"
        ):
            call(dropout=0.1)


def test_a_recorded_array_is_named_as_what_it_holds():
    logits, labels = normal(3, 4), torch.zeros(3, dtype=torch.int64)
    with pytest.raises(mha.BackendMismatch) as error:
        mha.value_and_grad(lambda x: mha.cross_entropy(x, labels))(logits)
    assert str(error.value) == (
        "labels is a torch.Tensor, but logits is a numpy.ndarray: write labels = numpy.from_dlpack(labels)"
    )
