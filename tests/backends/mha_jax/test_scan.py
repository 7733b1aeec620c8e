"""mha-jax's kernels: attention and its gradients in compiled loops, held to the algebra on NumPy in float64.

They take large problems only. Here they are also registered under another name with blocks of 4 queries and 3 keys, for
problems small enough to be compared. With JAX_ENABLE_X64=1 every option is tested in float64, to 1e-11.
"""

from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import needs
import numpy as np
import pytest
from jax_gradients import DTYPE, X64, assert_like_numpy, by
from option_pairs import NAMES, PAIRS, arguments
from sample_kernels import Plugin, registered

import mha_core as mha
from mha_conformance import oracle
from mha_conformance.cases.problems import random_problem
from mha_core.algebra.biases import Bias
from mha_core.algebra.masks import Mask
from mha_core.plugin import Kernel

pytestmark = [pytest.mark.full, pytest.mark.rotating, needs.installed("mha_jax", "jax")]
ATOL = 1e-11 if X64 else 2e-4
TRIED, SEEDS = (PAIRS[::4], range(8)) if X64 else ([(name,) for name in (*NAMES, "dropout", "kept")], range(6))
SMALL = "small blocks"
KEPT = np.random.default_rng(1).random((6, 6)) < 0.7


def attention_in_small_blocks(p):
    from mha_jax import scan

    return scan.attention(p, block=(4, 3))


def attention_vjp_in_small_blocks(*arguments):
    from mha_jax import scan

    return scan.attention_vjp(*arguments, block=(4, 3))


@pytest.fixture(autouse=True, scope="module")
def small_blocks():
    from mha_jax import FEATURES

    plugin = Plugin(
        [
            Kernel("jax", op, SMALL, 1, f"{__name__}:{op}_in_small_blocks", handles=features, opt_in=True)
            for op, features in FEATURES.items()
        ]
    )
    with registered(plugin):
        yield


def close(actual, expected, atol=ATOL):
    np.testing.assert_allclose(np.asarray(actual), np.asarray(expected), rtol=atol, atol=atol)


def normal(rng, *shape):
    return jnp.asarray(rng.normal(size=shape), dtype=DTYPE)


def options_of(names, make):
    """Return the options of ``test_pairs``, and dropout."""
    options = arguments([name for name in names if name in NAMES], np.random.default_rng(0), make)[1]
    if "dropout" in names:
        options["weight_dropout"] = mha.weight_dropout(0.4, seed=5)
    if "kept" in names:
        options["weight_dropout"] = mha.weight_dropout(0.4, keep=make(KEPT))
    return options


# every option, under jit


@pytest.mark.parametrize("names", TRIED, ids=" and ".join)
def test_state_and_gradients_with_every_option(rng, names):
    arrays = arguments([name for name in names if name in NAMES], rng, np.asarray)[0]
    assert_like_numpy(rng, SMALL, arrays, partial(options_of, names), ATOL)


@pytest.mark.parametrize("seed", SEEDS)
def test_random_problems(rng, seed):
    """Their lengths are no multiples of the blocks, some rows see nothing, and keys that nobody sees hold NaN."""
    problem = random_problem(rng, dtype=DTYPE)
    key, value = problem.poisoned()
    state = jax.jit(by(SMALL, lambda q, k, v: mha.attention_state(q, k, v, **problem.options(jnp.asarray))))(
        *map(jnp.asarray, (problem.query, key, value))
    )
    out, lse, _ = oracle.attention(problem.query, problem.key, problem.value, **problem.oracle)
    close(state.out, out)
    close(state.lse, lse)
    assert_like_numpy(rng, SMALL, (problem.query, problem.key, problem.value), problem.options, ATOL)


def test_an_offset_for_each_element(rng):
    query, key, offset = normal(rng, 3, 2, 5, 4), normal(rng, 3, 2, 7, 4), np.asarray([0, 4, -1])
    table = np.asarray(normal(rng, 4, 2))

    def options(make):
        bias = mha.relative_bias(make(table), bidirectional=True, max_distance=4)
        return {"bias": bias, "mask": mha.window(3, 1) & ~mha.chunks(2), "query_offset": make(offset)}

    assert_like_numpy(rng, SMALL, (query, key, key), options, ATOL)


def test_half_precision_is_summed_in_float32(rng):
    query, key, value = (normal(rng, 2, 2, 40, 8).astype(jnp.bfloat16) for _ in range(3))
    exact = [np.asarray(x, dtype=np.float64) for x in (query, key, value)]
    out, pull = jax.vjp(jax.jit(by(SMALL, mha.scaled_dot_product_attention)), query, key, value)
    expected, pullback = mha.vjp(mha.scaled_dot_product_attention, *exact)
    assert out.dtype == jnp.bfloat16
    close(out.astype(jnp.float32), expected, atol=2e-2)
    for actual, wanted in zip(pull(jnp.ones_like(out)), pullback(np.ones_like(expected)), strict=True):
        assert actual.dtype == jnp.bfloat16
        close(actual.astype(jnp.float32), wanted, atol=3e-2)


# transforms


def loss_of(mask, kernel):
    def loss(query, key, value, sink):
        out, lse = by(kernel, mha.attention_state)(query, key, value, mask=mask, sink=sink, softcap=3.0)
        return jnp.sum(jnp.sin(out)) + jnp.sum(jnp.cos(lse))

    return loss


def inputs(rng, *batch):
    return *(normal(rng, *batch, 2, 6, 4) for _ in range(3)), normal(rng, *batch, 2)


def test_gradients_of_gradients(rng):
    """The gradient of a squared gradient, for all arguments; jit inside and outside of grad."""
    given, places = inputs(rng), (0, 1, 2, 3)

    def squared(loss):
        return lambda *arrays: sum(jnp.sum(x**2) for x in jax.grad(loss, places)(*arrays))

    expected = jax.jit(jax.grad(squared(loss_of(mha.causal(), "algebra")), places))(*given)
    loss = loss_of(mha.causal(), SMALL)
    for function in (jax.jit(jax.grad(squared(loss), places)), jax.grad(squared(jax.jit(loss)), places)):
        for actual, exact in zip(function(*given), expected, strict=True):
            close(actual, exact, atol=10 * ATOL)


def test_vmap_of_attention_and_of_its_gradients(rng):
    """Over all arguments, and over queries alone."""
    given, mask = inputs(rng, 3), mha.causal()
    many = jax.jit(jax.vmap(jax.value_and_grad(loss_of(mask, SMALL), (0, 1, 2, 3))))(*given)
    alone = jax.jit(jax.value_and_grad(loss_of(mask, "algebra"), (0, 1, 2, 3)))
    each = [alone(*one) for one in zip(*given, strict=True)]
    for at, expected in enumerate(each):
        jax.tree.map(lambda actual, exact, at=at: close(actual[at], exact), many, expected)
    query, key, value, sink = given[0], *(x[0] for x in given[1:])
    shared = jax.jit(jax.vmap(jax.grad(loss_of(mask, SMALL), 1), in_axes=(0, None, None, None)))(query, key, value, sink)
    for actual, one in zip(shared, query, strict=True):
        close(actual, alone(one, key, value, sink)[1][1])


def test_vmap_over_the_arrays_of_a_mask(rng):
    x, lengths = normal(rng, 2, 5, 4), jnp.asarray([5, 2, 0])

    @partial(jax.jit, static_argnums=0)
    def attend(kernel, n):
        return by(kernel, jax.grad(lambda x: mha.scaled_dot_product_attention(x, x, x, mask=mha.key_lengths(n)).sum()))(x)

    close(jax.vmap(partial(attend, SMALL))(lengths), jax.vmap(partial(attend, "algebra"))(lengths))


def test_the_algebra_has_forward_mode(rng):
    x = normal(rng, 1, 8, 512, 8)
    attend = mha.scaled_dot_product_attention
    with pytest.raises(TypeError, match="custom_vjp"):
        jax.jvp(attend, (x, x, x), (x, x, x))
    with mha.use_kernel("attention", "algebra"):
        tangent = jax.jvp(attend, (x, x, x), (x, x, x))[1]
    step = 1e-2
    ahead, behind = (attend(*[x * (1 + sign)] * 3) for sign in (step, -step))
    close(tangent, (ahead - behind) / (2 * step), atol=2e-3)


def test_vjp_by_operations_uses_the_same_loop(rng):
    """``mha.vjp`` takes the gradients from the operation attention_vjp, inside and outside of jit."""
    x, bias = normal(rng, 2, 6, 4), normal(rng, 6, 6)

    def gradients(kernel, x, bias):
        state, pullback = by(kernel, mha.vjp)(mha.attention_state, x, x, x, bias=bias)
        result = by(kernel, pullback)(mha.AttentionState(state.out, None))
        return *result, result.options["bias"]

    expected = gradients("algebra", x, bias)
    for function in (partial(gradients, SMALL), jax.jit(partial(gradients, SMALL))):
        for actual, exact in zip(function(x, bias), expected, strict=True):
            close(actual, exact)


# what users define


@dataclass(frozen=True, eq=False)
class Slopes(Bias):
    """A bias with an array for which core has no rule, and a field without a hash."""

    slope: object
    powers: object

    def block(self, grid):
        distance = grid.xp.astype(grid.key_index - grid.query_position, grid.dtype)
        return sum(self.slope[:, None, None] ** power * distance for power in self.powers)


@dataclass(frozen=True, eq=False)
class Near(Mask):
    """A mask that depends on the type of its field."""

    by: object

    def block(self, grid):
        return abs(grid.key_index - grid.query_position) <= len(repr(self.by))


class Twice(Near):
    """One with an attribute that is not a field."""

    def __init__(self, by):
        object.__setattr__(self, "by", by)
        object.__setattr__(self, "times", 2)

    def block(self, grid):
        return abs(grid.key_index - grid.query_position) <= self.times


@pytest.mark.parametrize("mask", [Near(1), Near(True), Twice(1), Twice(1) | mha.causal()], ids=repr)
def test_terms_of_users(rng, mask):
    x, slope = normal(rng, 2, 7, 4), normal(rng, 2)

    def loss(kernel, x, slope):
        bias = Slopes(slope, [1, 2])
        return jnp.sum(by(kernel, mha.scaled_dot_product_attention)(x, x, x, bias=bias, mask=mask) ** 2)

    expected = jax.grad(partial(loss, "algebra"), (0, 1))(x, slope)
    for actual, exact in zip(jax.jit(jax.grad(partial(loss, SMALL), (0, 1)))(x, slope), expected, strict=True):
        close(actual, exact)
