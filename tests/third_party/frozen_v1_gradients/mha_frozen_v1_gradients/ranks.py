"""An engine whose ranks are threads of one process: what is sent is put into a queue, as a copy."""

from concurrent.futures import ThreadPoolExecutor
from queue import Empty, SimpleQueue


class Queues:
    """A group: the number of this rank, and a queue from each rank to each."""

    def __init__(self, rank, queues, timeout):
        self.rank, self.queues, self.timeout = rank, queues, timeout


def run(size, function, timeout=60.0):
    """Call function(group) in a thread for each rank; return the results. A rank waits for another for ``timeout`` seconds."""
    queues = [[SimpleQueue() for _ in range(size)] for _ in range(size)]
    with ThreadPoolExecutor(size) as threads:
        return list(threads.map(function, [Queues(rank, queues, timeout) for rank in range(size)]))


class Ranks:
    """The ranks of a group; a queue holds any number of messages, so that sending never waits."""

    def __init__(self, group):
        self.group, self.rank, self.size = group, group.rank, len(group.queues)

    def shift(self, arrays, like):
        """Send arrays to the next rank; return a function that waits for those of the previous one."""
        if arrays:
            self._send([x.copy() for x in arrays], (self.rank + 1) % self.size)
        return lambda: self._receive((self.rank - 1) % self.size) if like else []

    def all_gather(self, array, shapes):
        """The array of each rank."""
        return self.all_to_all([array] * self.size, shapes)

    def all_to_all(self, arrays, shapes):
        """Send an array to each rank; return those that the ranks sent to this one."""
        return self._exchange([x.copy() for x in arrays])

    def all_gather_text(self, text):
        """The text of each rank."""
        return self._exchange([text] * self.size)

    def _exchange(self, messages):
        for rank, message in enumerate(messages):
            self._send(message, rank)
        return [self._receive(rank) for rank in range(self.size)]

    def _send(self, message, rank):
        self.group.queues[self.rank][rank].put(message)

    def _receive(self, rank):
        try:
            return self.group.queues[rank][self.rank].get(timeout=self.group.timeout)
        except Empty:
            raise TimeoutError(f"rank {rank} sent nothing to rank {self.rank} for {self.group.timeout} s") from None
