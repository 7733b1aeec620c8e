"""Kernels of gradients and updates: what they receive, and that their choice is that of any kernel."""

import numpy as np
import pytest
from sample_kernels import DIFFERENTIABLE, a_kernel, received

import mha_core as mha
from mha_core.dispatch import contract


def pieces(*arrays, **options):
    """Note the arguments, and return zeros."""
    received.append((arrays, options))
    *arguments, _ = arrays
    names = options["wanted"]
    return tuple(np.zeros_like(x) if x is not None and names else None for x in arguments)


def embedding(d_out, ids, *, num_rows):
    received.append(((d_out, ids), {"num_rows": num_rows}))
    return np.ones((num_rows, d_out.shape[-1]))


def attention(problem, state, d_out, d_lse, wanted):
    from mha_core.plugin import AttentionGradients

    received.append(((problem, state, d_out, d_lse, wanted), {}))
    arrays = {"query": problem.query, "key": problem.key, "value": problem.value}
    return AttentionGradients(**{name: np.zeros_like(x) for name, x in arrays.items() if name in wanted})


def adamw(w, gradient, m, v, **numbers):
    received.append(((w, gradient, m, v), numbers))
    return w + 1, m, v


W = np.ones((4, 4))


@pytest.fixture
def installed_here(installed):
    """Return a function that installs a function of this module as a kernel, until the test ends."""
    return lambda op, function, **more: installed(a_kernel(op, load=f"{__name__}:{function}", **more))


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_a_kernel_receives_the_arrays_the_gradient_and_what_is_wanted(installed_here, name):
    op, (_, arrays, options) = name.partition(" ")[0], DIFFERENTIABLE[name]
    installed_here(f"{op}_vjp", "pieces")
    out, pullback = mha.vjp(getattr(mha, op), *arrays, **options)
    d = np.ones_like(out)
    pullback(d)
    ((*received_arrays, d_out), named), fixed = received[-1], {"rotary": {"cos", "sin"}}.get(op, set())
    assert all(a is b for a, b in zip(received_arrays, arrays, strict=True))
    assert d_out is d
    wanted = named.pop("wanted")
    assert len(wanted) == sum(x is not None for x in arrays) - len(fixed) and not wanted & fixed
    assert named == options


def test_an_embedding_kernel_receives_ids_and_the_number_of_rows(installed_here):
    installed_here("embedding_vjp", "embedding")
    ids = np.asarray([0, 2])
    out, pullback = mha.vjp(mha.embedding, ids, np.ones((5, 3)))
    np.testing.assert_array_equal(pullback(out)[1], np.ones((5, 3)))
    assert received[-1][0][1] is ids


def test_an_attention_kernel_receives_the_problem_and_its_state(installed_here):
    installed_here("attention_vjp", "attention", handles=frozenset({"causal"}))
    x = np.ones((2, 3, 4))
    out, pullback = mha.vjp(mha.scaled_dot_product_attention, x, x, x, mask=mha.causal())
    assert not pullback(out)[0].any()
    (problem, state, d_out, d_lse, wanted), _ = received[-1]
    assert problem.structure.band == (None, 0)
    assert state.lse.shape == (2, 3) and d_out is out and d_lse is None
    assert wanted == {"query", "key", "value"}


@pytest.mark.parametrize("feature", ["d_lse", "d_bias", "d_sink", "softcap"])
def test_a_kernel_of_gradients_never_receives_a_feature_that_it_does_not_declare(installed_here, feature):
    installed_here("attention_vjp", "attention", handles=frozenset({"sink", "bias"}))
    x = np.ones((2, 3, 4))
    options = {"d_bias": {"bias": np.ones((3, 3))}, "d_sink": {"sink": np.ones(2)}, "softcap": {"softcap": 2.0}}
    operation = mha.attention_state if feature == "d_lse" else mha.scaled_dot_product_attention
    out, pullback = mha.vjp(operation, x, x, x, **options.get(feature, {}))
    pullback(out)
    assert not received


def test_an_update_kernel_receives_arrays_and_numbers_and_is_planned_once(installed_here):
    installed_here("adamw", "adamw")
    optimiser = mha.AdamW(learning_rate=lambda step: 0.5 + step)
    w = np.ones(3)
    state = optimiser.init(w)
    for step in range(2):
        w, state = optimiser.step(w, np.ones(3), state)
        assert received[-1][1]["step"] == step and received[-1][1]["learning_rate"] == 0.5 + step
    np.testing.assert_array_equal(w, [3.0] * 3)


def test_every_operation_of_gradients_is_tried_here():
    assert set(contract.VJPS) == {*(f"{name.partition(' ')[0]}_vjp" for name in DIFFERENTIABLE), "embedding_vjp"}


def whole(x, w_1, b_1, w_2, b_2, *, activation, wanted, fault=0.0):
    """The result of a feed-forward network without activation, and its pullback."""
    received.append(((x, w_1, b_1, w_2, b_2), {"activation": activation, "wanted": wanted}))
    with mha.use_kernel("feed_forward_vjp", "algebra"):
        out, pullback = mha.vjp(mha.feed_forward, x, w_1, b_1, w_2, b_2, activation=activation)

    def gradients(d):
        d_x, d_w_1, *_ = pullback(d)
        return {"x": d_x * (1 + fault), "w_1": d_w_1}

    return out, gradients


def whole_with_a_fault(*arrays, **options):
    return whole(*arrays, fault=1e-3, **options)


def network(x, w, **options):
    return mha.feed_forward(x, w, None, W, None, **options)


def test_a_kernel_of_a_whole_operation_receives_its_arguments_and_what_is_wanted(installed_here):
    installed_here("feed_forward_vjp", "whole", priority=1)
    x, w = np.full((3, 4), 0.5), W / 3
    out, pullback = mha.vjp(network, x, w, activation="gelu")
    (arrays, options), d = received[-1], np.ones_like(out)
    assert arrays[0] is x and arrays[1] is w and arrays[2] is None
    assert options == {"activation": "gelu", "wanted": {"x", "w_1"}}
    with mha.use_kernel("feed_forward_vjp", "algebra"):
        exact = mha.vjp(network, x, w, activation="gelu")[1](d)
    for a, b in zip(pullback(d), exact, strict=True):
        np.testing.assert_array_equal(a, b)
    assert len(received) == 1


@pytest.mark.parametrize(
    ("function", "activation", "compared"),
    [("whole", "gelu", 2), ("whole_with_a_fault", "gelu", None), ("whole_with_a_fault", "relu", 1)],
)
def test_verify_compares_the_gradients_of_a_whole_operation(installed_here, rng, function, activation, compared):
    """But not where a slope may jump, as that of relu."""
    installed_here("feed_forward_vjp", function, priority=1)
    with mha.verify() as done:
        out, pullback = mha.vjp(network, rng.normal(size=(3, 4)), W / 3, activation=activation)
        assert done.checked["feed_forward_vjp", "sample"] == 1
        if compared is None:
            with pytest.raises(mha.KernelDivergence, match="feed_forward_vjp on numpy"):
                pullback(out)
        else:
            pullback(out)
            assert done.checked["feed_forward_vjp", "sample"] == compared


def test_a_whole_operation_with_a_learned_option_is_computed_by_its_parts(installed_here):
    """A kernel returns the gradients of named arrays; the sink's would be lost."""
    layer, x = mha.EncoderLayer.init(d_model=8, num_heads=2, d_ff=16, seed=0), np.ones((2, 5, 8), np.float32)
    sink = np.zeros(2, np.float32)
    _, pullback = mha.vjp(lambda sink: layer(x, sink=sink), sink)
    assert pullback(np.ones_like(x))[0].shape == (2,)
    explanation = mha.explain(layer, x, sink=sink, gradients=True)
    assert explanation.calls[0].rejected[0].reason == "does not handle recorded"
