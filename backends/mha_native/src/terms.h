// The terms of scores before they become weights: softcap, biases, masks.
#pragma once
#include "band.h"

namespace mha { namespace MHA_LEVEL {

template <class T, int N = VECTORS> struct Terms {
    const Problem& p;
    const Unit& u;
    const Row* rows;
    const Band<T, N>& band;
    Units<T> units;
    T* stored;   // biases of a block, and -inf where the mask hides a key: BLOCK x ROWS; null if there are neither
    bool any;    // whether there is something to do besides the band

    static bool are_stored(const Problem& p) { return p.bias.data || p.mask.data; }

    Terms(const Problem& problem, const Unit& unit, const Row* its_rows, const Band<T, N>& its_band, T* scratch)
        : p(problem), u(unit), rows(its_rows), band(its_band), units(problem),
          stored(are_stored(problem) ? scratch : nullptr),
          any(are_stored(problem) || problem.distance.data || problem.softcap != 0) {}

    // Write biases, and -inf where the mask hides a key, for a block: transposed, so that a vector holds those of one key.
    void read_block(Vectors some_vectors, ptrdiff_t begin, int n) {
        if (!stored) return;
        for (int v = some_vectors.first; v < some_vectors.first + some_vectors.count; ++v)
            for (int k = 0; k < n; k += LANES<T>) {
                int some = n - k < LANES<T> ? n - k : LANES<T>;
                Vec<T> x[LANES<T>] = {};
                unroll<LANES<T>>([&](auto i) __attribute__((always_inline)) {
                    const Row& r = rows[v * LANES<T> + i < u.rows ? v * LANES<T> + i : 0];
                    if (p.bias.data) x[i] = biases(r.bias + (begin + k) * p.bias.step[2], some);
                    if (!p.mask.data) return;
                    Words<T> seen = bytes(r.mask + (begin + k) * p.mask.step[2], some);
                    x[i] = select<T>((Bits<T>)(seen == 0), broadcast((T)-INFINITY), x[i]);
                });
                transpose<T>(x);
                for (int i = 0; i < some; ++i) store(stored + (k + i) * ROWS<T, N> + v * LANES<T>, x[i]);
            }
    }

    // LANES numbers of a row, of which n are there. Those of the next block are asked for: rows are too many for the processor
    // to foresee what is read next.
    MHA_INLINE Vec<T> biases(const char* from, int n) const {
        __builtin_prefetch(from + BLOCK * p.bias.step[2]);
        if (p.bias.kind == KIND<T> && p.bias.step[2] == sizeof(T) && n == LANES<T>) return load((const T*)from);
        T line[LANES<T>] = {};
        read<T>(p.bias.kind, from, p.bias.step[2], line, n);
        return load(line);
    }

    MHA_INLINE Words<T> bytes(const char* from, int n) const {
        __builtin_prefetch(from + BLOCK * p.mask.step[2]);
        uint8_t line[LANES<T>] = {};
        bool whole = p.mask.step[2] == 1 && n == LANES<T>;
        for (int j = 0; j < n && !whole; ++j) line[j] = (uint8_t)from[j * p.mask.step[2]];
        return widen<T>(whole ? (const uint8_t*)from : line);
    }

    // Apply softcap, biases and masks to the scores of J keys, from ``key`` on, with some vectors of rows; ``done`` keys of the
    // block come before them. ``cut``: the band hides some. Write the largest score of each row.
    template <int J>
    __attribute__((noinline)) void apply(T* scores, Vectors s, ptrdiff_t key, int done, bool cut, Vec<T>* most) const {
        const Vec<T> hidden = broadcast((T)-INFINITY);
        for (int v = s.first; v < s.first + s.count; ++v, ++most) {
            T *at = scores + v * LANES<T>, *term = stored + done * ROWS<T, N> + v * LANES<T>;
            auto change = [&](auto f) __attribute__((always_inline)) {
                unroll<J>([&](auto j) __attribute__((always_inline)) {
                    store(at + j * ROWS<T, N>, f(load(at + j * ROWS<T, N>), j));
                });
            };
            if (p.softcap != 0)
                for (int j = 0; j < J; ++j)
                    store(at + j * ROWS<T, N>, broadcast(units.cap) * tanh<T>(load(at + j * ROWS<T, N>)));
            if (p.distance.data && band.consecutive[v]) {
                const T* from = (const T*)rows[v * LANES<T>].distance - key;
                change([&](Vec<T> x, int j) __attribute__((always_inline)) { return x + load(from - j); });
            } else if (p.distance.data) {
                for (int j = 0; j < J; ++j) store(at + j * ROWS<T, N>, load(at + j * ROWS<T, N>) + distances(v, key + j));
            }
            if (stored)
                change([&](Vec<T> x, int j) __attribute__((always_inline)) {
                    Vec<T> y = load(term + j * ROWS<T, N>);
                    return select<T>(y == hidden, hidden, x + y);
                });
            if (cut)
                for (int j = 0; j < J; ++j)
                    store(at + j * ROWS<T, N>, select<T>(band.hides(v, key + j), hidden, load(at + j * ROWS<T, N>)));
            Vec<T> above = load(at);
            unroll<J>([&](auto j) __attribute__((always_inline)) { above = larger(load(at + j * ROWS<T, N>), above); });
            *most = above;
        }
    }

    // The biases of one key, by distance, for rows that do not follow each other.
    Vec<T> distances(int v, ptrdiff_t key) const {
        const Row* r = rows + v * LANES<T>;
        Vec<T> b = {};
        for (int i = 0; i < LANES<T> && v * LANES<T> + i < u.rows; ++i) b[i] = ((const T*)r[i].distance)[-key];
        return b;
    }
};

}}  // namespace mha::MHA_LEVEL
