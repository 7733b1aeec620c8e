"""Tasks that wait for each other, and so run at the same time."""

import threading

import pytest

from mha_numpy import threads

AT_MOST = 30  # seconds to wait for what must happen


def meeting(count):
    return threading.Barrier(count, timeout=AT_MOST)


def collected(function, items):
    """The results of ``threads.run``, in the order of the items."""
    results = {}
    threads.run(lambda item: results.__setitem__(item, function(item)), items)
    return [results[item] for item in items]


BOTH = pytest.mark.parametrize(
    "compute", [collected, lambda function, items: list(threads.parallel(function, items))], ids=["run", "parallel"]
)
