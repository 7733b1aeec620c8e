// Attention in bfloat16 by the tiles of AMX: registers of 16 lines, each of 16 numbers or pairs of numbers. One product is
//
//     c += a b      c: 16 x 16 numbers; a: 16 x 16 pairs; b: 16 pairs x 16
//
//     scores   c: keys x queries       a: keys           b: queries
//     values   c: features x queries   a: features       b: weights, in pairs of keys
//
// so a line of c, or of b, is a vector as in Tile. There are more rows than elsewhere: for each unit values are transposed.
// Tiles are loaded from copies only: no sanitizer sees what they read, and lines that cross two lines of the cache take long.
#pragma once
#include "tile.h"

namespace mha { namespace MHA_LEVEL {

#if defined(__AMX_BF16__)
// 2^x for x < 126: 2^n p(f), with n <= x < n + 1 and f = x - n. NaN for NaN. The relative error is 8.2e-8 before rounding, and
// none at whole numbers. Processors with AMX do each of the two steps around p in one operation.
MHA_INLINE Vec<float> exp2_by_floor(Vec<float> x) {
    constexpr float COEFFICIENTS[] = {0x1.e974fa8e82295p-10f, 0x1.27785516df8e9p-7f, 0x1.c91ce6429c3fap-5f,
                                      0x1.ebdb56d7f848fp-3f,  0x1.62e4ba8ec91e6p-1f, 1};
    Vec<float> f = _mm512_reduce_ps(x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC), y = broadcast(COEFFICIENTS[0]);
    unroll<5>([&](auto at) __attribute__((always_inline)) { y = fma(y, f, broadcast(COEFFICIENTS[at + 1])); });
    return _mm512_scalef_ps(y, x);
}

// Eight tiles of 16 lines of 64 bytes.
constexpr uint16_t PALETTE[32] = {1, 0, 0, 0, 0, 0, 0, 0, 64, 64, 64, 64, 64, 64, 64, 64,
                                  0, 0, 0, 0, 0, 0, 0, 0, 0x1010, 0x1010, 0x1010, 0x1010};

// GCC 12 does not know that a tile is loaded from memory, which must be written before.
MHA_INLINE void write_memory() { __asm__ volatile("" : : : "memory"); }

constexpr int MANY = 11;  // vectors of rows; an odd number, so that lines fall into all sets of the cache

struct Matrices final : Tile<float, 2, MANY> {
    using Tile::Tile;
    static constexpr int LINE = LANES<float>, STEP = MOST * sizeof(float), KEYS = 32;  // of a product of weights and values

    // Tiles belong to nobody across a call: each unit sets them up, and releases them, so that they meet no other code's.
    void attend() override {
        memset(o, 0, value_width * STEP);
        _tile_loadconfig(PALETTE);
        terms.in_runs([&](ptrdiff_t begin, ptrdiff_t end) {
            for (ptrdiff_t key = begin; key < end; key += BLOCK) attend(key, (int)(end - key < BLOCK ? end - key : BLOCK));
        });
        _tile_release();
    }

    // Copy n keys, and values transposed: for each KEYS of them a line for each feature, with zeros after the last key.
    void copy(ptrdiff_t begin, int n) {
        rows_of<float, 2>(key_rows, begin, n, p.width, width, key_copy, false);
        float *to = value_copy, *scratch = value_copy + BLOCK / 2 * value_width;
        Matrix<float> pairs = pairs_of_rows<float, 2>(value_rows, begin, n, p.value_width, value_width, scratch);
        for (int k = 0; k < n; k += KEYS)
            for (ptrdiff_t e = 0; e < value_width; e += LINE, to += LINE * LINE) {
                Vec<float> x[LINE];
                for (int i = 0; i < LINE; ++i)
                    x[i] = k + 2 * i < n ? load(pairs.data + (k / 2 + i) * pairs.step + e) : Vec<float>{};
                transpose<float>(x);
                for (int i = 0; i < LINE; ++i) store(to + i * LINE, x[i]);
            }
    }

    // The scores of a key of the block, or the weights of two keys, with the vector of rows that is computed now.
    float* line(int at) { return weights + at * MOST; }

    // Write the scores of KEYS keys.
    void score(int v, int key) {
        write_memory();
        _tile_zero(0);
        _tile_zero(1);
        for (ptrdiff_t d = 0; d < width; d += LINE) {
            const float* keys = key_copy + key * width + d;
            _tile_loadd(2, q + d * MOST + v * LINE, STEP);
            _tile_loadd(3, keys, width * sizeof(float));
            _tile_loadd(4, keys + KEYS / 2 * width, width * sizeof(float));
            _tile_dpbf16ps(0, 3, 2);
            _tile_dpbf16ps(1, 4, 2);
        }
        _tile_stored(0, line(key), STEP);
        _tile_stored(1, line(key + KEYS / 2), STEP);
    }

    // o += weights of the block's keys first ... last times values.
    void add_values(int v, int first, int last) {
        write_memory();
        for (ptrdiff_t e = 0; e < value_width; e += LINE) {
            _tile_loadd(5, o + e * MOST + v * LINE, STEP);
            for (int k = first; k < last; k += KEYS) {
                _tile_loadd(6, line(k / 2), STEP);
                _tile_loadd(7, value_copy + (k / KEYS * value_width + e) * LINE, LINE * sizeof(float));
                _tile_dpbf16ps(5, 7, 6);
            }
            _tile_stored(5, o + e * MOST + v * LINE, STEP);
        }
    }

    // Turn KEYS scores into weights, in pairs that are stored over scores that have been read. There are n keys in the block;
    // scores of later ones are anything.
    void weigh(int v, int key, ptrdiff_t begin, int n) {
        Vec<float> hidden = broadcast(-INFINITY), scale = broadcast(units.scale), m[4] = {hidden, hidden, hidden, hidden};
        int end = n < key + KEYS ? n : key + KEYS;
        bool cut = band.is_cut({v, 1}, begin + key, begin + end);
        if (terms.any || cut || end < key + KEYS || units.scale < 0) {
            for (int k = key; k < key + KEYS; ++k) store(line(k), k < end ? load(line(k)) * scale : hidden);
            in_parts<8, false>(end - key, [&](auto j, ptrdiff_t at) {
                terms.template apply<j>(line(key + at) - v * LINE, {v, 1}, begin + key + at, key + at, cut, m + 1);
                m[0] = larger(m[1], m[0]);
            });
            scale = broadcast(1.f);
        } else {
            unroll<KEYS>([&](auto k) __attribute__((always_inline)) { m[k % 4] = larger(load(line(key + k)), m[k % 4]); });
        }
        Vec<float> most = larger(larger(m[0], m[1]), larger(m[2], m[3])) * scale;
        if (__builtin_expect(any<float>(most > top[v] + broadcast(LAZY<float>)), 0)) raise<1>(v, &most, weights, key);
        Vec<float> t = top[v], sum = block_total[v];
        for (int k = key; k < key + KEYS; k += 2) {
            Vec<float> x = fma(load(line(k)), scale, -t), y = fma(load(line(k + 1)), scale, -t);
            x = p.natural ? MHA_LEVEL::exp<float>(x) : exp2_by_floor(x);
            y = p.natural ? MHA_LEVEL::exp<float>(y) : exp2_by_floor(y);
            sum += x + y;
            store(line(k / 2), pair(x, y));
        }
        block_total[v] = sum;
    }

    void attend(ptrdiff_t begin, int n) {
        copy(begin, n);
        for (int v = 0; v < vectors; ++v) {
            int first = 0, last = (n + KEYS - 1) / KEYS * KEYS;  // what the rows see some of
            while (first < last && !band.sees(v, begin + first, begin + first + KEYS)) first += KEYS;
            while (first < last && !band.sees(v, begin + last - KEYS, begin + last)) last -= KEYS;
            ahead.fetch(fetches * (BLOCK / TOGETHER) / vectors + 1);
            terms.read_block({v, first < last}, begin, n);
            block_total[v] = Vec<float>{};
            for (int k = first; k < last; k += KEYS) score(v, k);
            for (int k = first; k < last; k += KEYS) weigh(v, k, begin, n);
            total[v] += block_total[v];
            add_values(v, first, last);
        }
    }
};
typedef Matrices Halves;  // computes what is in bfloat16
#else
typedef Tile<float, HAS_PAIRS ? 2 : 1> Halves;
#endif

}}  // namespace mha::MHA_LEVEL
