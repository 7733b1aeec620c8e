"""Dropout by a seed, in NumPy's integers of 32 bits, independent of the algebra."""

from __future__ import annotations

from zlib import crc32

import numpy as np


def kept_by_seed(shape: tuple[int, ...], rate: float, seed: int, name: str = "") -> np.ndarray:
    """Return what dropout keeps of an array: the elements whose hash, as a fraction of 2^24, is at least ``rate``.

    The hash follows from ``seed``, below 2^32, and from the index on each axis; several axes that the algebra counts as one are
    one axis here. With ``name``, the seed is that of a sublayer of this name.
    """
    cells = _word(int(_word(int(_word(seed)) ^ crc32(name.encode()))) if name else seed)
    indices = [np.arange(n, dtype=np.uint32) for n in shape]
    for index in indices[:-1]:
        cells = _hash(cells[..., None] ^ index)
    return _hash(cells[..., None] ^ _hash(indices[-1])) >> np.uint32(8) >= np.ceil(rate * 2**24)


def _word(seed: int) -> np.ndarray:
    """Return the hash of an integer, without its highest bit."""
    return _hash(np.asarray([seed], dtype=np.uint32))[0] & np.asarray(2**31 - 1, dtype=np.uint32)


def _hash(x: np.ndarray) -> np.ndarray:
    """Return a hash of 32 bits (C. Wellons and T. Ettinger, hash-prospector)."""
    for factor, shift in ((0x21F0AAAD, 16), (0x735A2D97, 15)):
        x = (x ^ x >> np.uint32(shift)) * np.uint32(factor)
    return x ^ x >> np.uint32(15)
