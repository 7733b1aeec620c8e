"""Conformance's oracles of the gradients of pieces and layers equal complex-step derivatives and central differences."""

from functools import partial
from itertools import chain, islice, pairwise

import needs
import numpy as np
import pytest
from complex_step import assert_derivatives

import mha_core as mha
from mha_conformance.cases.layer_gradients import gradients_of
from mha_conformance.cases.layer_problem import plain_layer_problem
from mha_conformance.cases.piece_gradients import DIFFERENTIABLE, axes_of_piece_gradients, piece_gradient_problem
from mha_conformance.cases.pieces import NAMES
from mha_conformance.judge.designed import design_of, drawn
from mha_conformance.oracle import piece_gradients, reference
from mha_conformance.oracle.attention_gradients import merge_gradients
from mha_conformance.oracle.layers import Layers, bounded
from mha_conformance.oracle.tolerance import LARGEST, compared
from mha_core.layers.rotary import Rotary

pytestmark = pytest.mark.full

# pieces


def complex_piece(op, arrays, options):
    """Return the result of a piece by a formula for complex arrays."""
    given = [arrays.get(name) for name in NAMES[op]]
    if op == "relu":
        return np.where(given[0].real > 0, given[0], 0)
    if op == "embedding":
        return arrays["table"][arrays["ids"]]
    if op == "gelu" and options.get("approximate") != "tanh":
        import mpmath

        with mpmath.workdps(60):
            below = np.vectorize(lambda x: complex(mpmath.erfc(-mpmath.mpc(x) / mpmath.sqrt(2))), otypes=[complex])(given[0])
        return given[0] * below / 2
    return getattr(reference, op)(*given, **options)


@needs.installed("mpmath")
@pytest.mark.parametrize("op", DIFFERENTIABLE)
def test_the_gradients_of_pieces_equal_complex_step_derivatives(op):
    rng = np.random.default_rng(6)
    design = design_of(f"{op}_vjp", (), "float64", rng, more={"room": ("small",), "infinite": (False,)})
    few = (row for row in chain(design, design.random(rng)) if "many" not in str(row["rows"]))
    for row in islice(few, 40):
        problem = drawn(f"{op}_vjp", row, rng, rng)
        gradients = piece_gradients.GRADIENTS[op](
            problem.floats["d"], *problem.arguments({**problem.floats, **problem.others}), **problem.options
        )
        if op == "gelu" and problem.floats["x"].size > 100:
            continue  # erf of many complex numbers is slow
        given = {name: x.astype(complex) for name, x in problem.floats.items()} | problem.others

        def value(arrays, problem=problem):
            return (complex_piece(op, arrays, problem.options) * problem.floats["d"]).sum()

        bounded = piece_gradients.bounded(gradients, "float64")
        exact, bounds = ({name: both[at] for name, both in bounded.items()} for at in (0, 1))
        assert_derivatives(value, given, exact, rng, bounds)


@pytest.mark.parametrize("op", ["gelu", "relu", "silu"])
def test_the_slope_at_infinity_is_its_limit_and_nan_stays_nan(op):
    x = np.asarray([np.inf, -np.inf, np.nan])
    gradients = piece_gradients.GRADIENTS[op](np.full(3, 3.0), x, **({"approximate": "tanh"} if op == "gelu" else {}))
    exact, bound = piece_gradients.bounded(gradients, "float32")["x"]
    np.testing.assert_allclose(exact, [3, 0, np.nan], rtol=0, atol=1e-15)
    assert (bound < 0.03).all() and bound[2] == 0


@pytest.mark.parametrize("op", DIFFERENTIABLE)
def test_an_error_of_a_thousandth_exceeds_the_bounds_of_pieces(op):
    rng = np.random.default_rng(7)
    axes = {name: values[0] for name, values in axes_of_piece_gradients(op).items()} | {"spread": 1.0}
    row = axes | {"rows": (3,), "width": 64, **({"outputs": 17, "b": True} if op == "linear" else {})}
    problem = piece_gradient_problem(op, row | ({"parts": "weight"} if "parts" in axes else {}), rng)
    for name, (x, bound) in problem.expected(problem.floats, "float32", rounds_weights=False).items():
        assert np.mean(np.abs(1e-3 * x) > bound) >= 0.9 * np.mean(x != 0), name


def test_the_gradients_of_dropout_and_merged_states_equal_complex_step_derivatives():
    rng = np.random.default_rng(8)
    x, d = rng.normal(size=(2, 5, 4))
    keep = rng.random((5, 4)) < 0.5
    assert (piece_gradients.dropout(d, x, keep, rate=0.25)["x"][0] == np.where(keep, d / 0.75, 0)).all()
    outs, lses = rng.normal(size=(3, 2, 5, 4)), 3 * rng.normal(size=(3, 2, 5))
    d_out, d_lse = rng.normal(size=(2, 5, 4)), rng.normal(size=(2, 5))

    def value(arrays):
        top = np.max(arrays["lses"].real, axis=0)
        e = np.exp(arrays["lses"] - top)
        out, lse = (e[..., None] * arrays["outs"]).sum(axis=0) / e.sum(axis=0)[..., None], top + np.log(e.sum(axis=0))
        return (out * d_out).sum() + (lse * d_lse).sum()

    found = merge_gradients(list(outs), list(lses), d_out, d_lse)
    gradients = {"outs": np.stack([out for (out, _), _ in found]), "lses": np.stack([lse for _, (lse, _) in found])}
    assert_derivatives(value, {"outs": outs, "lses": lses}, gradients, rng)


# layers


def layer(kind, **settings):
    made = getattr(mha, kind).init(d_model=8, num_heads=4, seed=0, dtype="float64", **settings)
    rng = np.random.default_rng(9)
    return made.map(lambda x: x + 0.3 * rng.normal(size=x.shape))


def replaced(made, **changes):
    return type(made)(**{**vars(made), **changes})


def central(compute, arrays, name, direction):
    """Return the derivative along a direction by central differences, of the fourth order."""
    step = 1e-4

    def at(by):
        return compute({**arrays, name: arrays[name] + by * step * direction})

    return (8 * (at(1) - at(-1)) - (at(2) - at(-2))) / (12 * step)


def with_arrays(made, arrays, prefix=""):
    """Return a layer with other arrays, by dotted name."""
    names = iter(made.arrays())
    return made.map(lambda x: arrays[next(names)])


ENCODER = {"d_ff": 12, "activation": "gelu"}
LAYERS = {
    "grouped heads": (partial(layer, "MultiHeadAttention", num_kv_heads=2), "multi_head", {}),
    "encoder layer": (partial(layer, "EncoderLayer", **ENCODER), "encoder_layer", {"kept": True}),
    "pre-norm": (partial(layer, "EncoderLayer", norm_first=True, **ENCODER), "encoder_layer", {"kept": True}),
    "encoder": (partial(layer, "Encoder", num_layers=2, norm_first=True, **ENCODER), "encoder", {}),
    "decoder layer": (partial(layer, "DecoderLayer", **ENCODER), "decoder_layer", {"memory": True}),
    "decoder": (partial(layer, "Decoder", num_layers=2, norm_first=True, **ENCODER), "decoder", {"memory": True}),
    "gate": (lambda: gated("silu"), "feed_forward", {}),
    "rotary": (lambda: rotated(), "multi_head", {"offset": 2}),
    "RMSNorm": (
        lambda: replaced(layer("EncoderLayer", **ENCODER), norm_1=mha.RMSNorm(np.full(8, 1.3), 1e-5)),
        "encoder_layer",
        {},
    ),
    "norms of heads": (lambda: normed_heads(rotary=True), "multi_head", {"offset": 2}),
    "norms after sublayers": (lambda: normed(norm_first=True), "encoder_layer", {"kept": True}),
    "no first norm": (
        lambda: replaced(layer("EncoderLayer", norm_first=True, **ENCODER), norm_1=mha.Identity()),
        "encoder_layer",
        {},
    ),
}


def gated(activation):
    made = mha.FeedForward.init(d_model=8, d_ff=12, activation=activation, seed=1, dtype="float64")
    return replaced(made, w_g=0.7 * made.w_1[:, ::-1], b_g=made.b_1 + 0.2)


def rotated():
    return replaced(layer("MultiHeadAttention"), rotary=Rotary.init(max_length=9, dim=2, interleaved=True, dtype="float64"))


def normed_heads(rotary=False):
    made = rotated() if rotary else layer("MultiHeadAttention")
    width, rng = made.w_q.shape[1] // made.num_heads, np.random.default_rng(3)
    norm_q, norm_k = (mha.RMSNorm(rng.normal(size=width), 1e-2), mha.LayerNorm(*rng.normal(size=(2, width)), 1e-2))
    return replaced(made, norm_q=norm_q, norm_k=norm_k)


def normed(norm_first):
    made = layer("EncoderLayer", norm_first=norm_first, **ENCODER)
    return replaced(made, post_norm_1=mha.RMSNorm(np.full(8, 1.3), 1e-5), post_norm_2=mha.LayerNorm(*np.full((2, 8), 0.7)))


def assert_equal_central_differences(compute, arrays, rng):
    """Compare the gradients of ``compute``, a function of layers and of arrays by name, along a direction of each array."""
    layers = Layers()
    y = compute(layers, arrays)
    d = rng.normal(size=y.shape)
    gradients = layers.gradients(y, d, of=arrays)
    assert gradients.keys() == arrays.keys() - {"rotary.cos", "rotary.sin"}
    for name, gradient in gradients.items():
        direction = rng.normal(size=gradient.shape)
        expected = (central(partial(compute, Layers()), arrays, name, direction) * d).sum()
        assert abs((gradient * direction).sum() - expected) <= 1e-8 * (1 + np.abs(gradient * direction).sum()), name


@pytest.mark.parametrize("name", LAYERS)
def test_the_gradients_of_layers_equal_central_differences(name):
    make, operation, given = LAYERS[name]
    made, rng = make(), np.random.default_rng(10)
    arrays = {"x": rng.normal(size=(2, 5, 8)), **made.arrays()}
    arrays |= {"memory": rng.normal(size=(2, 6, 8))} if given.get("memory") else {}
    kept = {each: (rng.random((2, 5, 8)) < 0.7) / 0.7 for each in ("attention", "feed_forward")}

    def compute(layers, arrays):
        options = {key: given[key] for key in ("offset",) if key in given}
        options |= {"kept": kept} if "kept" in given else {}
        options |= {"memory": arrays["memory"]} if "memory" in given else {}
        return getattr(layers, operation)(arrays["x"], with_arrays(made, arrays), **options)

    assert_equal_central_differences(compute, arrays, rng)


def test_a_layer_with_contexts_a_bias_and_a_sink_equals_central_differences():
    made, rng = layer("MultiHeadAttention", num_kv_heads=2), np.random.default_rng(11)
    shapes = {"x": (2, 5, 8), "context": (2, 6, 8), "value_context": (2, 6, 8), "bias": (4, 1, 6), "sink": (4,)}
    arrays = {name: rng.normal(size=shape) for name, shape in shapes.items()}
    assert_equal_central_differences(lambda layers, arrays: layers.multi_head(net=made, **arrays), arrays, rng)


@pytest.mark.parametrize(("hidden", "is_uncertain"), [(2.0**-23, True), (2.0**-14, False)])
def test_relu_may_have_either_slope_only_where_the_sign_is_a_matter_of_rounding(hidden, is_uncertain):
    """A hidden feature beside one of 1, at a few roundings of it and beyond: without it, the gradient of x is another."""
    net = mha.FeedForward(w_1=np.asarray([[1.0, hidden]]), b_1=None, w_2=np.ones((2, 1)), b_2=None, activation="relu")
    x = np.ones((1, 1))

    def gradients(layers):
        y = layers.feed_forward(x, net)
        return layers.gradients(y, np.ones((1, 1)), of={"w_1": net.w_1})

    exact, bound = bounded(gradients, "float32", rounds_weights=False, rng=np.random.default_rng(0))["w_1"]
    assert exact.tolist() == [[1, 1]]
    assert (bound[0, 1] >= 1) == is_uncertain


@pytest.mark.parametrize(("dtype", "stages"), [("float32", 2), ("float16", 4)])
def test_each_bound_is_at_least_as_wide_as_the_one_before(dtype, stages):
    problem = gradients_of(plain_layer_problem("encoder_layer", np.random.default_rng(12)), np.random.default_rng(13))
    expected = [*problem.bounds(problem.floats, dtype, rounds_weights=False)]
    assert len(expected) == stages
    for before, after in pairwise(expected):
        for name, (x, bound) in after.items():
            assert (before[name][0] == x).all() and (before[name][1] <= bound).all(), name
    assert str(problem.expected(problem.floats, dtype, rounds_weights=False)) == str(expected[-1])


@pytest.mark.parametrize(("dtype", "is_known"), [("float32", True), ("float16", False)])
def test_what_follows_from_a_number_beyond_the_largest_is_not_known(dtype, is_known):
    """The gradient of a norm of 1e-4 is 1e4 times that of its result; a product with 1e-3 makes it small again."""
    x, small, norm = np.asarray([[0.1, -0.2, 0.3]]), np.full((1, 3), 1e-3), mha.RMSNorm(None, 1e-12)

    def gradients(layers):
        y = layers.norm(layers.product(x, small), norm)
        return layers.gradients(y, np.asarray([[16.0, 32.0, -64.0]]), of={"x": x}) | {"y": y}

    expected = bounded(gradients, dtype, rounds_weights=False, rng=np.random.default_rng(0))
    assert np.isfinite(expected["y"][1]).all(), "the result has no step beyond the largest"
    assert np.isfinite(expected["x"][1]).all() == is_known and (np.abs(expected["x"][0]) < 1000).all()
    for wrong in (np.nan, np.inf, 0.0):
        got = compared("d_x", np.full((1, 3), wrong), *expected["x"], LARGEST[dtype])
        assert (got.wrong & (got.excess > 1)).all() == is_known
        assert got.wrong.any() == (got.excess > 0).any() == is_known
