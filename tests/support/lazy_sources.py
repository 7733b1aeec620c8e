"""Dask arrays for tests, and sources that count what is read."""

from collections import Counter

import needs
import numpy as np

dask, da = map(needs.Library, ("dask", "dask.array"))


def close(actual, expected, atol=1e-12):
    assert isinstance(actual, da.Array)
    np.testing.assert_allclose(actual.compute(), expected, rtol=0, atol=atol)


def in_chunks(size):
    return lambda x: da.from_array(x, chunks=tuple(min(size, n) if n else 1 for n in x.shape))


class Source:
    """Arrays (heads, length, width) that are made when they are read, one chunk at a time; counts what is read."""

    def __init__(self, length, chunk, *, heads=1, width=4, dtype=np.float64, allowed=None):
        self.length, self.chunk, self.allowed = length, chunk, allowed
        self.shape, self.dtype = (heads, chunk, width), dtype
        self.read = Counter()

    def chunk_of(self, name, at):
        assert self.allowed is None or at in self.allowed, f"chunk {at} of {name} is read"
        self.read[name, at] += 1
        return np.random.default_rng([at, len(name)]).normal(size=self.shape).astype(self.dtype)

    def lazy(self, name):
        chunks = (dask.delayed(self.chunk_of)(name, at) for at in range(self.length // self.chunk))
        return da.concatenate([da.from_delayed(x, self.shape, self.dtype) for x in chunks], axis=1)

    def numpy(self, name):
        return np.concatenate([self.chunk_of(name, at) for at in range(self.length // self.chunk)], axis=1)
