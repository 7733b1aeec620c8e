"""Ranks as threads of one process: an engine for tests of ``mha_core.distributed``."""

import queue
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from mha_core.distributed import layout_of, shard

WAIT = 30  # seconds, after which a rank that waits for another fails


class World:
    """The state that the ranks share: queues of messages, slots of an exchange, and counts."""

    def __init__(self, size):
        self.size, self.boxes, self.slots = size, [queue.Queue() for _ in range(size)], [None] * size
        self.barrier = threading.Barrier(size)
        self.sent = [0] * size
        """Numbers that each rank has sent to the next."""


class Threads:
    """The engine of one rank. Arrays are NumPy's."""

    def __init__(self, world, rank):
        self.world, self.rank, self.size = world, rank, world.size

    def shift(self, arrays, like):
        if arrays:
            self.world.sent[self.rank] += sum(x.size for x in arrays)
            self.world.boxes[(self.rank + 1) % self.size].put([x.copy() for x in arrays])

        def receive():
            received = self.world.boxes[self.rank].get(timeout=WAIT) if like else []
            assert [(x.shape, x.dtype) for x in received] == [(shape, x.dtype) for shape, x in like]
            return received

        return receive

    def all_gather(self, array, shapes):
        gathered = self._exchanged(array)
        assert [x.shape for x in gathered] == [tuple(shape) for shape in shapes]
        return [x.copy() for x in gathered]

    def all_to_all(self, arrays, shapes):
        received = [sent[self.rank].copy() for sent in self._exchanged(arrays)]
        assert [x.shape for x in received] == [tuple(shape) for shape in shapes] and len({x.dtype for x in received}) == 1
        return received

    def all_gather_text(self, text):
        return self._exchanged(text)

    def _exchanged(self, x):
        self.world.slots[self.rank] = x
        self.world.barrier.wait(WAIT)
        slots = list(self.world.slots)
        self.world.barrier.wait(WAIT)
        return slots


def run(size, function):
    """Return the results of ``function(engine)`` on each rank, or the error of a rank in place of its result, and the world."""
    world = World(size)
    with ThreadPoolExecutor(size) as threads:
        futures = [threads.submit(function, Threads(world, rank)) for rank in range(size)]
    return [future.exception() or future.result() for future in futures], world


def results(size, function):
    """Return the results of all ranks; raise the first error."""
    outcomes, _ = run(size, function)
    for error in outcomes:
        if isinstance(error, Exception):
            raise error
    return outcomes


def assert_refused(size, function, error, message):
    """Assert that a function raises an error with a message on every rank."""
    for outcome in run(size, function)[0]:
        with pytest.raises(error, match=message):
            raise outcome


def states(size, attend, arrays, layout="contiguous", **options):
    """Return the state of each rank, by attention over ranks to its parts of whole arrays."""

    def on_rank(group):
        return attend(*(shard(x, layout, group=group) for x in arrays), group=group, layout=layout, **options)

    return results(size, on_rank)


def assert_parts(parts, whole, layout="contiguous", *, axis=-2, tolerance=1e-12, context=""):
    """Assert that the array of each rank is its part of the whole array."""
    for part, ranges in zip(parts, layout_of(layout, whole.shape[axis], len(parts)), strict=True):
        positions = [position for each in ranges for position in each]
        expected = np.take(whole, positions, axis)
        np.testing.assert_allclose(part, expected, rtol=0, atol=tolerance, err_msg=f"{context} positions {positions}")


def assert_state_parts(parts, whole, layout="contiguous"):
    """Assert that the state of each rank is its part of the whole state."""
    assert_parts([part.out for part in parts], whole.out, layout)
    assert_parts([part.lse for part in parts], whole.lse, layout, axis=-1)
