"""The second plugin that is never edited: a backend with most fields, kernels for gradients and updates, and an engine."""

import needs
import numpy as np
import pytest

import mha_core as mha
from mha_conformance import oracle
from mha_conformance.oracle import piece_gradients, reference
from mha_conformance.oracle.attention_gradients import attention_gradients
from mha_conformance.oracle.updates import adamw_update
from mha_conformance.ranks import judge
from mha_core import distributed
from mha_core.dispatch.backend import load
from mha_core.plugin import AttentionState
from mha_core.shared import adamw, engine_of

pytestmark = needs.installed("mha_frozen_v1_gradients")
NAME = "frozen_v1_gradients"
ATOL = {"float32": 3e-6, "float64": 1e-13}


@pytest.fixture
def backend():
    return load(NAME)


@pytest.fixture
def calls(backend):
    """The log of the frozen kernels, empty before the test."""
    from mha_frozen_v1_gradients import attention

    attention.calls.clear()
    return attention.calls


def on_backend(arrays):
    return [load(NAME).from_numpy(x) for x in arrays]


def assert_near(got, expected, dtype="float64"):
    """Assert that arrays are those of the plugin, with this dtype and the expected numbers; None where None is expected."""
    for x, y in zip(got, expected, strict=True):
        assert (x is None) == (y is None)
        if y is not None:
            assert type(x).__name__ == "SubArray" and x.dtype == dtype
            np.testing.assert_allclose(load(NAME).to_numpy(x), y, rtol=0, atol=ATOL[np.dtype(dtype).name])


def chosen(op, function, *arrays, gradients=False, **options):
    """Return the kernel for an operation in a call, and the reasons against those of the plugin."""
    explained = mha.explain(function, *arrays, gradients=gradients, **options)
    (found,) = (each for each in explained.walk() if each.op == op)
    assert found.backend == NAME
    return found.kernel, [reason for _, reason in found.rejected]


# attention and its gradients


@pytest.fixture(params=ATOL)
def xyz(request, rng):
    return [rng.normal(size=(2, 3, 5, 4)).astype(request.param) for _ in range(3)]


LENGTHS = np.asarray([3, 0])
EVERY = np.asarray([5, 5])
MASKS = {
    "none": (lambda lengths: None, -9, 9, EVERY),
    "causal": (lambda lengths: mha.causal(), -9, 0, EVERY),
    "window": (lambda lengths: mha.window(1, 1), -1, 1, EVERY),
    "key lengths": (lambda lengths: mha.key_lengths(lengths), -9, 9, LENGTHS),
    "all": (lambda lengths: mha.window(2, 0) & mha.key_lengths(lengths), -2, 0, LENGTHS),
}
"""Masks as functions of the key lengths, the least and the greatest key - query that they show, and the lengths."""


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("towards", [("out",), ("lse",), ("out", "lse")], ids="-".join)
def test_attention_and_its_gradients_are_those_of_plain_numpy(xyz, calls, rng, mask, towards):
    """Query 0 is before every key, by the offset of -1; with key lengths, a batch element sees none."""
    make, low, high, lengths = MASKS[mask]
    distance = np.arange(5) - np.arange(5)[:, None] + 1
    allowed = (low <= distance) & (distance <= high) & (np.arange(5) < lengths[:, None, None, None])
    shapes = {"out": (2, 3, 5, 4), "lse": (2, 3, 5)}
    d = {name: rng.normal(size=shapes[name]).astype(xyz[0].dtype) for name in towards}
    (there,) = on_backend([LENGTHS])
    state, pullback = mha.vjp(mha.attention_state, *on_backend(xyz), mask=make(there), query_offset=-1)
    assert_near(state, oracle.attention(*xyz, allowed=allowed)[:2], xyz[0].dtype)
    gradients = pullback(AttentionState(*(on_backend([d[name]])[0] if name in d else None for name in ("out", "lse"))))
    expected = attention_gradients(*xyz, d.get("out"), d.get("lse"), allowed=allowed)
    assert_near(gradients, [expected[name][0] for name in ("query", "key", "value")], xyz[0].dtype)
    assert calls == ["attention" if lengths is LENGTHS else "prepared", "attention_vjp"]


def test_a_gradient_that_is_not_wanted_is_none(xyz, calls):
    arrays = on_backend(xyz)
    _, pullback = mha.vjp(mha.scaled_dot_product_attention, *arrays, wrt=lambda name: name != "key")
    expected = attention_gradients(*xyz, xyz[1])
    assert_near(pullback(arrays[1]), [expected["query"][0], None, expected["value"][0]], xyz[0].dtype)
    assert calls == ["prepared", "attention_vjp"]


UNDECLARED = {
    "softcap": lambda arrays, extra: {"softcap": 2.0},
    "sink": lambda arrays, extra: {"sink": extra[0]},
    "bias": lambda arrays, extra: {"bias": extra[1]},
    "alibi": lambda arrays, extra: {"bias": mha.alibi(3)},
    "array_mask": lambda arrays, extra: {"mask": extra[1] > 0},
    "packed": lambda arrays, extra: {"mask": mha.packed((2, 3))},
}


@pytest.mark.parametrize("feature", [*MASKS, *UNDECLARED])
def test_the_attention_kernels_get_the_calls_that_they_declare_and_no_others(xyz, calls, rng, feature):
    arrays, extra = on_backend(xyz), on_backend([rng.normal(size=shape).astype(xyz[0].dtype) for shape in ((3,), (5, 5))])
    declared = feature in MASKS
    options = {"mask": MASKS[feature][0](on_backend([LENGTHS])[0])} if declared else UNDECLARED[feature](arrays, extra)
    of_vjp = ", ".join(sorted({feature, f"d_{feature}"})) if feature in ("bias", "sink") else feature
    for op, missing in (("attention", feature), ("attention_vjp", of_vjp)):
        kernel, reasons = chosen(op, "attention", *arrays, gradients=True, **options)
        assert (kernel, reasons) == (("scores", []) if declared else (None, [f"does not handle {missing}"]))
    _, pullback = mha.vjp(mha.scaled_dot_product_attention, *arrays, **options)
    pullback(arrays[0])
    assert bool(calls) == declared


def test_grouped_queries_and_wide_values_are_not_declared(xyz, calls):
    query, key, value = on_backend(xyz)
    assert chosen("attention", "attention", query, key[:, :1], value[:, :1]) == (None, ["does not handle grouped_query"])
    assert chosen("attention", "attention", query, key, value[..., :2]) == (None, ["does not handle value_dim"])
    assert chosen("attention", "attention", query, key[:1], value) == (None, ["does not handle broadcast"])


def test_supports_is_asked_with_the_standard_name_of_the_dtype_and_the_shapes(backend, calls):
    half = backend.xp.ones((1, 2, 4), dtype=backend.xp.float16)
    long = backend.xp.ones((1, 257, 4), dtype=backend.xp.float32)
    for op, gradients in (("attention", False), ("attention_vjp", True)):
        for x, reason in ((half, "float32 and float64, not float16"), (long, "all scores at once, which are too many")):
            kernel, (why,) = chosen(op, "attention", x, x, x, gradients=gradients)
            assert kernel is None and why.endswith(reason)
    assert chosen("attention", "attention", long[:, :256], long[:, :256], long[:, :256]) == ("scores", [])
    mha.scaled_dot_product_attention(half, half, half)
    assert not calls


# layers, embeddings and updates


@pytest.fixture
def layer_arrays(rng):
    """x, w_1, b_1, w_2 and b_2 of a feed-forward layer."""
    return [rng.normal(size=shape) for shape in ((2, 3, 4), (4, 6), (6,), (6, 5), (5,))]


def test_the_gradients_of_a_linear_map_are_those_of_plain_numpy(layer_arrays, calls, rng):
    x, w, b = layer_arrays[:3]
    d = rng.normal(size=(2, 3, 6))
    for arrays in ((x, w, b), (x, w)):
        got = mha.vjp(mha.linear, *on_backend(arrays))[1](*on_backend([d]))
        assert_near(got, [exact for exact, _ in piece_gradients.linear(d, *arrays).values()])
    assert calls == ["linear_vjp"] * 2
    half = [y.astype("float16") for y in on_backend([x, w, b])]
    assert chosen("linear_vjp", "linear", *half, gradients=True) == ("products", []), "without supports, any dtype"


@pytest.mark.parametrize("activation", ["relu", "silu"])
def test_a_feed_forward_layer_and_its_gradients_are_those_of_plain_numpy(layer_arrays, calls, rng, activation):
    """The pullback is called twice; without biases, and with a weight that is not wanted."""
    ds = [rng.normal(size=(2, 3, 5)) for _ in range(2)]
    x, w_1, _, w_2, _ = layer_arrays
    for arrays, wrt in ((layer_arrays, None), ([x, w_1, None, w_2, None], lambda name: name != "w_2")):
        given = [None if a is None else on_backend([a])[0] for a in arrays]
        got, pullback = mha.vjp(mha.feed_forward, *given, activation=activation, wrt=wrt)
        z = reference.linear(x, w_1, arrays[2])
        hidden = getattr(reference, activation)(z)
        assert_near([got], [reference.linear(hidden, w_2, arrays[4])])
        for d in ds:
            second = piece_gradients.linear(d, hidden, w_2, arrays[4])
            dz = getattr(piece_gradients, activation)(second["x"][0], z)["x"][0]
            first = piece_gradients.linear(dz, x, w_1, arrays[2])
            pairs = [step.get(name) for step, name in zip([first] * 3 + [second] * 2, "xwbwb", strict=True)]
            every = [pair and pair[0] for pair in pairs]
            assert_near(pullback(*on_backend([d])), every if wrt is None else [*every[:3], None, None])
    assert calls == ["feed_forward_vjp", "pullback", "pullback"] * 2


def test_other_feed_forward_layers_are_refused(layer_arrays, calls):
    arrays = on_backend(layer_arrays)
    for options, reason in (
        ({"activation": "gelu"}, "knows relu and silu, not gelu"),
        ({"activation": "silu", "w_g": arrays[1]}, "does not handle gate"),
    ):
        out, pullback = mha.vjp(mha.feed_forward, *arrays, **options)
        pullback(out)
        with mha.use_kernel("feed_forward_vjp", "whole"), pytest.raises(mha.KernelUnsupported, match=reason):
            mha.vjp(mha.feed_forward, *arrays, **options)
    assert calls == ["linear_vjp"] * 5


def test_the_embedding_kernel_runs_only_on_demand(calls, rng):
    ids, table, d = np.asarray([[0, 2, 0], [-1, 1, 1]]), rng.normal(size=(4, 3)), rng.normal(size=(2, 3, 3))
    expected = [None, piece_gradients.embedding(d, ids, table)["table"][0]]
    given = on_backend([ids, table])
    reason = "is chosen only by use_kernel('embedding_vjp', 'add_at'): adds one row after another"
    assert chosen("embedding_vjp", mha.embedding, *given, gradients=True) == (None, [reason])
    assert not calls
    with mha.use_kernel("embedding_vjp", "add_at"):
        assert_near(mha.vjp(mha.embedding, *given)[1](*on_backend([d])), expected)
    assert calls == ["embedding_vjp"]


def test_the_update_of_adamw_is_that_of_plain_numpy_and_writes_into_its_moments(calls, rng):
    """The scale of the gradient may be an array."""
    w, gradient, m, v = (rng.normal(size=(3, 4)) ** 2 for _ in range(4))
    settings = {"learning_rate": 0.1, "beta_1": 0.5, "beta_2": 0.7, "eps": 1e-8, "weight_decay": 0.01, "step": 2}
    expected = [exact for exact, _ in adamw_update(w, gradient, m, v, dtype="float64", gradient_scale=0.25, **settings)]
    arrays = on_backend([w, gradient, m.copy(), v.copy()])
    got = adamw(*arrays, gradient_scale=on_backend([np.asarray(0.25)])[0], **settings)
    assert_near(got, expected)
    assert got[1] is arrays[2] and got[2] is arrays[3]
    assert calls == ["adamw"]


def test_a_step_of_training_goes_through_the_kernels_and_ends_where_numpy_does(calls, rng):
    x = rng.normal(size=(2, 5, 8))

    def loss(layer, x):
        y = layer(x, mask=mha.causal())
        return y.__array_namespace__().sum(y**4)

    weights = []
    for name, arrays in (("numpy", [x]), (NAME, on_backend([x]))):
        layer = mha.EncoderLayer.init(d_model=8, num_heads=2, d_ff=6, seed=0, dtype="float64", backend=name)
        optimiser = mha.AdamW(learning_rate=0.01, eps=1.0)  # large, since some gradients are 0 but for rounding
        _, gradient = mha.value_and_grad(loss)(layer, *arrays)
        layer, _ = optimiser.step(layer, gradient, optimiser.init(layer))
        weights.append(layer.arrays())
    assert weights[0].keys() == weights[1].keys()
    for name, w in weights[0].items():
        np.testing.assert_allclose(load(NAME).to_numpy(weights[1][name]), w, rtol=0, atol=1e-12, err_msg=name)
    assert set(calls) >= {"prepared", "attention_vjp", "linear_vjp", "feed_forward_vjp", "pullback", "adamw"}


# fields of the backend


def test_a_state_of_the_library_reaches_only_the_kernels_that_declare_it(xyz, layer_arrays, calls):
    """Those that are made of the library's own functions, which are traced."""
    from mha_frozen_v1_gradients.states import trace, within

    x, w, b = on_backend(layer_arrays[:3])
    with within("traced"):
        assert chosen("linear_vjp", "linear", x, w, b, gradients=True) == ("products", [])
        assert chosen("attention", "attention", *on_backend(xyz)) == (None, ["does not handle traced"])
        expected = mha.linear(x, w, b)
        trace.clear()
        mha.vjp(mha.linear, x, w, b)[1](expected)
    assert trace.count("sum") == 1 and trace.count("matrix_transpose") == 2
    assert calls == ["linear_vjp"]
    mha.scaled_dot_product_attention(*on_backend(xyz))
    assert calls == ["linear_vjp", "prepared"], "the plan of one state is not that of another"


def test_a_state_that_rounds_is_left_while_an_operation_runs(backend, layer_arrays, calls):
    from mha_frozen_v1_gradients.states import within

    x, w, b = on_backend(layer_arrays[:3])
    exact, pullback = mha.vjp(mha.linear, x, w, b)
    gradients = pullback(exact)
    with within("coarse"):
        assert (backend.xp.matmul(x, w) != x @ w).all()
        assert chosen("linear_vjp", "linear", x, w, b, gradients=True) == ("products", [])
        got, pullback = mha.vjp(mha.linear, x, w, b)
        assert_near([got, *pullback(exact)], [backend.to_numpy(a) for a in (exact, *gradients)])


def test_an_array_that_is_written_to_before_its_gradients_is_noticed(layer_arrays):
    x, w, b = on_backend(layer_arrays[:3])
    out, pullback = mha.vjp(mha.linear, x, w, b)
    pullback(out)
    x[0, 0, 0] = 7.0
    with pytest.raises(RuntimeError, match="was written to after it was used"):
        pullback(out)


def test_the_lines_of_the_plugin_are_in_errors(backend, layer_arrays):
    x, w = on_backend(layer_arrays[:2])
    with pytest.raises(TypeError, match=r"x has dtype >f8, whose bytes are swapped: write .astype\('float64'\)"):
        mha.linear(x.astype(">f8"), w)
    with pytest.raises(TypeError, match=r"write w = w.astype\(mha_frozen_v1_gradients.arrays.float64\)"):
        mha.linear(x, w.astype("float32"))
    with pytest.raises(mha.BackendMismatch, match=r"write w = mha_frozen_v1_gradients.arrays.asarray\(w\)"):
        mha.linear(x, layer_arrays[1])
    (missing,) = (each for each in mha.explain("gelu", x).rejected if each.kernel == "compiled")
    assert missing.reason == "is not installed: pip install mha-frozen-v1-compiled"


def test_threads_and_dtypes_and_devices_are_the_plugin_s(backend):
    from mha_frozen_v1_gradients import threads

    try:
        mha.set_num_threads(3)
        assert threads.count == 3
    finally:
        mha.set_num_threads(None)
    assert threads.count == 2
    with mha.use_backend(NAME):
        seen = list(backend.parallel(lambda n: (n, type(mha.sinusoidal_positions(2, 4)).__name__), range(9)))
    assert seen == [(n, "SubArray") for n in range(9)]
    assert backend.is_floating(np.dtype("float16")) and not backend.is_floating(np.dtype("int8"))
    assert (backend.record.devices(), backend.record.versions()) == (["cpu"], {"mha-frozen-v1-gradients": "1.0.0"})


# the engine


@pytest.mark.parametrize("size", [2, 3])
def test_the_engine_is_found_and_does_what_it_must(size):
    from mha_frozen_v1_gradients.ranks import Ranks, run

    def judged(group):
        assert type(engine_of(group)) is Ranks
        return judge(group, NAME)

    checks = run(size, judged, timeout=20)
    assert len(checks) == size
    assert all({"shift", "all_to_all", "gradients", "ranks that differ"} <= set(each) for each in checks)


def test_a_ring_of_its_ranks_attends_as_one_process_does_with_its_kernels(calls, rng):
    """A rank's gradients come from a state over the keys of all ranks."""
    from mha_frozen_v1_gradients.ranks import run

    *arrays, d = (rng.normal(size=(2, 3, 12, 4)) for _ in range(4))
    causal = np.tri(12, dtype=bool)
    gradients = attention_gradients(*arrays, d, allowed=causal)
    expected = [oracle.attention(*arrays, allowed=causal)[0], *(gradients[name][0] for name in ("query", "key", "value"))]

    def part(group):
        query, key, value, d_out = (distributed.shard(x, "zigzag", group=group) for x in on_backend([*arrays, d]))
        options = {"group": group, "layout": "zigzag", "mask": mha.causal()}
        state, pullback = mha.vjp(distributed.ring_attention, query, key, value, **options)
        results = [state.out, *pullback(AttentionState(d_out, None))]
        return [distributed.unshard(x, "zigzag", group=group) for x in results]

    for of_rank in run(3, part):
        assert_near(of_rank, expected)
    assert {"prepared", "attention_vjp"} == set(calls)
