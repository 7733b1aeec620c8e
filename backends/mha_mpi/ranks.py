"""A communicator of mpi4py as an engine of ``mha_core.distributed``.

MPI waits for ever for a rank that sends nothing. Here every wait has an end: messages are non-blocking, and tested until a
timeout. Arrays are sent as bytes from their own memory; those of CuPy need an MPI that is CUDA-aware.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import numpy
from mpi4py import MPI

Shape = tuple[int, ...]
LIBRARIES = ("numpy", "cupy")

_BROKEN = MPI.Comm.Create_keyval()  # the attribute of a communicator that says why it cannot be used any more
_unfinished: dict[int, list[tuple[Any, str, Any]]] = {}
"""Messages of exchanges that have not ended, or never will: MPI may still read and write their memory."""


class Ranks:
    """The ranks of an intracommunicator.

    ``timeout`` is in seconds: a wait that takes longer raises TimeoutError, which names the ranks that were waited for. If an
    exchange ends with an error, its messages are lost, and the communicator is not used again: RuntimeError says why.
    """

    def __init__(self, comm: Any, timeout: float = 300.0) -> None:
        if not isinstance(comm, MPI.Intracomm):
            raise TypeError(f"group is {type(comm).__name__}; expected an intracommunicator, such as MPI.COMM_WORLD")
        self.comm, self.timeout = comm, timeout
        self.rank, self.size = comm.Get_rank(), comm.Get_size()

    def shift(self, arrays: Sequence[Any], like: Sequence[tuple[Shape, Any]]) -> Callable[[], list[Any]]:
        """Start to send arrays to the next rank; return a function that waits for those of the previous one."""
        following, previous = (self.rank + 1) % self.size, (self.rank - 1) % self.size
        with self._whole(arrays):
            received = [_empty(shape, x) for shape, x in like]
            return self._exchange([(x, following) for x in arrays], [(x, previous) for x in received], received)

    def all_gather(self, array: Any, shapes: Sequence[Shape]) -> list[Any]:
        """Return the array of each rank, whose lengths may differ."""
        return self.all_to_all([array] * self.size, shapes)

    def all_to_all(self, arrays: Sequence[Any], shapes: Sequence[Shape]) -> list[Any]:
        """Send an array to each rank; return those that the ranks sent to this one."""
        with self._whole(arrays):
            received = [_empty(shape, arrays[0]) for shape in shapes]
            received[self.rank] = arrays[self.rank]
            peers = [rank for rank in range(self.size) if rank != self.rank]
            return self._exchange([(arrays[r], r) for r in peers], [(received[r], r) for r in peers], received)()

    def all_gather_text(self, text: str) -> list[str]:
        """Return the text of each rank."""
        encoded = numpy.frombuffer(text.encode(), dtype=numpy.uint8)
        lengths = self.all_gather(numpy.asarray([encoded.size]), [(1,)] * self.size)
        gathered = self.all_gather(encoded, [(int(length[0]),) for length in lengths])
        return [each.tobytes().decode() for each in gathered]

    @contextmanager
    def _whole(self, arrays: Sequence[Any] = ()) -> Iterator[None]:
        """Let nothing be sent after a part of an exchange that raised: other ranks would take it for what is missing."""
        if (reason := self.comm.Get_attr(_BROKEN)) is not None:
            raise RuntimeError(
                f"the communicator cannot be used any more, since an exchange of rank {self.rank} ended with {reason}: "
                "make another one on all ranks, such as MPI.COMM_WORLD.Dup()"
            )
        for x in arrays:
            _library(x)
        try:
            yield
        except BaseException as error:
            self.comm.Set_attr(_BROKEN, f"{type(error).__name__}: {error}")
            raise

    def _exchange(
        self, sent: Sequence[tuple[Any, int]], received: Sequence[tuple[Any, int]], results: list[Any]
    ) -> Callable[[], list[Any]]:
        """Start to send arrays to ranks, and to fill others from ranks; return a function that waits, and returns ``results``.

        An array without elements is not sent.
        """
        open_: list[tuple[Any, str, Any]] = []
        _unfinished[id(open_)] = open_
        for x, rank in received:
            if x.size:
                open_.append((self.comm.Irecv(_memory(x), rank), f"from rank {rank}", x))
        for x, rank in ((_contiguous(x), rank) for x, rank in sent if x.size):
            open_.append((self.comm.Isend(_memory(x), rank), f"to rank {rank}", x))

        def receive() -> list[Any]:
            with self._whole():
                self._wait(open_)
            _unfinished.pop(id(open_), None)
            return results

        return receive

    def _wait(self, messages: list[tuple[Any, str, Any]]) -> None:
        """Wait for messages, each with its ranks in words and its memory. Raises TimeoutError."""
        start, pause = time.monotonic(), 0.0
        while not MPI.Request.Testall([request for request, _, _ in messages]):
            if time.monotonic() - start > self.timeout:
                late = ", ".join(dict.fromkeys(where for request, where, _ in messages if not request.Test()))
                raise TimeoutError(f"rank {self.rank} waited {self.timeout:g} s for messages {late}")
            time.sleep(pause)  # 0 lets another process have the processor; a longer wait takes none of it
            pause = min(pause + 1e-6, 1e-3)


def _library(x: Any) -> Any:
    """Return the module of an array's library. Raises TypeError for arrays that MPI cannot send."""
    name = type(x).__module__.partition(".")[0]
    if name not in LIBRARIES:
        raise TypeError(
            f"an MPI communicator sends arrays of NumPy and CuPy, but this is a {name}.{type(x).__qualname__}: "
            "take an engine of its own library, such as a process group of torch.distributed"
        )
    return import_module(name)


def _contiguous(x: Any) -> Any:
    """Return an array whose elements lie in order, and are computed; itself if they do."""
    x = _library(x).ascontiguousarray(x)
    if hasattr(x, "__cuda_array_interface__"):
        sys.modules["cupy"].cuda.get_current_stream().synchronize()  # MPI knows no streams
    return x


def _empty(shape: Shape, like: Any) -> Any:
    return _library(like).empty(shape, dtype=like.dtype)


def _memory(x: Any) -> list[Any]:
    """Return an array as bytes, which hold every dtype."""
    return [x.reshape(-1).view("uint8"), MPI.BYTE]
