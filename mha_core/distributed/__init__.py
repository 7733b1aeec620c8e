"""Attention over sequences that are spread over many processes.

Attention over some keys is a state, and states merge: whoever holds which keys, each rank computes the states that it can. What
travels is keys and values, or states; an ``Engine`` sends them.
"""

from .agreement import RankFailed, RanksDiffer
from .attention import ring_attention, split_attention
from .engine import Engine
from .heads import heads_attention
from .layout import layout_of
from .sharding import Sharding
from .shards import shard, unshard

__all__ = [
    "Engine",
    "RankFailed",
    "RanksDiffer",
    "Sharding",
    "heads_attention",
    "layout_of",
    "ring_attention",
    "shard",
    "split_attention",
    "unshard",
]
