"""``vjp`` and ``value_and_grad``: what they return, for operations, layers and functions made of them, and what they refuse."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
from needs import installed
from normal import normal

import mha_core as mha
from mha_core.layers.base import Layer
from mha_core.ops.explain import Explanation


def small_encoder(**options):
    return mha.Encoder.init(d_model=8, num_heads=2, d_ff=16, num_layers=2, seed=0, dtype="float64", **options)


def along(function, values, directions, step=1e-6):
    """Return the derivative of a function of arrays along directions, by central differences."""
    up, down = ([x + sign * step * v for x, v in zip(values, directions, strict=True)] for sign in (1, -1))
    return (function(*up) - function(*down)) / (2 * step)


def dot(a, b):
    return sum(float(np.sum(x * y)) for x, y in zip(a, b, strict=True))


LAYERS = {
    "attention": (mha.MultiHeadAttention.init(d_model=8, num_heads=4, num_kv_heads=2, seed=0, dtype="float64"), 1),
    "feed-forward": (mha.FeedForward.init(d_model=8, d_ff=12, activation="gelu", gated=True, seed=0, dtype="float64"), 1),
    "layer norm": (mha.LayerNorm.init(d_model=8, dtype="float64"), 1),
    "rms norm": (mha.RMSNorm.init(d_model=8, dtype="float64"), 1),
    "encoder layer": (mha.EncoderLayer.init(d_model=8, num_heads=2, d_ff=12, seed=0, dtype="float64"), 1),
    "encoder, norm first": (small_encoder(norm_first=True, activation="gelu_tanh"), 1),
    "decoder": (mha.Decoder.init(d_model=8, num_heads=2, d_ff=12, num_layers=2, seed=0, dtype="float64"), 2),
    "rotary": (
        replace(
            mha.MultiHeadAttention.init(d_model=8, num_heads=2, seed=0, dtype="float64"),
            rotary=mha.Rotary.init(max_length=9, dim=4, interleaved=False, dtype="float64"),
        ),
        1,
    ),
}


@pytest.mark.parametrize(("layer", "inputs"), LAYERS.values(), ids=LAYERS)
def test_the_gradients_of_a_layer_are_those_of_its_weights_and_arguments(layer, inputs):
    layer = layer.map(lambda x: x + 0.1 * normal(*x.shape))  # norms and biases too
    arguments = [normal(2, 5 + at, 8) for at in range(inputs)]
    out, pullback = mha.vjp(layer, *arguments)
    np.testing.assert_allclose(out, layer(*arguments), atol=1e-13)  # kernels of whole layers round otherwise
    d = normal(*out.shape)
    d_layer, *d_arguments = pullback(d)
    assert type(d_layer) is type(layer)
    tables = {name for name in layer.arrays() if name.startswith("rotary.")}
    names = sorted(d_layer.arrays())
    assert names == sorted(layer.arrays().keys() - tables)
    gradients = [*(d_layer.arrays()[name] for name in names), *d_arguments]
    values = [*(layer.arrays()[name] for name in names), *arguments]
    assert [(x.shape, x.dtype) for x in gradients] == [(x.shape, x.dtype) for x in values]

    def at(*values):
        weights = dict(zip(names, values, strict=False))
        return np.sum(renamed(layer, weights)(*values[len(names) :]) * d)

    directions = [normal(*x.shape) for x in values]
    assert dot(gradients, directions) == pytest.approx(along(at, values, directions), rel=1e-6)


def renamed(layer, weights):
    """Return a layer with other arrays in place of those named."""
    places = iter(layer.arrays().items())

    def other(x):
        name, _ = next(places)
        return weights.get(name, x)

    return layer.map(other)


def test_gradients_of_options_are_in_their_form():
    q, table, sink = normal(2, 5, 4), normal(8, 2), normal(2)
    bias = mha.relative_bias(table, bidirectional=True, max_distance=8)
    out, pullback = mha.vjp(mha.scaled_dot_product_attention, q, q, q, bias=bias, sink=sink, mask=mha.causal())
    gradients = pullback(normal(*out.shape))
    assert set(gradients.options) == {"bias", "sink"}
    assert gradients.options["bias"].table.shape == table.shape
    assert gradients.options["bias"].max_distance == 8
    assert gradients.options["sink"].shape == (2,)


def test_a_state_has_gradients_by_either_of_its_arrays():
    q, k = normal(2, 5, 4), normal(2, 7, 4)
    state, pullback = mha.vjp(mha.attention_state, q, k, k)
    d = mha.AttentionState(normal(*state.out.shape), normal(*state.lse.shape))
    both = pullback(d)
    parts = pullback(mha.AttentionState(d.out, None)), pullback((None, d.lse))
    for whole, of_out, of_lse in zip(both, *parts, strict=True):
        np.testing.assert_allclose(whole, of_out + of_lse, atol=1e-14)
    assert not np.any(parts[1][2])  # lse does not depend on the values


def test_merged_states_pass_gradients_to_their_parts():
    q, k, v = normal(2, 5, 4), normal(2, 8, 4), normal(2, 8, 4)

    def in_two(q, k, v):
        halves = [mha.attention_state(q, k[:, s, :], v[:, s, :]) for s in (slice(0, 3), slice(3, 8))]
        return mha.merge_states(*halves).out

    out, pullback = mha.vjp(in_two, q, k, v)
    at_once, whole = mha.vjp(mha.scaled_dot_product_attention, q, k, v)
    np.testing.assert_allclose(out, at_once, atol=1e-14)
    d = normal(*out.shape)
    for found, expected in zip(pullback(d), whole(d), strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-13)


def test_a_query_that_sees_nothing_and_a_key_that_is_unseen_have_gradient_0():
    q, k = normal(1, 3, 4), normal(1, 4, 4)
    k[:, 3, :] = np.nan
    mask = np.asarray([[True, True, False, False], [False] * 4, [True, False, True, False]])
    out, pullback = mha.vjp(mha.scaled_dot_product_attention, q, k, k, mask=mask)
    d = normal(*out.shape)
    d[:, 1, :] = np.inf
    d_q, d_k, d_v = pullback(d)
    assert not d_q[:, 1, :].any() and not d_k[:, 3, :].any() and not d_v[:, 3, :].any()
    assert all(np.isfinite(x).all() for x in (d_q, d_k, d_v))


def test_integers_booleans_and_tables_have_no_gradient():
    ids, table = np.asarray([1, 0, 1]), normal(4, 3)
    out, pullback = mha.vjp(mha.embedding, ids, table)
    of_ids, of_table = pullback(np.ones_like(out))
    assert of_ids is None
    np.testing.assert_array_equal(of_table, [[1.0] * 3, [2.0] * 3, [0.0] * 3, [0.0] * 3])
    out, pullback = mha.vjp(mha.rotary, normal(3, 4), normal(3, 2), normal(3, 2), interleaved=False)
    assert [x is None for x in pullback(out)] == [False, True, True]
    out, pullback = mha.vjp(mha.dropout, normal(3), np.asarray([True, False, True]), rate=0.5)
    of_x, of_keep = pullback(np.ones(3))
    assert of_keep is None
    np.testing.assert_array_equal(of_x, [2.0, 0.0, 2.0])


def test_wrt_freezes_weights_and_their_products_are_not_computed(monkeypatch):
    import mha_core.algebra.norms as norms

    layer = mha.FeedForward.init(d_model=4, d_ff=6, seed=0, dtype="float64")
    out, pullback = mha.vjp(layer, normal(3, 4), wrt=lambda name: name == "w_2")
    d_layer, d_x = pullback(np.ones_like(out))
    assert list(d_layer.arrays()) == ["w_2"]
    assert d_x.shape == (3, 4)
    wanted = []
    seen = norms.linear_vjp
    with mha.use_kernel("linear_vjp", "algebra"), monkeypatch.context() as patch:
        recording = mha.vjp(lambda w: mha.linear(normal(3, 4), w, None), normal(4, 2))[1]
        patch.setattr(np, "matmul", lambda *arguments: wanted.append(arguments) or normal(4, 2))
        recording(normal(3, 2))
    assert len(wanted) == 1  # x^T d alone
    assert seen is norms.linear_vjp


def test_wrt_of_an_operation_goes_by_the_names_of_arguments():
    out, pullback = mha.vjp(mha.linear, normal(3, 4), normal(4, 2), normal(2), wrt=lambda name: name != "w")
    d_x, d_w, d_b = pullback(np.ones_like(out))
    assert d_w is None
    assert d_x.shape == (3, 4)
    np.testing.assert_array_equal(d_b, [3.0, 3.0])


def test_a_pullback_gives_the_same_bits_each_time():
    layer, x = small_encoder(), normal(2, 6, 8)
    out, pullback = mha.vjp(layer, x)
    first, second = pullback(out), pullback(out)
    np.testing.assert_array_equal(first[1], second[1])
    for name, d in first[0].arrays().items():
        np.testing.assert_array_equal(d, second[0].arrays()[name])


def test_what_the_result_does_not_depend_on_has_gradient_0():
    out, pullback = mha.vjp(lambda x, y: mha.relu(x), normal(3), normal(2))
    np.testing.assert_array_equal(pullback(out)[1], [0.0, 0.0])


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
    direction = normal(8, 3)

    def at(w):
        return loss(model | {"head": (w, model["head"][1])}, x, scale=2.0)[0]

    assert dot([d_w], [direction]) == pytest.approx(along(at, [model["head"][0]], [direction]), rel=1e-6)
    assert float(value) == pytest.approx(float(at(model["head"][0])))


@installed("torch")
def test_the_same_function_has_the_same_gradients_on_torch():
    encoder, x = small_encoder(activation="gelu"), normal(2, 5, 8)

    def loss(encoder, x):
        y = encoder(x, mask=mha.causal())
        return y.__array_namespace__().mean(y * y) if hasattr(y, "__array_namespace__") else (y * y).mean()

    here, there = (mha.value_and_grad(loss)(encoder.to(name), as_array(name, x)) for name in ("numpy", "torch"))
    assert float(here[0]) == pytest.approx(float(there[0]), rel=1e-12)
    for name, d in here[1].arrays().items():
        np.testing.assert_allclose(d, there[1].arrays()[name].numpy(), atol=1e-12, err_msg=name)


def as_array(backend, x):
    if backend == "numpy":
        return x
    import torch

    return torch.asarray(x)


def test_half_precision_gradients_are_rounded_once():
    x, w = normal(4096, 4, dtype=np.float16), normal(4, 2, dtype=np.float16)
    out, pullback = mha.vjp(mha.linear, x, w, np.zeros(2, np.float16))
    d = normal(*out.shape, dtype=np.float16)
    d_x, d_w, d_b = pullback(d)
    assert d_x.dtype == d_w.dtype == d_b.dtype == np.float16
    np.testing.assert_array_equal(d_w, (x.astype(np.float32).T @ d.astype(np.float32)).astype(np.float16))


def test_explain_shows_the_forward_operations_of_a_vjp():
    found = mha.explain(mha.vjp, small_encoder(), normal(5, 8))
    assert isinstance(found, Explanation)
    assert "encoder_layer_vjp" in {each.op for each in found.walk()}


def test_explain_shows_the_kernels_of_gradients_without_computing():
    layer, x = (
        mha.EncoderLayer.init(d_model=8, num_heads=2, d_ff=16, activation="gelu", seed=0),
        normal(2, 5, 8, dtype=np.float32),
    )
    whole = mha.explain(layer, x, gradients=True)
    assert (whole.op, whole.kernel, whole.calls) == ("encoder_layer_vjp", "chunks", ())
    with mha.use_kernel("encoder_layer_vjp", "algebra"):
        found = mha.explain(layer, x, gradients=True)
    assert found.calls[0].op == "encoder_layer_vjp" and found.calls[0].rejected[0].kernel == "chunks"
    operations = [each.op for each in found.walk()]
    assert operations.count("linear_vjp") == 6
    assert {"attention_vjp", "gelu_vjp", "layer_norm_vjp"} <= set(operations)
    attention = mha.explain("attention", x, x, x, bias=np.zeros((5, 5), np.float32), gradients=True)
    assert [each.op for each in attention.calls] == ["attention", "attention_vjp"]
    assert "d_bias" in attention.calls[1].features


def test_verify_compares_the_kernels_of_gradients():
    layer, x = (
        mha.EncoderLayer.init(d_model=8, num_heads=2, d_ff=16, activation="gelu", seed=0),
        normal(2, 5, 8, dtype=np.float32),
    )
    with mha.verify(seed=0) as done:
        out, pullback = mha.vjp(layer, x)
        pullback(out)
    assert done.calls == sum(done.checked.values())
