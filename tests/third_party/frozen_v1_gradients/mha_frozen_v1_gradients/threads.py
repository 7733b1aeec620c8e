"""A function of many items on threads. ``count`` is their number."""

from collections import deque
from concurrent.futures import ThreadPoolExecutor

count = at_first = 2


def set_num_threads(n):
    global count
    count = at_first if n is None else n


def parallel(function, items):
    """Yield function(item) in order; some items are read ahead. A call inside the function has threads of its own."""
    with ThreadPoolExecutor(count) as threads:
        ahead = deque()
        for item in items:
            ahead.append(threads.submit(function, item))
            if len(ahead) > 2 * count:
                yield ahead.popleft().result()
        while ahead:
            yield ahead.popleft().result()
