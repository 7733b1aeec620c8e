"""A group of processes of torch.distributed as an engine of ``mha_core.distributed``: gloo, NCCL, and what else torch has."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

Shape = tuple[int, ...]


class Ranks:
    """The ranks of a process group; by default, all of them."""

    def __init__(self, group: Any = None) -> None:
        self.group = dist.group.WORLD if group is None else group
        self.rank, self.size = dist.get_rank(self.group), dist.get_world_size(self.group)
        self._number = dist.get_process_group_ranks(self.group)

    def shift(self, arrays: Sequence[Tensor], like: Sequence[tuple[Shape, Tensor]]) -> Callable[[], list[Tensor]]:
        """Start to send tensors to the next rank; return a function that waits for those of the previous one."""
        following, previous = self._number[(self.rank + 1) % self.size], self._number[self.rank - 1]
        sent = [x.contiguous() for x in arrays]
        received = [torch.empty(shape, dtype=x.dtype, device=x.device) for shape, x in like]
        sends = [dist.P2POp(dist.isend, x, following, self.group) for x in sent]
        receives = [dist.P2POp(dist.irecv, x, previous, self.group) for x in received]
        works = dist.batch_isend_irecv([*sends, *receives]) if sends or receives else []

        def arrive() -> list[Tensor]:
            for work in works:
                work.wait()
            sent.clear()  # they must live until they have been sent
            return received

        return arrive

    def all_gather(self, array: Tensor, shapes: Sequence[Shape]) -> list[Tensor]:
        """Return the tensor of each rank, whose lengths may differ."""
        found = []
        for rank, shape in enumerate(shapes):
            x = array.contiguous() if rank == self.rank else torch.empty(shape, dtype=array.dtype, device=array.device)
            dist.broadcast(x, self._number[rank], group=self.group)
            found.append(x)
        return found

    def tell(self, text: str) -> list[str]:
        """Return the texts of all ranks."""
        found: list[Any] = [None] * self.size
        dist.all_gather_object(found, text, group=self.group)
        return found
