"""Kernels of gradients and updates: what they receive, and that their choice is that of any kernel."""

import numpy as np
import pytest

import mha_core as mha
from mha_core.dispatch import contract
from sample_kernels import a_kernel

received = []


def pieces(*arrays, **options):
    """Note the arguments, and return zeros."""
    received.append((arrays, options))
    *given, _ = arrays
    names = options["wanted"]
    return tuple(np.zeros_like(x) if x is not None and names else None for x in given)


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


X, W, B = np.ones((3, 4)), np.ones((4, 4)), np.ones(4)
TABLE = np.ones((3, 2))
CALLS = {
    "linear": (mha.linear, (X, W, B), {}, {}),
    "layer_norm": (mha.layer_norm, (X, B, B), {"eps": 0.5}, {"eps": 0.5}),
    "rms_norm": (mha.rms_norm, (X, B), {}, {"eps": 1e-5}),
    "gelu": (mha.gelu, (X,), {"approximate": "tanh"}, {"approximate": "tanh"}),
    "relu": (mha.relu, (X,), {}, {}),
    "silu": (mha.silu, (X,), {}, {}),
    "rotary": (mha.rotary, (X, TABLE, TABLE), {"interleaved": True}, {"interleaved": True}),
}


@pytest.fixture
def installed_here(installed):
    received.clear()

    def install(op, function, **more):
        installed(a_kernel(op, load=f"{__name__}:{function}", **more))

    return install


@pytest.mark.parametrize("op", CALLS)
def test_a_kernel_receives_the_arrays_the_gradient_and_what_is_wanted(installed_here, op):
    installed_here(f"{op}_vjp", "pieces")
    operation, arrays, options, expected = CALLS[op]
    out, pullback = mha.vjp(operation, *arrays, **options)
    d = np.ones_like(out)
    pullback(d)
    ((*given, d_out), named), fixed = received[-1], {"rotary": {"cos", "sin"}}.get(op, set())
    assert all(a is b for a, b in zip(given, arrays, strict=True))
    assert d_out is d
    wanted = named.pop("wanted")
    assert len(wanted) == len(arrays) - len(fixed) and not wanted & fixed
    assert named == expected


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
    assert set(contract.VJPS) == {*(f"{name}_vjp" for name in CALLS), "embedding_vjp"}
