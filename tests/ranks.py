"""Ranks as threads of one process: an engine for tests of ``mha_core.distributed``."""

import queue
import threading

WAIT = 30  # seconds, after which a rank that waits for another fails


class World:
    """What the ranks share."""

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

        def arrive():
            found = self.world.boxes[self.rank].get(timeout=WAIT) if like else []
            assert [(x.shape, x.dtype) for x in found] == [(shape, x.dtype) for shape, x in like]
            return found

        return arrive

    def all_gather(self, array, shapes):
        found = self._exchanged(array)
        assert [x.shape for x in found] == [tuple(shape) for shape in shapes]
        return found

    def all_to_all(self, arrays, shapes):
        found = [sent[self.rank] for sent in self._exchanged(arrays)]
        assert [x.shape for x in found] == [tuple(shape) for shape in shapes] and len({x.dtype for x in found}) == 1
        return found

    def tell(self, text):
        return self._exchanged(text)

    def _exchanged(self, x):
        self.world.slots[self.rank] = x
        self.world.barrier.wait(WAIT)
        found = list(self.world.slots)
        self.world.barrier.wait(WAIT)
        return found


def run(size, function):
    """Call ``function(engine)`` on each rank; return the results, or the error of a rank in place of its result."""
    world, found = World(size), [None] * size

    def go(rank):
        try:
            found[rank] = function(Threads(world, rank))
        except Exception as error:
            found[rank] = error

    threads = [threading.Thread(target=go, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found, world


def results(size, function):
    """Return the results of all ranks; raise the first error."""
    found, _ = run(size, function)
    for error in found:
        if isinstance(error, Exception):
            raise error
    return found
