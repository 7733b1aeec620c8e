"""Masks that the compiled module has no other form for: maps of tiles of 64 queries and 64 keys, and bits of pairs in doubt."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from mha_core.plugin import BLOCK, AttentionProblem, MappedMask, Relation, pieces, spans

_PAIRS = 1 << 20  # evaluated together
_EVERY, _SOME = 1, 2  # in a map; a tile of which only some pairs attend has _SOME + its number


class TileMap(NamedTuple):
    """A mask as src/tile_map.h reads it."""

    tiles: np.ndarray
    """(..., H, tiles of queries, tiles of keys), int32."""
    words: np.ndarray
    """(number of tiles in doubt, 64), uint64: a row of each tile."""


def tile_map(p: AttentionProblem, to_numpy: Callable[[Any], np.ndarray]) -> TileMap:
    """Return the map of the problem's other masks. That of a ``block_mask`` is made once, and kept with it."""
    mask: Any = p.structure.rest
    keys = p.structure.keys
    if not isinstance(mask, MappedMask) or mask.codes_at(p.offset) is None or keys.start % BLOCK:
        return _joined(p, _evaluated(p, range(p.query.shape[-2]), keys, to_numpy))
    kept = mask.memo.setdefault("mha_native", {})
    if keys not in kept:
        kept[keys] = _from_codes(p, mask.codes, to_numpy)
    made: TileMap = kept[keys]
    return made


def _evaluated(
    p: AttentionProblem, rows: range, cols: range, to_numpy: Callable[[Any], np.ndarray]
) -> Iterator[tuple[range, range, np.ndarray]]:
    """Yield some queries, which begin a tile, some of the caller's keys, and a word for each query and tile of these keys."""
    mask: Any = p.structure.rest
    copies = max(1, int(np.prod(mask.block(p.grid(range(1), cols[:1])).shape[:-2])))
    for strip in pieces(rows, max(1, _PAIRS // (copies * len(cols)) // BLOCK) * BLOCK):
        pairs = np.atleast_2d(to_numpy(mask.block(p.grid(strip, cols))))
        pairs = np.broadcast_to(pairs, (*pairs.shape[:-2], len(strip), len(cols)))
        missing = -len(cols) % BLOCK
        if missing:
            pairs = np.pad(pairs, [(0, 0)] * (pairs.ndim - 1) + [(0, missing)])
        packed = np.ascontiguousarray(np.packbits(pairs, axis=-1, bitorder="little"))
        yield strip, cols, packed.view("<u8").astype(np.uint64, copy=False)


def _joined(p: AttentionProblem, strips: Iterator[tuple[range, range, np.ndarray]]) -> TileMap:
    """Return the map of strips of queries with all keys."""
    shares, all_words, number = [], [], 0
    for rows, cols, words in strips:
        share, in_doubt = _classified(words, len(rows), len(cols), number)
        number += len(in_doubt)
        shares.append(share)
        all_words.append(in_doubt)
    leading = np.broadcast_shapes(*(share.shape[:-2] for share in shares))
    whole = np.concatenate([np.broadcast_to(share, (*leading, *share.shape[-2:])) for share in shares], axis=-2)
    return TileMap(whole, np.concatenate(all_words))


def _classified(words: np.ndarray, num_rows: int, num_cols: int, number: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the map of words (..., queries, tiles of keys), and the words of tiles in doubt, after ``number`` others."""
    last = np.uint64((1 << (num_cols % BLOCK or BLOCK)) - 1)
    every = np.full(words.shape[-1], ~np.uint64(0))
    every[-1] = last
    missing = -num_rows % BLOCK
    tall = np.pad(words, [(0, 0)] * (words.ndim - 2) + [(0, missing), (0, 0)]) if missing else words
    tall = tall.reshape(*words.shape[:-2], -1, BLOCK, words.shape[-1])
    full = tall == every
    if missing:
        full[..., -1, BLOCK - missing :, :] = True
    share = np.where(full.all(axis=-2), _EVERY, 0).astype(np.int32)
    in_doubt = tall.any(axis=-2) & (share == 0)
    share[in_doubt] = _SOME + number + np.arange(np.count_nonzero(in_doubt), dtype=np.int32)
    return share, np.moveaxis(tall, -2, -1)[in_doubt]


def _from_codes(p: AttentionProblem, codes: Any, to_numpy: Callable[[Any], np.ndarray]) -> TileMap:
    """Return the map of a mask whose tiles are known, but for those in doubt, which are evaluated."""
    keys, queries = p.structure.keys, p.query.shape[-2]
    first = keys.start // BLOCK
    known = np.frombuffer(b"".join(codes), dtype=np.uint8).reshape(len(codes), -1)[:, first : first + -(-len(keys) // BLOCK)]
    parts: list[tuple[int, int, np.ndarray]] = []
    all_words, number = [np.empty((0, BLOCK), dtype=np.uint64)], 0
    for rows in pieces(range(queries), BLOCK):
        for _, cols, masked in spans(codes, rows, keys):
            for masked_rows in masked:
                ((_, _, words),) = _evaluated(p, masked_rows, cols, to_numpy)
                share, in_doubt = _classified(words, len(masked_rows), len(cols), number)
                number += len(in_doubt)
                all_words.append(in_doubt)
                parts.append((rows.start // BLOCK, cols.start // BLOCK - first, share))
    leading = np.broadcast_shapes(*(share.shape[:-2] for _, _, share in parts)) if parts else ()
    tiles = np.empty((*leading, *known.shape), dtype=np.int32)
    tiles[...] = known == Relation.ALL
    for row, col, share in parts:
        tiles[..., row : row + 1, col : col + share.shape[-1]] = share
    return TileMap(tiles, np.concatenate(all_words))
