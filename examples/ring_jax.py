"""Causal attention on JAX over a sequence that is spread over devices, here four of one host.

XLA_FLAGS=--xla_force_host_platform_device_count=4 python examples/ring_jax.py --length 4096
"""

import argparse

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec

import mha_core as mha
from mha_core import distributed


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--length", type=int, default=4096, help="tokens of the whole sequence, a multiple of 2 x devices")
    parser.add_argument("--layout", default="zigzag", choices=["contiguous", "zigzag"])
    arguments = parser.parse_args()

    mesh = Mesh(jax.devices(), ("ranks",))
    along = PartitionSpec(None, None, "ranks", None)

    @jax.jit
    @jax.shard_map(mesh=mesh, in_specs=along, out_specs=along)
    def attend(x):
        return distributed.ring_attention(x, x, x, group="ranks", layout=arguments.layout, mask=mha.causal()).out

    x = jax.random.normal(jax.random.key(0), (1, 8, arguments.length, 64))
    ranges = distributed.layout_of(arguments.layout, arguments.length, jax.device_count())
    order = jnp.asarray([i for ranges_of_rank in ranges for positions in ranges_of_rank for i in positions])
    out = attend(x[:, :, order])[:, :, jnp.argsort(order)]
    error = np.abs(np.asarray(out) - np.asarray(mha.scaled_dot_product_attention(x, x, x, mask=mha.causal()))).max()
    print(f"{jax.device_count()} devices, {arguments.length} tokens: the greatest difference from one is {error:.1e}")


if __name__ == "__main__":
    main()
