"""The launch configuration of the kernel ``flash``, computed once for all problems of one layout."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy

from ..launch import Launch, c_name

_WARPS = 8  # warps that a multiprocessor runs at the same time; its registers allow no more
_MIN_STEPS = 4  # steps of a split: with fewer, too much of the time goes into starting and combining
_COMBINE_WARPS = 4  # warps of a thread block that combines splits; each combines one row


class Layout(NamedTuple):
    """An array's shape, its strides in elements, and its dtype."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: Any


@dataclass(frozen=True)
class ThreadBlock:
    """The work of one thread block."""

    warps: int
    tiles: int
    """Tiles of 16 rows for each warp."""
    keys: int
    """Keys in each step."""
    plain: bool
    """True if only a band, lengths or packed sequences modify the scores."""

    @property
    def rows(self) -> int:
        return 16 * self.warps * self.tiles


@lru_cache(maxsize=4096)
def block_and_splits(
    out: tuple[int, ...], keys: tuple[int, int], *, plain: bool, multiprocessors: int
) -> tuple[ThreadBlock, int]:
    """Return a thread block, and how many splits the keys have. out: (b, K, G, L, E). keys: (S, D)."""
    batch, heads, groups, rows, value_dim = out
    num_keys, dim = keys
    block = thread_block(dim, value_dim, groups * rows, plain=plain)
    blocks = batch * heads * -(-groups * rows // block.rows)
    return block, num_splits(blocks, num_keys, block, multiprocessors)


def thread_block(dim: int, value_dim: int, rows: int, *, plain: bool) -> ThreadBlock:
    """Return the largest thread block that spills no registers on sm_80, sm_90 and sm_100, with no more rows than needed."""
    warps = 1 if rows <= 16 else 2 if rows <= 32 else 4
    tiles = 2 if rows > 64 and value_dim <= 128 else 1
    widest = max(dim, value_dim)
    keys = 64 if widest <= 64 else 48 if plain and widest <= 192 else 32
    return ThreadBlock(warps, tiles, keys, plain)


def num_splits(blocks: int, num_keys: int, block: ThreadBlock, multiprocessors: int) -> int:
    """Return how many thread blocks share the keys of a row: more than one only if the GPU can run them all at once."""
    at_once = _WARPS // block.warps * multiprocessors
    return max(1, min(at_once // blocks, num_keys // (block.keys * _MIN_STEPS)))


def padded(length: int) -> int:
    """Return the next multiple of 16."""
    return -(-length // 16) * 16


def pitch(length: int) -> int:
    """Return the distance between two rows of a tile, as in tiles.cuh."""
    return padded(length) + 8


@lru_cache(maxsize=4096)
def for_flash(
    block: ThreadBlock,
    layouts: tuple[Layout | None, ...],
    *,
    aligned: bool,
    numbers: tuple[float, ...],
    limits: tuple[int, int, int, int],
) -> Launch:
    """Return the launch of ``flash`` without its arrays.

    Parameters
    ----------
    layouts : tuple
        Layouts of query, key, value, out, lengths, mask and bias.
    aligned : bool
        Whether query, key and value begin at multiples of 16 bytes.
    """
    query, key, value, out, lengths, mask, bias = layouts
    assert query and key and value and out
    dim, value_dim = query.shape[-1], value.shape[-1]
    types = {"DTYPE": query.dtype, "OUT": out.dtype, "BIAS": (bias or query).dtype}
    sizes = {
        "DIM": padded(dim),
        "VALUE_DIM": padded(value_dim),
        "PACK": pack(aligned, query, key, value),
        "WARPS": block.warps,
        "TILES": block.tiles,
        "KEYS": block.keys,
        "PLAIN": int(block.plain),
    }
    return Launch(
        "flash.cu",
        "flash",
        defines(types, sizes),
        grid=math.prod(out.shape[:3]) * -(-math.prod(out.shape[3:5]) // block.rows),
        block=32 * block.warps,
        shared=2 * ((block.rows + block.keys) * pitch(dim) + block.keys * pitch(value_dim)),
        args=scalars(
            ((query, 4), (key, 3), (value, 3), (out, 5), (lengths, 1), (mask, 4), (bias, 4)),
            (*out.shape[:-1], key.shape[-2], dim, value_dim),
            numbers,
            limits,
        ),
    )


@lru_cache(maxsize=4096)
def for_combine(outs: tuple[int, ...], out: Layout) -> Launch:
    """Return the launch of ``combine`` without its arrays. outs: (splits, b, K, G, L, E); out: the same without the splits."""
    unused = {"DIM": 16, "VALUE_DIM": 16, "PACK": 1, "WARPS": 1, "TILES": 1, "KEYS": 16, "PLAIN": 1}  # only by ``flash``
    return Launch(
        "flash.cu",
        "combine",
        defines(dict.fromkeys(("DTYPE", "OUT", "BIAS"), out.dtype), unused),
        grid=-(-math.prod(out.shape[:-1]) // _COMBINE_WARPS),
        block=32 * _COMBINE_WARPS,
        args=(*map(numpy.int64, out.strides[:4]), *map(numpy.int32, outs)),
    )


def defines(types: dict[str, Any], sizes: dict[str, int]) -> tuple[str, ...]:
    """Return the defines that name dtypes and sizes."""
    return (*(f"{name}={c_name(x)}" for name, x in types.items()), *(f"{name}={n}" for name, n in sizes.items()))


def pack(aligned: bool, *layouts: Layout) -> int:
    """Return how many elements a thread copies at once: 8 if all rows are aligned to 16 bytes, else 1."""
    return 8 if aligned and all(x.shape[-1] % 8 == 0 and not any(n % 8 for n in x.strides[:-1]) for x in layouts) else 1


def scalars(
    strides: tuple[tuple[Layout | None, int], ...],
    sizes: tuple[int, ...],
    numbers: tuple[float, ...],
    limits: tuple[int, int, int, int],
) -> tuple[Any, ...]:
    """Return the arguments after the arrays. strides: layouts, each with the number of its axes before the last."""
    return (
        *(numpy.int64(step) for x, axes in strides for step in ((0,) * axes if x is None else x.strides[:axes])),
        *map(numpy.int32, sizes),
        *map(numpy.float32, numbers),
        *map(numpy.int32, limits),
    )
