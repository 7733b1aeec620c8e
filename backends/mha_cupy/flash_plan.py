"""How attention in one kernel is cut into blocks and parts, and what is launched: once for all problems of one layout."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy

from .launch import c_name
from .terms import FAR

_WARPS = 8  # that a multiprocessor runs at once, by their registers
_STEPS = 4  # that a part of the keys has at least: less would go into beginning and combining
_COMBINING = 4  # warps of a block that combines parts, a row each


class Layout(NamedTuple):
    """Of an array; strides in elements."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: Any


@dataclass(frozen=True)
class Shape:
    """Of a block: ``warps`` with ``tiles`` of 16 rows each, and how many ``keys`` it takes in a step.

    plain: nothing but a band, lengths or sequences stands between scores and softmax.
    """

    warps: int
    tiles: int
    keys: int
    plain: bool

    @property
    def rows(self) -> int:
        return 16 * self.warps * self.tiles


@lru_cache(maxsize=4096)
def cut(out: tuple[int, ...], keys: tuple[int, int], *, plain: bool, multiprocessors: int) -> tuple[Shape, int]:
    """The shape of blocks, and in how many parts the keys are computed. out: (b, K, G, L, E). keys: (S, D)."""
    batch, heads, groups, rows, value_dim = out
    num_keys, dim = keys
    shape = shape_of_block(dim, value_dim, groups * rows, plain=plain)
    blocks = batch * heads * -(-groups * rows // shape.rows)
    return shape, parts_of_keys(blocks, num_keys, shape, multiprocessors)


def shape_of_block(dim: int, value_dim: int, rows: int, *, plain: bool) -> Shape:
    """As much as the registers of a block hold without spilling, on sm_80, sm_90 and sm_100; no more rows than there are."""
    warps = 1 if rows <= 16 else 2 if rows <= 32 else 4
    tiles = 2 if rows > 64 and value_dim <= 128 else 1
    widest = max(dim, value_dim)
    keys = 64 if widest <= 64 else 48 if plain and widest <= 192 else 32
    return Shape(warps, tiles, keys, plain)


def parts_of_keys(blocks: int, num_keys: int, shape: Shape, multiprocessors: int) -> int:
    """How many blocks share the keys of a row: one, unless more would find a place at once."""
    places = _WARPS // shape.warps * multiprocessors
    return max(1, min(places // blocks, num_keys // (shape.keys * _STEPS)))


def _padded(length: int) -> int:
    return -(-length // 16) * 16


def _pitch(length: int) -> int:
    """From row to row of a tile, as tiles.cuh has it."""
    return _padded(length) + 8


@dataclass(frozen=True)
class Plan:
    """What is launched for problems that differ in numbers alone."""

    defines: tuple[str, ...]
    grid: int
    block: int
    shared: int
    scalars: tuple[Any, ...]


@lru_cache(maxsize=4096)
def of_flash(
    shape: Shape,
    layouts: tuple[Layout | None, ...],
    *,
    aligned: bool,
    numbers: tuple[float, ...],
    band: tuple[int, int],
    shift: int,
) -> Plan:
    """layouts: of query, key, value, out, lengths, mask and bias. aligned: whether what is read begins where 16 bytes do."""
    query, key, value, out, lengths, mask, bias = layouts
    assert query and key and value and out
    dim, value_dim = query.shape[-1], value.shape[-1]
    read_at_once = all(x.shape[-1] % 8 == 0 and not any(step % 8 for step in x.strides[:-1]) for x in (query, key, value))
    types = {"DTYPE": query, "OUT": out, "BIAS": bias or query}
    sizes = {
        "DIM": _padded(dim),
        "VALUE_DIM": _padded(value_dim),
        "PACK": 8 if aligned and read_at_once else 1,
        "WARPS": shape.warps,
        "TILES": shape.tiles,
        "KEYS": shape.keys,
        "TERMS": int(not shape.plain),
    }
    steps = ((query, 4), (key, 3), (value, 3), (out, 5), (lengths, 1), (mask, 4), (bias, 4))
    return Plan(
        defines=_defines(types, sizes),
        grid=math.prod(out.shape[:3]) * -(-math.prod(out.shape[3:5]) // shape.rows),
        block=32 * shape.warps,
        shared=2 * ((shape.rows + shape.keys) * _pitch(dim) + shape.keys * _pitch(value_dim)),
        scalars=(
            *(numpy.int64(step) for x, axes in steps for step in ((0,) * axes if x is None else x.strides[:axes])),
            *map(numpy.int32, (*out.shape[:-1], key.shape[-2], dim, value_dim)),
            *map(numpy.float32, numbers),
            *map(numpy.int32, (*band, band != (-FAR, FAR), shift)),
        ),
    )


@lru_cache(maxsize=4096)
def of_combine(outs: tuple[int, ...], out: Layout) -> Plan:
    """outs: (parts, b, K, G, L, E), out without the parts."""
    anything = {"DIM": 16, "VALUE_DIM": 16, "PACK": 1, "WARPS": 1, "TILES": 1, "KEYS": 16, "TERMS": 0}  # of the other kernel
    return Plan(
        defines=_defines(dict.fromkeys(("DTYPE", "OUT", "BIAS"), out), anything),
        grid=-(-math.prod(out.shape[:-1]) // _COMBINING),
        block=32 * _COMBINING,
        shared=0,
        scalars=(*map(numpy.int64, out.strides[:4]), *map(numpy.int32, outs)),
    )


def _defines(types: dict[str, Layout], sizes: dict[str, int]) -> tuple[str, ...]:
    return (*(f"{name}={c_name(x.dtype)}" for name, x in types.items()), *(f"{name}={n}" for name, n in sizes.items()))
