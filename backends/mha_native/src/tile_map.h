// Masks as tiles of 64 queries and 64 keys: of a tile none, all, or some of the pairs attend, and these are bits.
#pragma once
#include "rows.h"

namespace mha { namespace MHA_LEVEL {

enum Share { NONE, EVERY, SOME };

// The number in a row's map for a tile of keys: NONE, EVERY, or SOME + the number of the tile's words.
MHA_INLINE int32_t tile_at(const Problem& p, const Row& r, ptrdiff_t tile) {
    return *(const int32_t*)(r.tiles + tile * p.tiles.step[2]);
}

// A bit for each of the 64 keys of a tile: whether the row sees it.
MHA_INLINE uint64_t word_at(const Problem& p, const Row& r, ptrdiff_t tile) {
    int32_t at = tile_at(p, r, tile);
    return at == NONE ? 0 : at == EVERY ? ~(uint64_t)0 : p.words[(ptrdiff_t)(at - SOME) * TILE + r.position % TILE];
}

// Likewise for the 64 keys from any key on. Bits of keys beyond the last one are not defined.
MHA_INLINE uint64_t seen_from(const Problem& p, const Row& r, ptrdiff_t key) {
    ptrdiff_t tile = key / TILE;
    int shift = (int)(key % TILE);
    uint64_t word = word_at(p, r, tile) >> shift;
    return shift && (tile + 1) * TILE < p.keys ? word | word_at(p, r, tile + 1) << (TILE - shift) : word;
}

// What some rows see of a tile of keys.
inline Share share_of(const Problem& p, const Row* rows, ptrdiff_t count, ptrdiff_t tile) {
    uint64_t any = 0, all = ~(uint64_t)0;
    for (ptrdiff_t i = 0; i < count;) {
        ptrdiff_t at = rows[i].position % TILE, n = TILE - at, left = p.queries - rows[i].position;
        n = n < left ? n : left, n = n < count - i ? n : count - i;  // rows that share a tile follow each other
        int32_t number = tile_at(p, rows[i], tile);
        i += n;
        if (number == NONE) all = 0;
        if (number == EVERY) any = ~(uint64_t)0;
        const uint64_t* words = p.words + (ptrdiff_t)(number - SOME) * TILE + at;
        for (ptrdiff_t j = 0; j < n && number >= SOME; ++j) any |= words[j], all &= words[j];
    }
    return all == ~(uint64_t)0 ? EVERY : any ? SOME : NONE;
}

// Call f(begin, end, whether some of these pairs may not attend) for runs of the keys from ``begin`` to ``end``, but for keys
// of tiles of which none of the rows sees any.
template <class F> void in_runs(const Problem& p, const Row* rows, ptrdiff_t count, ptrdiff_t begin, ptrdiff_t end, F f) {
    if (!p.tiles.data) return f(begin, end, false);
    while (begin < end) {
        ptrdiff_t tile = begin / TILE;
        Share share = share_of(p, rows, count, tile++);
        while (tile * TILE < end && share_of(p, rows, count, tile) == share) ++tile;
        ptrdiff_t stop = tile * TILE < end ? tile * TILE : end;
        if (share != NONE) f(begin, stop, share == SOME);
        begin = stop;
    }
}

}}  // namespace mha::MHA_LEVEL
