"""Causal attention on NumPy over a sequence that is spread over the ranks of MPI.

mpiexec -n 2 python examples/ring_mpi.py --length 4096
"""

import argparse

import numpy as np
from mpi4py import MPI

import mha_core as mha
from mha_core import distributed


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--length", type=int, default=4096, help="tokens of the whole sequence")
    parser.add_argument("--layout", default="zigzag", choices=["contiguous", "zigzag", "striped"])
    arguments = parser.parse_args()

    group = MPI.COMM_WORLD
    length = sum(map(len, distributed.layout_of(arguments.layout, arguments.length, group.size)[group.rank]))
    random = np.random.default_rng(group.rank)
    query, key, value = random.normal(size=(3, 1, 8, length, 64)).astype(np.float32)
    state = distributed.ring_attention(query, key, value, group=group, layout=arguments.layout, mask=mha.causal())

    whole = [distributed.unshard(x, arguments.layout, group=group) for x in (query, key, value, state.out)]
    if group.rank == 0:
        error = np.abs(mha.scaled_dot_product_attention(*whole[:3], mask=mha.causal()) - whole[3]).max()
        print(f"{group.size} ranks, {arguments.length} tokens: the greatest difference from one process is {error:.1e}")


if __name__ == "__main__":
    main()
