// The terms of scores before they become weights: softcap, biases, masks.
#pragma once
#include "band.h"
#include "tile_map.h"

namespace mha { namespace MHA_LEVEL {

template <class T, int N = VECTORS> struct Terms {
    const Problem& p;
    const Unit& u;
    const Row* rows;
    const Band<T, N>& band;
    Units<T> units;
    T* stored;   // biases of a block, and -inf where the mask hides a key: BLOCK x ROWS; null if there are neither
    bool reads;  // whether they are written for the next blocks
    bool masked; // whether the next blocks have tiles of which some pairs do not attend
    bool any;    // whether there is something to do besides the band

    static bool are_stored(const Problem& p) { return p.bias.data || p.mask.data || p.tiles.data; }

    Terms(const Problem& problem, const Unit& unit, const Row* its_rows, const Band<T, N>& its_band, T* scratch)
        : p(problem), u(unit), rows(its_rows), band(its_band), units(problem),
          stored(are_stored(problem) ? scratch : nullptr) {
        begin_run(false);
    }

    void begin_run(bool is_masked) {
        masked = is_masked;
        reads = p.bias.data || p.mask.data || masked;
        any = reads || p.distance.data || p.softcap != 0;
    }

    // Call f(begin, end) for runs of the unit's keys, without those that the map of tiles hides from all of its rows.
    template <class F> void in_runs(F f) {
        MHA_LEVEL::in_runs(p, rows, u.rows, u.key_begin, u.key_end, [&](ptrdiff_t begin, ptrdiff_t end, bool is_masked) {
            begin_run(is_masked);
            f(begin, end);
        });
    }

    // Call f(vectors, begin, end) for blocks of these keys, as ``Band::in_blocks``, with the vectors that see some of them.
    template <class F> void in_blocks(ptrdiff_t most, F f) {
        in_runs([&](ptrdiff_t begin, ptrdiff_t end) {
            if (!masked) return band.in_blocks(begin, end, most, f, [](int, ptrdiff_t, ptrdiff_t) { return true; });
            for (ptrdiff_t at = begin, stop; at < end; at = stop) {
                stop = at - at % TILE + TILE < end ? at - at % TILE + TILE : end;
                uint64_t seen[N] = {}, hidden[N] = {};  // the keys from ``at`` on that some row of a vector sees, or does not
                for (ptrdiff_t i = 0; i < u.rows; ++i) {
                    uint64_t word = seen_from(p, rows[i], at);
                    seen[i / LANES<T>] |= word, hidden[i / LANES<T>] |= ~word;
                }
                auto some = [&](const uint64_t* words, int v, ptrdiff_t from, ptrdiff_t to) {
                    return (words[v] >> (from - at) & (((uint64_t)2 << (to - from - 1)) - 1)) != 0;
                };
                auto call = [&](Vectors now, ptrdiff_t from, ptrdiff_t to) {
                    bool hides = false;
                    for (int v = now.first; v < now.first + now.count; ++v) hides = hides || some(hidden, v, from, to);
                    begin_run(hides);
                    f(now, from, to);
                };
                band.in_blocks(at, stop, most, call, [&](int v, ptrdiff_t from, ptrdiff_t to) {
                    return some(seen, v, from, to);
                });
            }
        });
    }

    // Write biases, and -inf where the mask hides a key, for a block: transposed, so that a vector holds those of one key.
    void read_block(Vectors some_vectors, ptrdiff_t begin, int n) {
        if (!reads) return;
        const Bits<T> bit = bits();
        for (int v = some_vectors.first; v < some_vectors.first + some_vectors.count; ++v)
            for (int k = 0; k < n; k += LANES<T>) {
                int some = n - k < LANES<T> ? n - k : LANES<T>;
                Vec<T> x[LANES<T>] = {};
                unroll<LANES<T>>([&](auto i) __attribute__((always_inline)) {
                    const Row& r = rows[v * LANES<T> + i < u.rows ? v * LANES<T> + i : 0];
                    if (p.bias.data) x[i] = biases(r.bias + (begin + k) * p.bias.step[2], some);
                    if (masked) {
                        Bits<T> word = Bits<T>{} + (Int<T>)(seen_from(p, r, begin + k) & ((1u << LANES<T>) - 1));
                        x[i] = select<T>((word & bit) == 0, broadcast((T)-INFINITY), x[i]);
                    }
                    if (!p.mask.data) return;
                    Words<T> seen = bytes(r.mask + (begin + k) * p.mask.step[2], some);
                    x[i] = select<T>((Bits<T>)(seen == 0), broadcast((T)-INFINITY), x[i]);
                });
                transpose<T>(x);
                for (int i = 0; i < some; ++i) store(stored + (k + i) * ROWS<T, N> + v * LANES<T>, x[i]);
            }
    }

    // A bit for each lane.
    static MHA_INLINE Bits<T> bits() {
        Bits<T> x = {};
        for (int i = 0; i < LANES<T>; ++i) x[i] = (Int<T>)1 << i;
        return x;
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
            if (reads)
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
