"""JAX through a plugin of fifteen lines: the algebra works under jit, grad and vmap, with tracers in every option.

JAX has 64-bit types only if a process enables them: with JAX_ENABLE_X64=1 every option is tested in float64, to 1e-12.
"""

import sys
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax_gradients import DTYPE, X64, assert_like_numpy
from option_pairs import NAMES, PAIRS, arguments
from processes import printed
from project import ROOT
from tiny_models import write_tiny_model

import mha_core as mha
import mha_text as mt
from mha_conformance import oracle
from mha_conformance.cases.masks import leaf_masks
from mha_conformance.cases.problems import random_problem
from mha_core.plugin import Kernel
from mha_core.shared import load

ATOL = 1e-12 if X64 else 3e-5
TRIED, NUM_PROBLEMS = (PAIRS[::4], 12) if X64 else ([(name,) for name in NAMES], 8)


def close(actual, expected, context=""):
    np.testing.assert_allclose(np.asarray(actual), expected, rtol=0, atol=ATOL, err_msg=str(context))


def test_one_nan_in_a_long_array_is_found():
    """jnp.max leaves it out of arrays of some thousand elements on a CPU, in JAX 0.10."""
    numbers = np.ones((4, 5000), DTYPE)
    numbers[1, 4567] = np.nan
    assert load("jax").has_nan(jnp.asarray(numbers)) and not load("jax").has_nan(jnp.ones((4, 5000)))


def normal(rng, *shape):
    return rng.normal(size=shape).astype(DTYPE)


def traced(operation, calls):
    """Return ``operation(*arrays, **options)`` of each call, all under one jit, which is compiled once.

    A call is arrays and a function ``make_options(make)``. Tracers replace the arrays, and every array that it makes.
    """
    made = []
    for _, make_options in calls:
        make_options(lambda x: made.append(jnp.asarray(x)) or made[-1])

    @jax.jit
    def compute(every, made):
        left = iter(made)
        return [
            operation(*arrays, **make_options(lambda x: next(left)))
            for arrays, (_, make_options) in zip(every, calls, strict=True)
        ]

    return compute([tuple(map(jnp.asarray, arrays)) for arrays, _ in calls], made)


# jit, compared with the oracle


def test_every_option_holds_under_jit(rng):
    drawn = [[x.astype(DTYPE) for x in arguments(names, rng, jnp.asarray)[0]] for names in TRIED]
    options = [lambda make, names=names: arguments(names, np.random.default_rng(0), make)[1] for names in TRIED]
    states = traced(mha.attention_state, [*zip(drawn, options, strict=True)])
    for names, arrays, state in zip(TRIED, drawn, states, strict=True):
        out, lse, _ = oracle.attention(*arrays, **arguments(names, np.random.default_rng(0), np.asarray)[2])
        assert state.out.dtype == state.lse.dtype == DTYPE
        close(state.out, out, context=names)
        close(state.lse, lse, context=names)


def test_random_problems_with_poison_hold_under_jit(rng):
    problems = [random_problem(rng, dtype=DTYPE) for _ in range(NUM_PROBLEMS)]
    states = traced(mha.attention_state, [((p.query, *p.poisoned()), p.options) for p in problems])
    for problem, state in zip(problems, states, strict=True):
        out, lse, _ = oracle.attention(problem.query, problem.key, problem.value, **problem.oracle)
        close(state.out, out, context=problem)
        close(state.lse, lse, context=problem)


def test_every_leaf_of_a_mask_may_hold_tracers(rng):
    """One compilation returns the weights under each mask."""
    leaves = leaf_masks(rng, np.arange(5)[:, None] + 1, np.arange(5), (2,), 2)
    x = normal(rng, 2, 2, 5, 3)

    def weights(query, key, value, masks):
        return [mha.attention_weights(query, key, mask=mask, query_offset=1) for mask in masks]

    (got,) = traced(weights, [((x, x, x), lambda make: {"masks": [leaf(make) for leaf in leaves]})])
    for leaf, actual in zip(leaves, got, strict=True):
        close(actual, oracle.attention(x, x, x, allowed=leaf.allowed)[2])


def test_an_offset_for_each_element_may_be_traced(rng):
    query, key = normal(rng, 3, 2, 2, 4), normal(rng, 3, 2, 6, 4)
    offset, table = np.asarray([0, 4, -1]), normal(rng, 4, 2)

    def options(make):
        bias = mha.relative_bias(make(table), bidirectional=True, max_distance=4)
        return {"mask": mha.window(3, 1) & ~mha.chunks(2), "bias": bias, "query_offset": make(offset)}

    (got,) = traced(mha.attention_state, [((query, key, key), options)])
    q, k = offset[:, None, None, None] + np.arange(2)[:, None], np.arange(6)
    buckets = mha.relative_bias(table, bidirectional=True, max_distance=4).bucket
    numbers = np.moveaxis(table[np.vectorize(buckets)(k - q)[:, 0]], -1, 1)
    allowed = (k >= q - 3) & (k <= q + 1) & (q // 2 != k // 2)
    out, lse, _ = oracle.attention(query, key, key, allowed=allowed, bias=numbers)
    close(got.out, out)
    close(got.lse, lse)


def test_tracers_mix_with_arrays(rng):
    query, key, value = (jnp.asarray(normal(rng, 2, 2, 4, 3)) for _ in range(3))
    lengths = jnp.asarray([2, 4])

    def attend(query, lengths):
        return mha.scaled_dot_product_attention(query, key, value, mask=mha.key_lengths(lengths) & mha.causal())

    expected = attend(query, lengths)
    assert isinstance(expected, jax.Array)
    close(jax.jit(attend)(query, lengths), expected)
    close(jax.jit(partial(attend, query))(lengths), expected)


def test_other_values_do_not_compile_again(rng):
    x = jnp.asarray(normal(rng, 2, 2, 4, 3))
    traces = []

    @jax.jit
    def attend(x, n, offset):
        traces.append(x)
        return mha.scaled_dot_product_attention(x, x, x, mask=mha.causal() & mha.key_lengths(n), query_offset=offset)

    for n, offset in ((2, 0), (3, 1), (0, -1)):
        allowed = (np.arange(4) <= np.arange(4)[:, None] + offset) & (np.arange(4) < n)
        close(attend(x, jnp.asarray(n), jnp.asarray(offset)), oracle.attention(x, x, x, allowed=allowed)[0])
    assert len(traces) == 1


def test_errors_name_the_argument_that_may_not_be_traced(rng):
    with pytest.raises(TypeError, match=r"window\(left\) is DynamicJaxprTracer; expected an int"):
        jax.jit(lambda n: mha.window(n, 0))(3)
    with pytest.raises(mha.BackendMismatch, match=r"write w = jax\.numpy\.from_dlpack\(w\)"):
        jax.jit(lambda x: mha.linear(x, np.eye(2, dtype=np.float32)))(jnp.ones((1, 2)))
    with pytest.raises(TypeError, match="mask has dtype int32; expected a boolean array"):
        jax.jit(lambda x, m: mha.attention_weights(x, x, mask=m))(jnp.ones((1, 2)), jnp.ones((1, 1), dtype=int))


# grad and vmap

HOLES = np.asarray([[1, 1, 0, 1], [0, 0, 0, 0], [0, 1, 0, 0], [1, 1, 0, 1]], dtype=bool)
"""A mask: query 1 sees no key, no query sees key 2."""
PROBLEMS = {
    "plain": lambda make: {},
    "causal": lambda make: {"mask": mha.causal(), "softcap": 2.0},
    "empty rows": lambda make: {"mask": make(HOLES)},
    "sink": lambda make: {"mask": make(HOLES), "sink": make(np.linspace(-1, 1, 4))},
    "bias": lambda make: {"mask": mha.key_lengths(make(np.asarray([3, 0]))), "bias": make(np.eye(4))},
}


@pytest.mark.parametrize("options", PROBLEMS.values(), ids=PROBLEMS)
def test_gradients_equal_those_of_numpy(rng, options):
    arrays = [rng.normal(size=shape) for shape in ((2, 4, 4, 3), (2, 2, 4, 3), (2, 2, 4, 3))]
    assert_like_numpy(rng, "algebra", arrays, options, 2e-4)


@pytest.mark.parametrize("op", [mha.gelu, mha.silu, lambda x: mha.gelu(x, approximate="tanh")], ids=["gelu", "silu", "tanh"])
def test_gradients_of_activations(op):
    x = np.asarray([0.0, -30.0, -1.0, 1e-3, 1.0, 30.0])
    slopes = jax.jit(jax.vmap(jax.grad(op)))(jnp.asarray(x, dtype=DTYPE))
    assert slopes[0] == pytest.approx(0.5)
    close(slopes, (op(x + 1e-6) - op(x - 1e-6)) / 2e-6)


def test_vmap_over_everything_equals_a_batch(rng):
    query, key, value = (normal(rng, 3, 2, 4, 5) for _ in range(3))
    lengths, holes, sink = np.asarray([4, 2, 0]), rng.random((3, 4, 4)) < 0.7, normal(rng, 3, 2)

    def attend(query, key, value, n, holes, sink):
        mask = mha.causal() & mha.key_lengths(n) & holes
        return mha.scaled_dot_product_attention(query, key, value, mask=mask, sink=sink)

    got = jax.jit(jax.vmap(attend))(*map(jnp.asarray, (query, key, value, lengths, holes, sink)))
    for at in range(3):
        allowed = np.tri(4, dtype=bool) & (np.arange(4) < lengths[at]) & holes[at]
        close(got[at], oracle.attention(query[at], key[at], value[at], allowed=allowed, sink=sink[at])[0])
    per_element = jax.jit(jax.vmap(jax.grad(lambda q, k: mha.scaled_dot_product_attention(q, k, k, mask=mha.causal()).sum())))
    assert per_element(jnp.asarray(query), jnp.asarray(key)).shape == query.shape


# operations and layers


def test_the_operations_of_the_tutorials_under_jit(rng):
    x, w, ids = normal(rng, 3, 4), normal(rng, 5, 4, 4), np.asarray([[2, 0, 3]])
    keep = rng.random((3, 4)) < 0.5

    def everything(x, w, ids, keep):
        out, weights = mha.self_attention(x, w[0], w[1], w[2], mask=mha.causal())
        y = mha.multi_head_attention(x, w[0], w[1], w[2], w[3], 2)
        z = mha.layer_norm(mha.feed_forward(y, w[0], w[1][0], w[2], w[3][0], activation="gelu") + x, w[4][0])
        halves = [mha.attention_state(x, x[s], x[s]) for s in (slice(0, 1), slice(1, 3))]
        rows = mha.attention_weights(x, x, mha.attention_state(x, x, x).lse, rows=[2], cols=slice(1, 3))
        turned = mha.rotary(x, mha.silu(w[0][:3, :2]), mha.relu(w[1][:3, :2]), interleaved=True)
        more = mha.embedding(ids, w[4]), mha.rms_norm(x), mha.dropout(x, keep, rate=0.5), turned
        return out, weights, y, z, *mha.merge_states(*halves), rows, *more

    got = jax.jit(everything)(*map(jnp.asarray, (x, w, ids, keep)))
    for actual, expected in zip(got, everything(x, w, ids, keep), strict=True):
        close(actual, expected)


def test_a_kernel_for_jax_is_chosen_under_jit_and_explained(installed):
    slope = jax.jit(jax.grad(mha.relu))
    assert float(slope(jnp.asarray(0.0))) == 1  # at the kink, the algebra's slope is 1; that of jax.nn.relu is 0
    installed(Kernel(backend="jax", op="relu", name="nn", api=1, load="jax.nn:relu", handles=frozenset({"gradient"})))
    assert mha.explain("relu", jnp.ones(2)).kernel == "nn"
    assert float(jax.jit(jax.grad(lambda x: mha.relu(x)))(jnp.asarray(0.0))) == 0
    assert mha.explain("attention", *[jnp.ones((2, 3))] * 3).kernel is None


def test_layers_move_to_jax_and_run_under_jit_and_grad(rng, tmp_path):
    encoder = mha.Encoder.init(d_model=8, num_heads=2, d_ff=8, num_layers=1, activation="gelu", norm_first=True, seed=0)
    moved, x, lengths = encoder.to("jax"), normal(rng, 2, 5, 8), np.asarray([3, 5])
    assert all(isinstance(array, jax.Array) for array in moved.arrays().values())
    expected = encoder(x, mask=mha.key_lengths(lengths))
    close(jax.jit(lambda x, n: moved(x, mask=mha.key_lengths(n)))(*map(jnp.asarray, (x, lengths))), expected)

    def loss(weights, x):
        left = iter(weights)
        return (moved.map(lambda old: next(left))(x) ** 2).sum()

    gradients = jax.jit(jax.grad(loss))(list(moved.arrays().values()), jnp.asarray(x))
    for name, gradient in zip(moved.arrays(), gradients, strict=True):
        assert np.isfinite(gradient).all() and (gradient != 0).any(), name

    moved.to("jax", dtype="bfloat16").save(tmp_path / "encoder.safetensors")
    narrow = mha.Encoder.load(tmp_path / "encoder.safetensors", backend="jax")
    assert {str(array.dtype) for array in narrow.arrays().values()} == {"bfloat16"}
    back = moved.to("torch").to("jax").to("numpy")
    assert all((array == encoder.arrays()[name]).all() for name, array in back.arrays().items())


def test_a_step_of_decoding_under_jit(rng):
    """The step takes the cache's arrays and returns them, so that it is a function of arrays."""
    layer = mha.MultiHeadAttention.init(d_model=8, num_heads=2, seed=0)
    moved, x = layer.to("jax"), normal(rng, 3, 8)

    @jax.jit
    def step(x, kept):
        cache = mha.KeyValueCache(*kept)
        y = moved(x, mask=mha.causal(), cache=cache)
        return y, (cache.key, cache.value)

    rows, kept = [], ()
    for at in range(3):
        y, kept = step(jnp.asarray(x[at : at + 1]), kept)
        rows.append(y)
    close(jnp.concat(rows), layer(x, mask=mha.causal()))


def test_rotary_with_traced_offsets(rng):
    rotary = mha.Rotary.init(max_length=8, dim=4, interleaved=False)
    moved, x, offset = rotary.to("jax"), normal(rng, 2, 1, 3, 4), np.asarray([0, 5])
    close(jax.jit(moved)(jnp.asarray(x), jnp.asarray(offset)), rotary(x, offset))


@pytest.mark.full
def test_texts_are_encoded_on_jax(tmp_path):
    folder = write_tiny_model(tmp_path / "tiny")
    vectors = mt.TextEncoder.from_pretrained(folder, backend="jax").encode(["a bird sings", ""])
    assert isinstance(vectors, jax.Array)
    close(vectors, mt.TextEncoder.from_pretrained(folder).encode(["a bird sings", ""]))


@pytest.mark.full
@pytest.mark.rotating
@pytest.mark.parametrize(("file", "count"), [("test_backend.py", 2), ("test_scan.py", len(PAIRS[::4]) + 9)])
def test_every_option_holds_in_float64_too(file, count):
    # for such small calls, optimization takes longer than it saves
    settings = {"JAX_ENABLE_X64": "1", "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}
    chosen = "with_every_option or option_holds_under_jit or random_problems or gradients_of_gradients"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-k", chosen]
    assert f"{count} passed" in printed(command, Path(__file__).with_name(file), cwd=ROOT, **settings)
