"""Causal attention over a sequence that is spread over processes: each holds its part of queries, keys and values.

torchrun --nproc-per-node 2 examples/ring.py --length 4096
"""

import argparse

import torch
import torch.distributed as dist

import mha_core as mha
from mha_core import distributed
from mha_torch.ranks import Ranks


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--length", type=int, default=4096, help="tokens of the whole sequence")
    parser.add_argument("--layout", default="zigzag", choices=["contiguous", "zigzag", "striped"])
    arguments = parser.parse_args()

    dist.init_process_group("gloo")
    group = Ranks()
    length = sum(map(len, distributed.layout_of(arguments.layout, arguments.length, group.size)[group.rank]))
    generator = torch.Generator().manual_seed(group.rank)
    query, key, value = (torch.randn(1, 8, length, 64, generator=generator) for _ in range(3))
    state = distributed.ring_attention(query, key, value, group=group, layout=arguments.layout, mask=mha.causal())

    whole = [distributed.unshard(x, arguments.layout, group=group) for x in (query, key, value, state.out)]
    if group.rank == 0:
        error = (mha.scaled_dot_product_attention(*whole[:3], mask=mha.causal()) - whole[3]).abs().max()
        print(f"{group.size} ranks, {arguments.length} tokens: the greatest difference from one process is {error:.1e}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
