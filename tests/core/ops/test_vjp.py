"""``vjp`` and ``value_and_grad``: the form of what they return. The conformance suite judges the numbers."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
from needs import installed
from normal import normal
from refusals import refusals

import mha_core as mha
from mha_core.algebra.biases import Bias
from mha_core.layers.base import Layer
from mha_core.ops.explain import Explanation


def small_encoder(**options):
    return mha.Encoder.init(d_model=8, num_heads=2, d_ff=16, num_layers=2, seed=0, dtype="float64", **options)


def float32_layer():
    layer = mha.EncoderLayer.init(d_model=8, num_heads=2, d_ff=16, activation="gelu", seed=0)
    return layer, normal(2, 5, 8, dtype=np.float32)


def test_gradients_of_options_are_in_their_form():
    q, table, sink = normal(2, 5, 4), normal(8, 2), normal(2)
    bias = mha.relative_bias(table, bidirectional=True, max_distance=8)
    out, pullback = mha.vjp(mha.scaled_dot_product_attention, q, q, q, bias=bias, sink=sink, mask=mha.causal())
    gradients = pullback(normal(*out.shape))
    assert set(gradients.options) == {"bias", "sink"}
    assert gradients.options["bias"].table.shape == table.shape
    assert gradients.options["bias"].max_distance == 8
    assert gradients.options["sink"].shape == (2,)


def test_gradients_that_are_not_wanted_are_not_computed(monkeypatch):
    products, matmul = [], np.matmul
    x, w, b = normal(3, 4), normal(4, 2), normal(2)
    with mha.use_kernel("linear_vjp", "algebra"):
        _, pullback = mha.vjp(mha.linear, x, w, b, wrt=lambda name: name != "x")
        monkeypatch.setattr(np, "matmul", lambda *arguments: products.append(arguments) or matmul(*arguments))
        d_x, d_w, d_b = pullback(np.ones((3, 2)))
    assert len(products) == 1  # x^T d alone
    assert d_x is None and d_w.shape == (4, 2)
    np.testing.assert_array_equal(d_b, [3.0, 3.0])


def test_a_pullback_gives_the_same_bits_each_time():
    layer, x = small_encoder(), normal(2, 6, 8)
    out, pullback = mha.vjp(layer, x)
    first, second = pullback(out), pullback(out)
    np.testing.assert_array_equal(first[1], second[1])
    for name, d in first[0].arrays().items():
        np.testing.assert_array_equal(d, second[0].arrays()[name])


@dataclass(frozen=True, eq=False)
class DoublesItsGradient(Layer):
    """A layer of a user with a gradient of its own."""

    w: np.ndarray

    def __call__(self, x):
        return x * self.w

    def vjp(self, x, *, wrt=None):
        return self(x), lambda d: (replace(self, w=2 * (d * x).sum(axis=0)), d * self.w)


def test_a_layer_with_a_vjp_of_its_own_is_used_wherever_it_is_part_of_a_function():
    layer, x = DoublesItsGradient(normal(3)), normal(2, 3)
    assert mha.vjp(layer, x)[1](x)[0].w.shape == (3,)
    value, gradients = mha.value_and_grad(lambda both, x: np.sum(mha.relu(both["a"](x) * both["b"])))(
        {"a": layer, "b": np.asarray(2.0)}, x
    )
    active = (layer(x) > 0) * x
    np.testing.assert_allclose(gradients["a"].w, 4 * active.sum(axis=0))
    np.testing.assert_allclose(gradients["b"], float(value) / 2)


def test_value_and_grad_gives_gradients_in_the_form_of_the_first_argument():
    model = {"encoder": small_encoder(), "head": (normal(8, 3), [normal(3), np.asarray([1, 2])])}
    x = normal(4, 5, 8)

    def loss(model, x, *, scale):
        w, (b, places) = model["head"]
        vectors = model["encoder"](x, mask=mha.causal())[:, 0, :]
        xp = vectors.__array_namespace__()
        return xp.mean(xp.square(mha.linear(vectors, w, b)[:, places])) * scale, {"vectors": vectors, "count": 4}

    (value, aux), gradients = mha.value_and_grad(loss, has_aux=True)(model, x, scale=2.0)
    assert type(aux["vectors"]) is np.ndarray and aux["count"] == 4
    d_w, (d_b, d_places) = gradients["head"]
    assert d_places is None and d_b.shape == (3,) and d_b[0] == 0.0
    assert set(gradients["encoder"].arrays()) == set(model["encoder"].arrays())

    def at(w):
        return loss(model | {"head": (w, model["head"][1])}, x, scale=2.0)[0]

    w, step = model["head"][0], 1e-6 * normal(8, 3)
    assert 2 * np.sum(d_w * step) == pytest.approx(float(at(w + step) - at(w - step)), rel=1e-6)
    assert float(value) == pytest.approx(float(at(w)))


@installed("torch")
def test_the_same_function_has_the_same_gradients_on_torch():
    import torch

    encoder, x = small_encoder(activation="gelu"), normal(2, 5, 8)

    def loss(encoder, x):
        y = encoder(x, mask=mha.causal())
        return y.__array_namespace__().mean(y * y) if hasattr(y, "__array_namespace__") else (y * y).mean()

    here, there = mha.value_and_grad(loss)(encoder, x), mha.value_and_grad(loss)(encoder.to("torch"), torch.asarray(x))
    assert float(here[0]) == pytest.approx(float(there[0]), rel=1e-12)
    for name, d in here[1].arrays().items():
        np.testing.assert_allclose(d, there[1].arrays()[name].numpy(), atol=1e-12, err_msg=name)


def test_half_precision_gradients_are_rounded_once():
    x, w = normal(4096, 4, dtype=np.float16), normal(4, 2, dtype=np.float16)
    out, pullback = mha.vjp(mha.linear, x, w, np.zeros(2, np.float16))
    d = normal(*out.shape, dtype=np.float16)
    d_x, d_w, d_b = pullback(d)
    assert d_x.dtype == d_w.dtype == d_b.dtype == np.float16
    np.testing.assert_array_equal(d_w, (x.astype(np.float32).T @ d.astype(np.float32)).astype(np.float16))


def test_explain_shows_the_forward_operations_of_a_vjp():
    explanation = mha.explain(mha.vjp, small_encoder(), normal(5, 8))
    assert isinstance(explanation, Explanation)
    assert "encoder_layer_vjp" in {each.op for each in explanation.walk()}


def test_explain_shows_the_kernels_of_gradients_without_computing():
    layer, x = float32_layer()
    whole = mha.explain(layer, x, gradients=True)
    assert (whole.op, whole.kernel, whole.calls) == ("encoder_layer_vjp", "chunks", ())
    with mha.use_kernel("encoder_layer_vjp", "algebra"):
        parts = mha.explain(layer, x, gradients=True)
    assert parts.calls[0].op == "encoder_layer_vjp" and parts.calls[0].rejected[0].kernel == "chunks"
    operations = [each.op for each in parts.walk()]
    assert operations.count("linear_vjp") == 6
    assert {"attention_vjp", "gelu_vjp", "layer_norm_vjp"} <= set(operations)
    attention = mha.explain("attention", x, x, x, bias=np.zeros((5, 5), np.float32), gradients=True)
    assert [each.op for each in attention.calls] == ["attention", "attention_vjp"]
    assert "d_bias" in attention.calls[1].features


def test_verify_compares_the_kernels_of_gradients():
    layer, x = float32_layer()
    with mha.verify(seed=0) as done:
        out, pullback = mha.vjp(layer, x)
        pullback(out)
    assert done.calls == sum(done.checked.values())


# refused


def pulled(d):
    return mha.vjp(mha.relu, normal(3))[1](d)


def of_state(d):
    x = normal(1, 3, 4)
    return mha.vjp(mha.attention_state, x, x, x)[1](d)


def with_cache():
    layer = mha.MultiHeadAttention.init(d_model=4, num_heads=2, seed=0, dtype="float64")
    return mha.vjp(layer, normal(3, 4), cache=mha.KeyValueCache())


def with_learned(option):
    """NumPy's sum returns a number, which would pass for a plain one."""
    x = normal(1, 3, 4)
    return mha.value_and_grad(lambda s: np.sum(mha.scaled_dot_product_attention(x, x, x, **{option: np.sum(s)})))(np.ones(2))


@dataclass(frozen=True, eq=False)
class TwoArrays(Bias):
    first: np.ndarray
    second: np.ndarray

    def block(self, grid):
        return self.first + self.second


def of_two_arrays():
    x = normal(1, 3, 4)
    bias = TwoArrays(normal(3, 3), normal(3, 3))
    return mha.vjp(mha.scaled_dot_product_attention, x, x, x, bias=bias)


def second(x):
    return mha.value_and_grad(lambda y: np.sum(y * y))(x)[0]


test_bad_input_gets_a_clear_error = refusals(
    {
        TypeError: {
            "what is str; expected an operation": lambda: mha.vjp("gelu", normal(3)),
            "no argument holds a floating array": lambda: mha.vjp(lambda n: n, 3),
            "d_out has dtype float32": lambda: pulled(normal(3, dtype=np.float32)),
            "d_out is list": lambda: pulled([1.0, 2.0, 3.0]),
            "d_out is ndarray; expected 2 gradients": lambda: of_state(normal(1, 3, 4)),
            "scale has no rule for gradients: pass a plain number": lambda: with_learned("scale"),
            "softcap has no rule for gradients": lambda: with_learned("softcap"),
            "a second array of the bias has no rule for gradients": of_two_arrays,
            "a gradient is recorded already": lambda: mha.value_and_grad(second)(normal(3)),
            "returned float": lambda: mha.value_and_grad(lambda x: 1.0)(normal(3)),
            "function is int": lambda: mha.value_and_grad(3),
        },
        ValueError: {
            "d_out has shape (2,); expected the shape": lambda: pulled(normal(2)),
            "d_out.lse has shape": lambda: of_state((None, normal(2))),
            "cache is given while gradients are recorded": with_cache,
            "returned an array of shape (3,)": lambda: mha.value_and_grad(mha.relu)(normal(3)),
        },
    }
)
