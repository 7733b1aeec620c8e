"""The compiled kernel as a function that XLA calls: under vmap and shard_map, its memory, its threads, and what it refuses."""

import os
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import needs
import numpy as np
import pytest
from jax_gradients import assert_same_bits, by, close, loss_inputs, loss_of
from judged_attention import normal
from native import in_process, needs_native
from together import for_each

import mha_core as mha

pytestmark = [needs_native, needs.installed("mha_jax", "jax"), pytest.mark.usefixtures("native")]
ARGUMENTS = (0, 1, 2, 3)
native = partial(by, "native")

# vmap and shard_map


def test_vmap_gives_the_bits_of_single_calls(rng):
    """Over all arguments, over some, twice, and over the arrays of a mask and a bias."""
    query, key, value, sink = loss_inputs(rng, 3)
    lengths, mask, bias = jnp.asarray([6, 2, 0]), jnp.asarray(rng.random((3, 6, 6)) < 0.6), jnp.asarray(normal(rng, 3, 6, 6))

    def attend(query, key, value, sink, n, mask, bias):
        mask = mha.array_mask(mask) & mha.key_lengths(n)
        return native(mha.attention_state)(query, key, value, sink=sink, mask=mask, bias=bias)

    every = (query, key, value, sink, lengths, mask, bias)
    single = jax.jit(attend)

    def check(mapped):
        axes = [0 if at in mapped else None for at in range(len(every))]
        given = [x if at in mapped else x[0] for at, x in enumerate(every)]
        state = jax.jit(jax.vmap(attend, in_axes=axes))(*given)
        for i in range(3):
            expected = single(*(x[i] if at in mapped else x for at, x in enumerate(given)))
            assert_same_bits(state.out[i], expected.out)
            assert_same_bits(state.lse[i], expected.lse)

    for_each({"everything": range(7), "queries": [0], "keys": [1, 2], "sinks": [3], "lengths": [4], "masks": [5, 6]}, check)
    twice = jax.vmap(jax.vmap(attend, in_axes=(None, 0, 0, *[None] * 4)), in_axes=(0, *[None] * 6))
    out = twice(query, key, value, *(x[0] for x in every[3:])).out
    assert_same_bits(out[2, 1], single(query[2], key[1], value[1], *(x[0] for x in every[3:])).out)


def test_vmap_of_gradients_gives_the_bits_of_single_calls(rng):
    """Over all arguments, over queries alone, and over the gradient of the result: a Jacobian."""
    given = loss_inputs(rng, 3)
    gradient = jax.jit(jax.grad(partial(loss_of, "native", mask=mha.causal()), ARGUMENTS))
    for at in range(3):
        for x, y in zip(jax.vmap(gradient)(*given), gradient(*(x[at] for x in given)), strict=True):
            assert_same_bits(x[at], y)
    shared = jax.vmap(gradient, in_axes=(0, None, None, None))(given[0], *(x[0] for x in given[1:]))
    for x, y in zip(shared, gradient(given[0][2], *(x[0] for x in given[1:])), strict=True):
        assert_same_bits(x[2], y)

    def attend(kernel, query):
        return by(kernel, mha.scaled_dot_product_attention)(query, given[1][0], given[2][0])

    close(*(jax.jacrev(partial(attend, kernel))(given[0][0]) for kernel in ("native", "algebra")))


def test_more_batch_axes_than_eight_by_vmap_are_an_error():
    attend = mha.scaled_dot_product_attention
    for _ in range(2):
        attend = jax.vmap(attend)
    with pytest.raises(
        jax.errors.JaxRuntimeError, match=r"there are 9 batch axes, with those of jax\.vmap; expected at most 8"
    ):
        jax.block_until_ready(attend(*[jnp.ones((1,) * 9 + (1, 2, 2))] * 3))


SHARDED = """
import jax, jax.numpy as jnp, numpy as np, mha_core as mha
from jax.sharding import Mesh, PartitionSpec as P
mesh = Mesh(np.asarray(jax.devices()), ("data",))
assert mesh.size == 2
rng = np.random.default_rng(0)
query, key, value = (jnp.asarray(rng.normal(size=(4, 2, 70, 16)).astype(np.float32)) for _ in range(3))
sink = jnp.asarray(rng.normal(size=2).astype(np.float32))
def loss(query, key, value, sink):
    with mha.use_kernel("attention", "native"):
        return (mha.scaled_dot_product_attention(query, key, value, sink=sink, mask=mha.causal()) ** 2).sum()
def part(query, key, value, sink):  # one sink for all devices, whose gradients are summed
    return jax.lax.psum(loss(query, key, value, sink), "data")
axes = P("data"), P("data"), P("data"), P()
sharded = jax.shard_map(part, mesh=mesh, in_specs=axes, out_specs=P())
arguments = (query, key, value, sink)
value_there, there = jax.jit(jax.value_and_grad(sharded, (0, 1, 2, 3)))(*arguments)
value_here, here = jax.jit(jax.value_and_grad(loss, (0, 1, 2, 3)))(*arguments)
print([bool(np.array_equal(x, y)) for x, y in zip(there[:3], here[:3], strict=True)])
print(np.allclose(there[3], here[3], rtol=1e-4), np.allclose(value_there, value_here, rtol=1e-5))
program = str(jax.make_jaxpr(jax.grad(sharded))(*arguments))
print("mha_native.attend" in program, "mha_native.attend_vjp" in program)
spread = jax.device_put(query, jax.sharding.NamedSharding(mesh, P("data")))
try:
    with mha.use_kernel("attention", "native"):
        mha.scaled_dot_product_attention(spread, spread, spread)
except mha.KernelUnsupported as error:
    print("it computes on one device, not on 2: shard the call by jax.shard_map" in str(error))
program = jax.jit(mha.scaled_dot_product_attention).lower(spread, spread, spread).compile().as_text()
print("all-gather" in program)  # XLA cannot divide the call
"""


def test_shard_map_over_two_devices():
    said = in_process(SHARDED, XLA_FLAGS="--xla_force_host_platform_device_count=2").splitlines()
    assert said == ["[True, True, True]", "True True", "True True", "True", "True"]


# memory and threads


def memory(function, *shapes):
    """Return the bytes that a compiled function takes beyond its arguments and results."""
    given = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    return jax.jit(function).lower(*given).compile().memory_analysis().temp_size_in_bytes


@pytest.mark.parametrize("options", [{}, {"mask": mha.window(300, 0), "softcap": 3.0}, {"bias": mha.alibi(8)}], ids=str)
def test_13_under_jit_memory_is_that_of_rows(options):
    """At length 2048 the scores of 8 heads are 134 MB; an array of queries has 4.2."""
    shapes = [(1, 8, 2048, 64)] * 3
    row = 8 * 2048 * 4

    def loss(query, key, value):
        return mha.scaled_dot_product_attention(query, key, value, **options)

    assert memory(loss, *shapes) <= 8 * row  # lse, and distances
    step = jax.value_and_grad(lambda *arrays: loss(*arrays).sum(), (0, 1, 2))
    assert memory(step, *shapes) <= 2 * 64 * row + 16 * row  # out and its gradient


def test_13_a_mask_and_a_bias_that_broadcast_are_not_expanded():
    """They would have 34 and 134 MB. Keys and values, of which some may be unseen, are copied: 8.4 MB each."""

    def attend(query, key, value, mask, bias):
        return mha.scaled_dot_product_attention(query, key, value, mask=mask != 0, bias=bias)

    arrays = 4 * 8 * 1024 * 64 * 4
    assert memory(attend, *[(4, 8, 1024, 64)] * 3, (1024, 1024), (1024, 1024)) <= 2 * arrays + 2 * 1024 * 1024


THREADS = """
import hashlib, os
if {cpus}:
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:{cpus}])
import jax, jax.numpy as jnp, numpy as np, mha_core as mha
rng = np.random.default_rng(0)
digest = hashlib.sha256()
for shape, keys in (((2, 4, 300, 64), 300), ((1, 8, 1, 64), 4000), ((1, 3, 1100, 24), 1100)):
    query = jnp.asarray(rng.normal(size=shape).astype(np.float32))
    key = jnp.asarray(rng.normal(size=(*shape[:2], keys, shape[3])).astype(np.float32))
    with mha.use_kernel("attention", "native"), mha.use_kernel("attention_vjp", "native"):
        step = jax.value_and_grad(lambda q, k: (mha.scaled_dot_product_attention(q, k, k) ** 2).sum(), (0, 1))
        for x in jax.tree.leaves(jax.jit(step)(query, key))[1:]:
            digest.update(np.asarray(x).tobytes())
print(digest.hexdigest())
"""


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="the system has no affinity")
def test_the_number_of_threads_changes_no_bit():
    assert in_process(THREADS.format(cpus=1)) == in_process(THREADS.format(cpus=0))


def test_subnormal_numbers_are_not_0_in_the_threads_of_xla(rng):
    query, key, value = normal(rng, 1, 2, 300, 16), normal(rng, 1, 2, 300, 16), normal(rng, 1, 2, 300, 16, times=1e-39)
    expected = native(mha.scaled_dot_product_attention)(query, key, value)
    assert expected.any() and np.abs(expected).max() < np.finfo(np.float32).tiny
    assert_same_bits(jax.jit(native(mha.scaled_dot_product_attention))(*map(jnp.asarray, (query, key, value))), expected)


def test_many_callers_at_once(rng):
    """Several programs at once, each with several calls that do not depend on each other."""
    arrays = [jnp.asarray(normal(rng, 2, 4, 100, 64)) for _ in range(3)]

    @jax.jit
    def attend(query, key, value):
        return [native(mha.scaled_dot_product_attention)(query * n, key, value) for n in (1, 2, 3)]

    expected = attend(*arrays)
    with ThreadPoolExecutor(8) as callers:
        for results in callers.map(lambda _: attend(*arrays), range(40)):
            for x, y in zip(results, expected, strict=True):
                assert_same_bits(x, y)


# what the handlers refuse, before they read anything


def zeros(*shape, dtype=np.float32):
    return jnp.zeros(shape, dtype)


FITTING = {"query": zeros(2, 4, 6, 8), "key": zeros(2, 2, 9, 8), "value": zeros(2, 2, 9, 5)}
RESULTS = {"out": zeros(2, 4, 6, 5), "lse": zeros(2, 4, 6, 1)}
WRONG = {
    "query": ({"query": zeros(2, 4, 6, 7)}, "key has an axis of length 8; expected 7"),
    "value": ({"value": zeros(3, 2, 9, 5)}, "value has an axis of length 3; expected 2"),
    "heads": ({"key": zeros(2, 3, 9, 8), "value": zeros(2, 3, 9, 5)}, "4 heads do not share 3 key heads"),
    "axes": ({"key": zeros(2, 9, 8)}, "query, key and value do not fit the result"),
    "dtype": ({"key": zeros(2, 2, 9, 8, dtype=np.float16)}, "key has 4 axes of format e, which the plan does not expect"),
    "an unknown dtype": ({"query": zeros(2, 4, 6, 8, dtype=np.uint8)}, "query, key and value do not fit the result"),
    "integers": ({"query": zeros(2, 4, 6, 8, dtype=np.int32)}, "query, key and value do not fit the result"),
    "sink": ({"sink": zeros(1, 3, 1, 1)}, "sink has an axis of length 3; expected 4"),
    "mask": ({"mask": zeros(2, 4, 6, 9)}, "mask has 4 axes of format f, which the plan does not expect"),
    "lengths": ({"lengths": zeros(3, 1, 1, 1, dtype=np.int32)}, "lengths has an axis of length 3; expected 2"),
    "out": ({"out": zeros(2, 4, 5, 5)}, "out has an axis of length 5; expected 6"),
    "sequences": ({"sequences": np.asarray([(0, 3, 0, 3), (3, 4, 3, 4)])}, "sequence 1 lies outside of the arrays"),
    "a missing array": ({"given": ("query", "key", "value", "sink", "out", "lse")}, "sink is missing"),
    "an array too many": ({"sink": zeros(1, 4, 1, 1), "given": (*FITTING, *RESULTS)}, "more arrays than options name"),
    "no lse": ({"given": (*FITTING, "out")}, "lse is missing|more arrays than options name"),
    "no options": ({"options": b"none"}, "options have 4 bytes"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_arrays_that_do_not_fit_are_refused(wrong):
    from mha_native import xla

    assert xla.reason_against() is None  # so XLA knows the function
    changes, message = WRONG[wrong]
    arrays = FITTING | {name: x for name, x in changes.items() if name in xla._ORDER and name not in RESULTS}
    results = RESULTS | {name: x for name, x in changes.items() if name in RESULTS}
    problem = SimpleNamespace(structure=SimpleNamespace(band=(None, None)), scale=1.0, softcap=None)
    given = changes.get("given", (*arrays, *results))
    options = changes.get("options", xla._options(problem, given, changes.get("sequences")))
    call = jax.ffi.ffi_call(xla._ATTEND, [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in results.values()])
    with pytest.raises(jax.errors.JaxRuntimeError, match=message):
        jax.block_until_ready(call(*(arrays[name] for name in xla._ORDER if name in arrays), options=options))
