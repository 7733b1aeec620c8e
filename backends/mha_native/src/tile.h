// Attention of up to three vectors of query rows, over any number of keys.
//
// Scores are transposed: a vector holds the scores of one key with several queries. So keys and values are read where they lie,
// one number at a time for all queries; only queries and results are transposed. The same product computes scores and values:
//
//     c[j] += sum over i of a[i] b(i, j)       a[i], c[j]: three vectors; b(i, j): a number
//
//     scores   i: a feature, j: a key           a: queries, b: keys
//     values   i: a key, j: a feature           a: weights, b: values
//
// With PER = 2, queries, keys, weights and values are pairs of bfloat16 numbers: i is a pair of features, or of keys.
//
// A weight is 2^(score - top), where top is a maximum of the row's scores that moves only when a score exceeds it by LAZY: then
// what was summed before is multiplied by a power of two. Source: Milakov and Gimelshein 2018; Dao et al. 2022, algorithm 1.
#pragma once
#include "ahead.h"
#include "terms.h"

namespace mha { namespace MHA_LEVEL {

template <class T> constexpr T LAZY = 8;  // the difference of a score and its top is rounded, so a greater one costs accuracy

template <class T, int PER, int N = VECTORS> struct Tile {
    const Problem& p;
    const Unit& u;
    const ptrdiff_t depth, width, value_width;  // numbers or pairs of a query; lines of q, of o: multiples of LANES
    T *q, *o, *weights, *key_copy, *value_copy;  // the first three: lines of ROWS numbers
    Row rows[ROWS<T, N>];
    T sinks[ROWS<T, N>];
    Units<T> units;
    Band<T, N> band;
    Terms<T, N> terms;
    const int vectors;
    Vec<T> top[N], total[N];
    Vec<T> block_total[N];  // of the block's keys: a sum of sums is more accurate
    int weighed;  // keys of the block whose weights are known; of others, scores are
    const Rows key_rows, value_rows;
    Ahead ahead;
    ptrdiff_t fetches;  // lines of memory to ask for with each product of scores

    static constexpr int MOST = ROWS<T, N>;

    static ptrdiff_t up(ptrdiff_t n) { return (n + LANES<T> - 1) / LANES<T> * LANES<T>; }

    static size_t scratch_size(const Problem& p) {
        ptrdiff_t lines = up(p.width) + up(p.value_width) + BLOCK + (Terms<T, N>::are_stored(p) ? BLOCK : 0);
        return sizeof(T) * (lines * ROWS<T, N> + BLOCK * (up(p.width) + up(p.value_width)));
    }

    Tile(const Problem& problem, const Unit& unit, const Unit* next, char* scratch)
        : p(problem), u(unit), depth((problem.width + PER - 1) / PER), width(up(depth)), value_width(up(problem.value_width)),
          q((T*)scratch),
          o(q + width * ROWS<T, N>), weights(o + value_width * ROWS<T, N>), key_copy(weights + BLOCK * ROWS<T, N>),
          value_copy(key_copy + BLOCK * width), units(problem),
          band(problem, unit, (find_rows<T>(problem, unit, rows, sinks), rows)),
          terms(problem, unit, rows, band, value_copy + BLOCK * value_width), vectors(band.vectors),
          key_rows(rows_in(problem, unit, problem.key, problem.key_scale)),
          value_rows(rows_in(problem, unit, problem.value, problem.value_scale)),
          ahead(problem, unit, next), fetches(ahead.lines * TOGETHER / (unit.key_end - unit.key_begin + 1) + 1) {}

    // Room for rows of queries or results: LANES of them fit where the copies of BLOCK keys do.
    T* spare_row(int i, ptrdiff_t size) { return key_copy + i * size; }

    // Write the queries of all rows to q, transposed; numbers, unlike pairs, scaled, so that scores come out in base 2, or
    // divided by the softcap.
    void read_queries() {
        Vec<T> scale = broadcast(PER == 1 ? units.scale : (T)1);
        for (int v = 0; v < vectors; ++v) {
            int some = (int)(u.rows - v * LANES<T>);
            some = some > LANES<T> ? LANES<T> : some;
            const T* from[LANES<T>];
            for (int i = 0; i < some; ++i)
                from[i] = row_of<T, PER>(p.query, rows[v * LANES<T> + i].query, p.width, width, spare_row(i, width));
            for (ptrdiff_t d = 0; d < width; d += LANES<T>) {
                Vec<T> x[LANES<T>];
                for (int i = 0; i < LANES<T>; ++i) x[i] = i < some ? load(from[i] + d) : Vec<T>{};
                transpose<T>(x);
                for (int i = 0; i < LANES<T>; ++i)
                    store(q + (d + i) * ROWS<T, N> + v * LANES<T>, PER == 1 ? x[i] * scale : x[i]);
            }
        }
    }

    // Raise the tops of rows with a score above top + LAZY beyond that score, and divide what was summed, and the known weights
    // of ``done`` keys, by the same power of two, so that rounded weights are not rounded twice.
    template <int V> __attribute__((noinline)) void raise(int first, const Vec<T>* most, T* known, int done) {
        for (int v = 0; v < V; ++v) {
            int at = first + v;
            Vec<T> step = broadcast((T)(LN2 / units.ln)), one = broadcast((T)1);
            Vec<T> steps = MHA_LEVEL::round<T>((most[v] - top[at]) / step) + one;
            Bits<T> is_first = total[at] + block_total[at] == broadcast((T)0);
            Vec<T> higher = select<T>(is_first, most[v], top[at] + steps * step);
            Vec<T> raised = select<T>(most[v] > top[at] + broadcast(LAZY<T>), higher, top[at]);
            Vec<T> factor = units.power(top[at] - raised);
            top[at] = raised;
            bool summed = any<T>(total[at] != broadcast((T)0));  // else o is 0, as in the first block
            total[at] *= factor, block_total[at] *= factor;
            for (int k = 0; k < done / PER; ++k) {
                T* w = known + k * ROWS<T, N> + v * LANES<T>;
                if constexpr (PER == 1)
                    scale_by(w, factor);
                else
                    store(w, pair(first_of(load(w)) * factor, second_of(load(w)) * factor));
            }
            for (ptrdiff_t e = 0; summed && e < p.value_width; ++e) scale_by(o + e * ROWS<T, N> + at * LANES<T>, factor);
        }
    }
    static void scale_by(T* x, Vec<T> factor) { store(x, load(x) * factor); }

    // The scores of J keys, from ``key`` on; ``done`` of the block's are known. Those that wait become weights while products
    // are computed, since the two keep different units of the processor busy; before them where sums fill the registers.
    template <int J, int V>
    __attribute__((noinline)) void score(int first, const T* keys, ptrdiff_t step, ptrdiff_t key, int done, bool cut) {
        Vec<T> s[J][V], most[V];
        each<J, V>([&](auto j, auto v) __attribute__((always_inline)) { s[j][v] = Vec<T>{}; });
        const T* queries = q + first * LANES<T>;
        ahead.fetch(fetches);
        ptrdiff_t left = depth, share = REGISTERS == 32 ? depth / ((done - weighed) / PER + 1) : 0;
        for (; weighed < done && left > share; left -= share) {
            if (share) multiply<T, PER, J, V, false>(s, queries, keys, step, share);
            weigh<V>(first, done);
        }
        multiply<T, PER, J, V, false>(s, queries, keys, step, left);
        while (weighed < done) weigh<V>(first, done);
        T* to = weights + done * ROWS<T, N>;
        unroll<V>([&](auto v) __attribute__((always_inline)) {
            unroll<J>([&](auto j) __attribute__((always_inline)) {
                if constexpr (PER == 2) s[j][v] *= broadcast(units.scale);
                most[v] = j == 0 ? s[0][v] : larger(s[j][v], most[v]);
                store(to + j * ROWS<T, N> + (first + v) * LANES<T>, s[j][v]);
            });
        });
        if (terms.any || cut) terms.template apply<J>(to, {first, V}, key, done, cut, most);
        Bits<T> above = {};
        for (int v = 0; v < V; ++v) above |= most[v] > top[first + v] + broadcast(LAZY<T>);
        if (__builtin_expect(any<T>(above), 0)) raise<V>(first, most, weights + first * LANES<T>, done);
    }

    // Turn the scores of the next key, or pair of keys, of the first ``done`` ones of the block into weights.
    template <int V> MHA_INLINE void weigh(int first, int done) {
        if (p.natural)
            weigh_in_base<V>(first, done, [](auto x) __attribute__((always_inline)) { return MHA_LEVEL::exp<T>(x); });
        else
            weigh_in_base<V>(first, done, [](auto x) __attribute__((always_inline)) { return MHA_LEVEL::exp2<T>(x); });
    }
    template <int V, class F> MHA_INLINE void weigh_in_base(int first, int done, F power) {
        const T* from = weights + weighed * ROWS<T, N> + first * LANES<T>;
        T* to = weights + weighed / PER * ROWS<T, N> + first * LANES<T>;
        bool whole = weighed + PER <= done;
        unroll<V>([&](auto v) __attribute__((always_inline)) {
            Vec<T> t = top[first + v], w = power(load(from + v * LANES<T>) - t);
            if constexpr (PER == 1) {
                block_total[first + v] += w;
            } else {
                Vec<T> second = whole ? power(load(from + ROWS<T, N> + v * LANES<T>) - t) : Vec<T>{};
                block_total[first + v] += w + second;
                w = pair(w, second);  // stored over scores that have been read
            }
            store(to + v * LANES<T>, w);
        });
        weighed += PER;
    }

    // All of some rows' work on keys begin ... end, at most BLOCK.
    template <int V> __attribute__((noinline)) void block(int first, ptrdiff_t begin, ptrdiff_t end) {
        constexpr int J = TOGETHER;
        int n = (int)(end - begin);
        Matrix<T> keys = rows_of<T, PER>(key_rows, begin, n, p.width, depth, key_copy);
        Matrix<T> values = pairs_of_rows<T, PER>(value_rows, begin, n, p.value_width, value_width, value_copy);
        terms.read_block({first, V}, begin, n);
        weighed = 0;
        for (int v = first; v < first + V; ++v) block_total[v] = Vec<T>{};
        in_parts<J>(n, [&](auto j, int at) __attribute__((always_inline)) {
            bool cut = band.is_cut({first, V}, begin + at, begin + at + j);
            score<j, V>(first, keys.data + at * keys.step, keys.step, begin + at, at, cut);
        });
        while (weighed < n) weigh<V>(first, n);
        for (int v = first; v < first + V; ++v) total[v] += block_total[v];
        n = (n + PER - 1) / PER;
        in_parts<J>(p.value_width, [&](auto j, ptrdiff_t e) __attribute__((always_inline)) {
            add_product<T, PER, j, V, true>(o + e * MOST + first * LANES<T>, MOST, weights + first * LANES<T>, MOST,
                                            values.data + e, values.step, n);
        });
    }

    // Attend to all keys of the unit, beginning with these tops and totals.
    virtual void attend() {
        memset(o, 0, sizeof(T) * value_width * ROWS<T, N>);
        terms.in_blocks(BLOCK, [&](Vectors now, ptrdiff_t begin, ptrdiff_t end) {
            if (now.count == 3) block<3>(now.first, begin, end);
            if (now.count == 2) block<2>(now.first, begin, end);
            if (now.count == 1) block<1>(now.first, begin, end);
        });
    }

    void compute() {
        start(), attend();
        if (!is_finite()) restart(), attend();
        finish();
    }

    void start() {
        read_queries();
        for (int v = 0; v < vectors; ++v) {
            T most = -most_of<T>(), none = 0;
            top[v] = broadcast(most), total[v] = broadcast(none);
            if (u.has_sink)
                for (int i = 0; i < LANES<T> && v * LANES<T> + i < u.rows; ++i) {
                    T sink = sinks[v * LANES<T> + i];
                    if (sink == (T)-INFINITY) continue;
                    top[v][i] = sink, total[v][i] = units.total_of(sink);
                }
        }
    }

    bool is_finite() const {
        Vec<T> zeros[N] = {}, sum = {};
        for (ptrdiff_t e = 0; e < p.value_width; ++e)
            unroll<N>([&](auto v) __attribute__((always_inline)) {
                zeros[v] += load(o + e * ROWS<T, N> + v * LANES<T>) * broadcast((T)0);
            });
        for (Vec<T> zero : zeros) sum += zero;
        return !any<T>(sum != sum);
    }

    // A sum may overflow where the weighted mean does not: compute once more with weights that add up to 1.
    void restart() {
        for (int v = 0; v < vectors; ++v)
            for (int i = 0; i < LANES<T>; ++i) {
                T sum = total[v][i], shift = sum > 0 ? units.log(sum) : 0, before = top[v][i];
                bool sunk = u.has_sink && v * LANES<T> + i < u.rows;
                top[v][i] = before + shift;
                total[v][i] = sunk ? units.power(sinks[v * LANES<T> + i] - top[v][i]) : 0;
            }
    }

    // Write out and lse, or the state of this part of the keys.
    void finish() {
        for (int v = 0; v < vectors; ++v) {
            int some = (int)(u.rows - v * LANES<T> < LANES<T> ? u.rows - v * LANES<T> : LANES<T>);
            Bits<T> empty = total[v] == broadcast((T)0);
            Vec<T> inverse = u.partial ? broadcast((T)1) : broadcast((T)1) / total[v];
            bool direct = !u.partial && p.out.kind == KIND<T> && value_width == p.value_width;
            for (ptrdiff_t e = 0; e < value_width; e += LANES<T>) {
                Vec<T> x[LANES<T>];
                for (int i = 0; i < LANES<T>; ++i)
                    x[i] = e + i < p.value_width
                               ? select<T>(empty, Vec<T>{}, load(o + (e + i) * ROWS<T, N> + v * LANES<T>) * inverse)
                               : Vec<T>{};
                transpose<T>(x);
                for (int i = 0; i < some; ++i)
                    store((direct ? (T*)rows[v * LANES<T> + i].out : spare_row(i, value_width)) + e, x[i]);
            }
            for (int i = 0; i < some; ++i) {
                int row = v * LANES<T> + i;
                write_row<T>(p, u, rows, row, direct ? nullptr : spare_row(i, value_width), top[v][i], total[v][i]);
            }
        }
    }
};

}}  // namespace mha::MHA_LEVEL
