"""A group of processes of torch.distributed as an engine of ``mha_core.distributed``: gloo, NCCL, and what else torch has."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

Shape = tuple[int, ...]
_broken: WeakKeyDictionary[Any, str] = WeakKeyDictionary()
"""Why a process group cannot be used any more."""


class Ranks:
    """The ranks of a process group, or of a mesh of devices with one axis; by default, all of them."""

    def __init__(self, group: Any = None) -> None:
        # None stands for all ranks: who holds their group keeps torch from destroying it
        self.group = group.get_group() if isinstance(group, DeviceMesh) else group
        self.rank, self.size = dist.get_rank(self.group), dist.get_world_size(self.group)
        self._number = dist.get_process_group_ranks(self.group)

    def shift(self, arrays: Sequence[Tensor], like: Sequence[tuple[Shape, Tensor]]) -> Callable[[], list[Tensor]]:
        """Start to send tensors to the next rank; return a function that waits for those of the previous one."""
        following, previous = (self.rank + 1) % self.size, (self.rank - 1) % self.size
        with self._whole():
            received = [torch.empty(shape, dtype=x.dtype, device=x.device) for shape, x in like]
            return self._exchange([(x, following) for x in arrays], [(x, previous) for x in received], received)

    def all_gather(self, array: Tensor, shapes: Sequence[Shape]) -> list[Tensor]:
        """Return the tensor of each rank, whose lengths may differ."""
        gathered = []
        with self._whole():
            for rank, shape in enumerate(shapes):
                x = array.contiguous() if rank == self.rank else torch.empty(shape, dtype=array.dtype, device=array.device)
                dist.broadcast(x, self._number[rank], group=self.group)
                gathered.append(x)
        return gathered

    def all_to_all(self, arrays: Sequence[Tensor], shapes: Sequence[Shape]) -> list[Tensor]:
        """Send a tensor to each rank; return those that the ranks sent to this one."""
        like = arrays[0]
        with self._whole():
            received = [torch.empty(shape, dtype=like.dtype, device=like.device) for shape in shapes]
            received[self.rank] = arrays[self.rank]
            peers = [rank for rank in range(self.size) if rank != self.rank]
            return self._exchange([(arrays[r], r) for r in peers], [(received[r], r) for r in peers], received)()

    def all_gather_text(self, text: str) -> list[str]:
        """Return the text of each rank."""
        texts: list[Any] = [None] * self.size
        with self._whole():
            dist.all_gather_object(texts, text, group=self.group)
        return texts

    @contextmanager
    def _whole(self) -> Iterator[None]:
        """Let nothing be sent after a part of an exchange that raised: other ranks would take it for what is missing."""
        group = dist.group.WORLD if self.group is None else self.group
        if (reason := _broken.get(group)) is not None:
            raise RuntimeError(
                f"the process group cannot be used any more, since an exchange of rank {self.rank} ended with {reason}: "
                "make another one on all ranks, such as torch.distributed.new_group()"
            )
        try:
            yield
        except BaseException as error:
            _broken[group] = f"{type(error).__name__}: {error}"
            raise

    def _exchange(
        self, sent: Sequence[tuple[Tensor, int]], received: Sequence[tuple[Tensor, int]], results: list[Tensor]
    ) -> Callable[[], list[Tensor]]:
        """Start to send tensors to ranks, and to fill others from ranks; return a function that waits, and returns ``results``.

        A tensor without elements is not sent.
        """
        kept = [(x.contiguous(), rank) for x, rank in sent if x.numel()]
        calls = [dist.P2POp(dist.isend, x, self._number[rank], self.group) for x, rank in kept]
        calls += [dist.P2POp(dist.irecv, x, self._number[rank], self.group) for x, rank in received if x.numel()]
        works = dist.batch_isend_irecv(calls) if calls else []

        def receive() -> list[Tensor]:
            with self._whole():
                for work in works:
                    work.wait()
            kept.clear()  # they must live until they have been sent
            return results

        return receive
