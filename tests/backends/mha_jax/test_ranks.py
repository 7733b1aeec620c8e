"""Attention over an axis of JAX's mesh, inside shard_map on four devices of one host: every option against one device."""

import sys

import pytest
from processes import finished

pytest.importorskip("jax")
pytestmark = [pytest.mark.full, pytest.mark.rotating]

DEVICES = {"XLA_FLAGS": "--xla_force_host_platform_device_count=4"}

START = """
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import Mesh, PartitionSpec
import mha_core as mha
from mha_core import distributed
mesh, rng = Mesh(jax.devices(), ("ranks",)), np.random.default_rng(0)
spec, of_lse = PartitionSpec(None, None, "ranks", None), PartitionSpec(None, None, "ranks")
query, key, value = (jnp.asarray(rng.normal(size=(2, h, n, 6))) for h, n in ((8, 16), (4, 24), (4, 24)))

def order(length, layout):
    return [i for ranges in distributed.layout_of(layout, length, 4) for each in ranges for i in each]

def over_ranks(attend, layout, arrays, **options):
    def function(*parts):
        return attend(*parts, group="ranks", layout=layout, **options)
    function = jax.shard_map(function, mesh=mesh, in_specs=(spec,) * 3, out_specs=mha.AttentionState(spec, of_lse))
    return jax.jit(function)(*(x[..., jnp.asarray(order(x.shape[-2], layout)), :] for x in arrays))
"""

EQUAL = """
ids = [jnp.asarray(np.sort(rng.integers(0, 3, size=(2, n)), axis=-1)) for n in (16, 24)]
masks = {
    "none": None, "causal": mha.causal(), "window": mha.window(5, 2), "chunks": mha.chunks(5),
    "prefix": mha.prefix(11) | mha.causal(), "lengths": mha.key_lengths(jnp.asarray([7, 24])) & mha.window(20, 20),
    "segments": mha.segments(*ids), "array": mha.array_mask(jnp.asarray(rng.random((2, 8, 16, 24)) < 0.6)),
    "not": ~mha.window(3, 3),
}
biases = {
    "none": None, "alibi": mha.alibi(8), "array": jnp.asarray(rng.normal(size=(8, 16, 24))),
    "relative": mha.relative_bias(jnp.asarray(rng.normal(size=(8, 8))), bidirectional=True, max_distance=9),
}
sink = jnp.asarray(rng.normal(size=8))
tried = 0
for attend, layouts in ((distributed.ring_attention, ("contiguous", "zigzag")), (distributed.heads_attention, ("zigzag",))):
    for layout in layouts:
        for mask in masks:
            bias = list(biases)[tried % 4]
            options = {"mask": masks[mask], "bias": biases[bias], "sink": sink, "softcap": 4.0, "query_offset": 3}
            exact = mha.attention_state(query, key, value, **options)
            sharded = over_ranks(attend, layout, (query, key, value), **options)
            positions = jnp.asarray(order(16, layout))
            for a, b in ((sharded.out, exact.out[..., positions, :]), (sharded.lse, exact.lse[..., positions])):
                np.testing.assert_allclose(a, b, rtol=0, atol=1e-12, err_msg=f"{attend} {layout} {mask} {bias}")
            tried += 1

def split(query, key, value):
    return distributed.split_attention(query, key, value, group="ranks", mask=mha.causal(), query_offset=8)
specs = {"in_specs": (PartitionSpec(), spec, spec), "out_specs": PartitionSpec(), "check_vma": False}
state = jax.jit(jax.shard_map(split, mesh=mesh, **specs))(query, key, value)
np.testing.assert_allclose(state.out, mha.attention_state(query, key, value, mask=mha.causal(), query_offset=8).out, atol=1e-12)
print(tried, "equal")
"""

LEARNS = """
def loss(attend):
    def of(*arrays):
        return jnp.sum(attend(*arrays).out ** 2)
    return jax.grad(of, argnums=(0, 1, 2))
options = {"mask": mha.causal(), "query_offset": 8, "softcap": 4.0}
exact = loss(lambda *arrays: mha.attention_state(*arrays, **options))(query, key, value)
sharded = loss(lambda *arrays: over_ranks(distributed.ring_attention, "zigzag", arrays, **options))(query, key, value)
for a, b in zip(sharded, exact):
    np.testing.assert_allclose(a, b, rtol=0, atol=1e-12)
long = jnp.asarray(rng.normal(size=(1, 8, 4096, 8)))  # the kernel's blocks are smaller than a rank's part
exact = mha.attention_state(long, long, long, mask=mha.causal()).out[..., jnp.asarray(order(4096, "zigzag")), :]
sharded = over_ranks(distributed.ring_attention, "zigzag", (long, long, long), mask=mha.causal()).out
np.testing.assert_allclose(sharded, exact, rtol=0, atol=1e-12)
def of_long(x):
    return jnp.sum(over_ranks(distributed.ring_attention, "contiguous", (x, x, x), mask=mha.window(99, 0)).out ** 2)
def of_long_alone(x):
    return jnp.sum(mha.attention_state(x, x, x, mask=mha.window(99, 0)).out ** 2)
np.testing.assert_allclose(jax.grad(of_long)(long), jax.grad(of_long_alone)(long), rtol=0, atol=1e-10)
try:
    over_ranks(distributed.ring_attention, "striped", (query, query, query), mask=mha.causal())
except ValueError as error:
    assert "must hold ranges of the same lengths, of successive positions" in str(error), error
try:
    jax.shard_map(lambda x: distributed.shard(x, group="ranks"), mesh=mesh, in_specs=spec, out_specs=spec)(query)
except TypeError as error:
    print(error)
"""


@pytest.mark.parametrize(("program", "output"), [(EQUAL, "27 equal\n"), (LEARNS, "shard: ranks that run one compiled program")])
def test_attention_over_devices_equals_one_device(program, output):
    assert finished(START + program, JAX_ENABLE_X64="1", **DEVICES).startswith(output)


def test_the_example_runs_on_four_devices():
    out = finished([sys.executable, "examples/ring_jax.py", "--length", "304"], **DEVICES)
    assert out.startswith("4 devices, 304 tokens: the greatest difference from one is")
