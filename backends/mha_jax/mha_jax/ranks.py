"""A mesh axis inside ``jax.shard_map`` as an engine of ``mha_core.distributed``: one compiled program on all devices."""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp

from mha_core.plugin import DynamicRange


class Axis:
    """The devices along a named axis of a mesh."""

    rank = None  # known only when the program runs

    def __init__(self, name: str) -> None:
        self.name, self.size = name, jax.lax.axis_size(name)

    def rank_range(self, ranges: Sequence[range]) -> DynamicRange:
        starts = jnp.asarray([each.start for each in ranges])
        return DynamicRange(starts[jax.lax.axis_index(self.name)], len(ranges[0]), jax.lax.dynamic_slice_in_dim)

    def shift(self, arrays: Sequence[jax.Array], like: object) -> Callable[[], list[jax.Array]]:
        ring = [(rank, (rank + 1) % self.size) for rank in range(self.size)]
        received = [jax.lax.ppermute(x, self.name, ring) for x in arrays]
        return lambda: received

    def all_gather(self, array: jax.Array, shapes: object) -> list[jax.Array]:
        return list(jax.lax.all_gather(array, self.name))

    def all_to_all(self, arrays: Sequence[jax.Array], shapes: object) -> list[jax.Array]:
        return list(jax.lax.all_to_all(jnp.stack(arrays), self.name, 0, 0))

    def all_gather_text(self, text: str) -> list[str]:
        return [text] * self.size  # the same program, and so the same text, on all ranks
