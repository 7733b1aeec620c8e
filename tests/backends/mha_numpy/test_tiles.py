"""Few queries over many keys on NumPy: results, and products during which other threads can work."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from judged_attention import inputs, judge

import mha_core as mha
from mha_numpy import blas
from mha_numpy.attention import tiles


@pytest.mark.parametrize("num_keys", [8192, 4099])
@pytest.mark.parametrize(("length", "heads", "width"), [(1, 1, 64), (1, 8, 64), (3, 2, 64), (1, 4, 1), (20, 1, 3)])
def test_few_queries_over_many_keys(rng, length, heads, width, num_keys):
    query, key, value = inputs(rng, length, num_keys, heads=heads, width=width)
    judge(query, key, value)
    judge(query, *(np.moveaxis(np.ascontiguousarray(np.moveaxis(x, -3, -2)), -2, -3) for x in (key, value)))
    offset, allowed = num_keys - length, np.tri(length, num_keys, num_keys - length, dtype=bool)
    judge(query, key, value, mask=mha.causal(), query_offset=offset, allowed=allowed)


@pytest.mark.skipif(not hasattr(time, "pthread_getcpuclockid"), reason="this system lacks time.pthread_getcpuclockid")
@pytest.mark.parametrize("size", [128, 500, 512])
def test_another_thread_works_during_a_long_product(size):
    """For results so small that np.matmul would hold the interpreter lock, and for larger ones."""
    heads, keys = 4, 1 << 17
    weights = np.ones((1, heads, 1, keys), dtype=np.float32)
    value = np.broadcast_to(np.ones((keys, size // heads), dtype=np.float32), (1, heads, keys, size // heads))
    out = np.empty((1, heads, 1, size // heads), dtype=np.float32)
    clock = time.pthread_getcpuclockid(threading.get_ident())  # stands still while this thread waits for the interpreter lock
    seen, ends = [], threading.Event()

    def work():
        while not ends.is_set():
            seen.append(time.clock_gettime(clock))

    def worked_in_the_middle():
        seen.clear()
        with blas.one_thread:
            start = time.clock_gettime(clock)
            tiles._product(weights, value, out)
            stop = time.clock_gettime(clock)
        quarter = (stop - start) / 4
        return any(start + quarter < at < stop - quarter for at in tuple(seen))

    with ThreadPoolExecutor(1) as other:
        other.submit(work)
        try:
            assert any(worked_in_the_middle() for _ in range(300))  # on a single core the other thread wakes up late
        finally:
            ends.set()
    np.testing.assert_array_equal(out, keys)
