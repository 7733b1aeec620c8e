"""Gradients of pieces and AdamW of mha_cupy, each a sequence of launches and products, with their CUDA run on the host.

The calls of the conformance suite (test_conformance.py) are short; these have long rows, many rows, long runs, and every
subset of what is wanted.
"""

from itertools import combinations

import cuda_on_host
import numpy as np
import pytest
from cuda_kernels import DTYPES, each_dtype, needs_compiler, wide

from mha_conformance.oracle import piece_gradients
from mha_conformance.oracle.tolerance import assert_within
from mha_core.dispatch.contract import Call
from mha_cupy import activations, columns, linear_vjp, norms_vjp, products, rotary, updates

pytestmark = needs_compiler


def judge(function, exact, d, arrays, **options):
    """Check every subset of the gradients, by name, and that they are the same bits each time; return all."""
    names = [name for name, x in arrays.items() if x is not None]
    oracle = piece_gradients.bounded(exact(*(wide(x) for x in (d, *arrays.values())), **options), d.dtype.name)
    bits = {}
    for size in range(1, len(names) + 1):
        for chosen in combinations(names, size):
            got = dict(zip(arrays, function(*arrays.values(), d, wanted=frozenset(chosen), **options), strict=True))
            for name, x in got.items():
                assert (x is not None) == (name in chosen), name
                if x is not None:
                    assert x.shape == arrays[name].shape and x.dtype == d.dtype
                    assert_within(f"d_{name}", x, *oracle[name])
                    assert bits.setdefault(name, x.tobytes()) == x.tobytes(), f"{name} has other bits beside other gradients"
    return bits


@pytest.mark.parametrize(("dtype", "length"), [("float32", n) for n in (1, 7, 256, 4096, 8200, 20000)] + [("float16", 4096)])
def test_norms_of_rows_of_any_length(dtype, rng, length):
    x, d = (rng.normal(size=(3, length)).astype(DTYPES[dtype]) for _ in range(2))
    weight, bias = (rng.normal(size=length).astype(x.dtype) for _ in range(2))
    judge(norms_vjp.layer_norm_vjp, piece_gradients.layer_norm, d, {"x": x, "weight": weight, "bias": bias}, eps=1e-5)
    judge(norms_vjp.rms_norm_vjp, piece_gradients.rms_norm, d, {"x": x, "weight": weight}, eps=1e-5)


@each_dtype
@pytest.mark.parametrize("count", [1, 9, 64, 65, 200, 4200])
def test_norms_of_any_number_of_rows(dtype, rng, count):
    """Weights and biases are summed over chunks of 64 rows or more, at most 64 of them."""
    x, d = (rng.normal(size=(count, 20)).astype(DTYPES[dtype]) for _ in range(2))
    weight, bias = (rng.normal(size=20).astype(x.dtype) for _ in range(2))
    judge(norms_vjp.layer_norm_vjp, piece_gradients.layer_norm, d, {"x": x, "weight": weight, "bias": bias}, eps=0.1)
    judge(norms_vjp.layer_norm_vjp, piece_gradients.layer_norm, d, {"x": x, "weight": None, "bias": bias}, eps=0.1)
    judge(norms_vjp.rms_norm_vjp, piece_gradients.rms_norm, d, {"x": x, "weight": None}, eps=0.1)


def test_arrays_of_any_strides_and_axes(rng):
    whole = rng.normal(size=(6, 4, 24)).astype(np.float32)
    weight = rng.normal(size=48).astype(np.float32)[::2]
    for x, d in ((whole[::-1], whole), (whole.transpose(1, 0, 2), whole.reshape(4, 6, 24)), (whole[:, 0], whole[:, 1])):
        judge(norms_vjp.layer_norm_vjp, piece_gradients.layer_norm, d, {"x": x, "weight": weight, "bias": weight}, eps=0.1)
        judge(activations.silu_vjp, piece_gradients.silu, d, {"x": x})
        w = rng.normal(size=(24, 7)).astype(np.float32)
        judge(linear_vjp.linear_vjp, piece_gradients.linear, d @ w, {"x": x, "w": w, "b": w[0]})
        turned = np.asfortranarray(w)
        judge(linear_vjp.linear_vjp, piece_gradients.linear, (d @ w)[..., ::-1], {"x": x, "w": turned, "b": w[0, ::-1]})


@each_dtype
def test_slopes_far_out_are_0_or_1_and_nan_stays(dtype):
    x = np.asarray([np.inf, -np.inf, np.nan, 1e4, -1e4, 100, -100, 0], dtype=DTYPES[dtype])
    d = np.full_like(x, 3)
    functions = {
        "relu": (activations.relu_vjp, {}, 0),
        "gelu": (activations.gelu_vjp, {"approximate": "none"}, 1.5),
        "gelu_tanh": (activations.gelu_vjp, {"approximate": "tanh"}, 1.5),
        "silu": (activations.silu_vjp, {}, 1.5),
    }
    for name, (function, options, at_0) in functions.items():
        (got,) = function(x, d, wanted=frozenset({"x"}), **options)
        assert np.isnan(got[2]), name
        np.testing.assert_allclose(got[[0, 3, 5]].astype(float), 3, rtol=1e-6, err_msg=name)
        np.testing.assert_allclose(got[[1, 4, 6, 7]].astype(float), [0, 0, 0, at_0], atol=1e-30, err_msg=name)


@each_dtype
def test_embeddings_with_long_runs_and_rows_that_nobody_asked_for(dtype, rng):
    ids = np.concatenate([np.full(500, 3), rng.integers(0, 9, size=100), [-1, -9, 8]]).astype(np.int32)
    rng.shuffle(ids)
    for length in (1, 20, 300):
        d = rng.normal(size=(*ids.shape, length)).astype(DTYPES[dtype])
        got = linear_vjp.embedding_vjp(d, ids, num_rows=12)
        exact = piece_gradients.bounded(piece_gradients.embedding(wide(d), ids, np.zeros((12, length))), d.dtype.name)
        assert_within("d_table", got, *exact["table"])
        assert got.tobytes() == linear_vjp.embedding_vjp(d, ids, num_rows=12).tobytes()


@each_dtype
@pytest.mark.parametrize("shape", [(), (7,), (100, 30)])
def test_adamw_updates_m_and_v_in_place(dtype, rng, shape):
    """The scale is a number, or an array that the host need not know. Strides do not matter."""
    numbers = {"learning_rate": 0.1, "beta_1": 0.9, "beta_2": 0.99, "eps": 1e-3, "weight_decay": 0.1, "step": 2}
    kind = np.float64 if dtype == "float64" else np.float32  # half precision has m and v in float32
    w, g = (np.asarray(rng.normal(size=shape)).astype(DTYPES[dtype]) for _ in range(2))
    m, v = (np.asarray(rng.random(size=shape)).astype(kind) for _ in range(2))
    results = []
    for scale in (0.25, np.asarray(0.25, dtype=kind)):
        for x in ([w, g, m.copy(), v.copy()], [w.T, g.T, m.T.copy(), v.T.copy()]):
            new = updates.adamw(*x, **numbers, gradient_scale=scale)
            assert new[1] is x[2] and new[2] is x[3]
            results.append([y if x[0] is w else y.T for y in new])
    for other in results[1:]:
        assert all((x == y).all() for x, y in zip(results[0], other, strict=True))


def test_nothing_is_written_beyond_the_results(rng):
    """More packs than a thread block has threads, and not a multiple of them."""
    x, d = (rng.normal(size=(290, 34)).astype(np.float32) for _ in range(2))
    room = np.full((300, 34), 7, dtype=np.float32)
    cuda_on_host.run(activations.slope("relu", x, d, room[:290]))
    mean, factor = (np.full(300, 7, dtype=np.float32) for _ in range(2))
    cuda_on_host.run(norms_vjp.normalize_vjp(x, d, None, room[:290], mean[:290], factor[:290], eps=1.0, centred=True))
    total = np.full((6, 34), 7, dtype=np.float32)
    cuda_on_host.run(columns.of_chunks(d, None, None, None, total[:5], None, 64))
    np.testing.assert_allclose(total[:5].sum(axis=0), d.sum(axis=0), atol=1e-4)
    order, start = np.arange(290), np.asarray([0, 0, 290])
    table = np.full((3, 34), 7, dtype=np.float32)
    cuda_on_host.run(columns.sums_of_runs(d, order, start, table[:2]))
    np.testing.assert_allclose(table[1], d.sum(axis=0), atol=1e-4)
    assert (table[0] == 0).all()
    for beyond in (room[290:], mean[290:], factor[290:], total[5:], table[2:]):
        assert (beyond == 7).all()


# supports


def call(op, dtype="float32", *, options=(), **shapes):
    return Call(op, tuple(shapes.items()), dtype, None, options=tuple(options))


def test_refusal_reasons(monkeypatch):
    wanted = (("wanted", frozenset({"x", "sin", "cos"})),)
    shapes = {"x": (2, 4), "cos": (2, 2), "sin": (2, 2), "d_out": (2, 4)}
    assert rotary.supports_vjp(call("rotary_vjp", options=wanted, **shapes)) == "has no gradient of cos and sin"
    only_x = (("wanted", frozenset({"x"})),)
    assert rotary.supports_vjp(call("rotary_vjp", options=only_x, **shapes)) is None
    assert rotary.supports_vjp(call("rotary_vjp", "int8", options=only_x, **shapes)).startswith("supports float16")

    ids = {"d_out": (3, 4), "ids": (3,)}
    assert linear_vjp.supports_embedding(call("embedding_vjp", options=(("num_rows", 5),), **ids)) is None
    assert linear_vjp.supports_embedding(call("embedding_vjp", options=(("num_rows", 5),), d_out=(4,), ids=())) is None
    for options, dtype, reason in (
        ((("num_rows", 5),), "int8", "supports float16, bfloat16, float32, float64, not int8"),
        ((("num_rows", 0),), "float32", "does not support empty axes"),
        ((("num_rows", 2**30),), "float32", "supports up to 2147483647 elements, not 4294967296"),
    ):
        assert linear_vjp.supports_embedding(call("embedding_vjp", dtype, options=options, **ids)) == reason

    assert updates.supports(call("adamw", w=())) is None
    assert updates.supports(call("adamw", w=(3, 0))) == "does not support empty axes"
    assert updates.supports(call("adamw", "int8", w=(3,))) == "supports float16, bfloat16, float32, float64, not int8"
    assert linear_vjp.supports(call("linear_vjp", x=(2, 3))) is None
    monkeypatch.setattr(products, "missing", lambda: "needs cuBLAS")
    assert linear_vjp.supports(call("linear_vjp", x=(2, 3))) == "needs cuBLAS"
