// The share of up to three vectors of query rows in the gradients of attention, from its state.
//
// With the weights w = e^(score - lse) of a query, and delta = d_out . out - d_lse:
//
//     dw = d_out . value          d = w (dw - delta) scale, times the slope of the softcap
//     d_value += w d_out          d_query += d key          d_key += d query
//
// Scores and dw are transposed, as in tile.h: for them queries and d_out are kept as lines. The sums over queries take them as
// rows. Source: Dao 2023, algorithm 2.
#pragma once
#include "terms.h"

namespace mha { namespace MHA_LEVEL {

template <class T> struct Gradient {
    static constexpr int BLOCK = 96;                           // keys whose weights are kept: whole parts of a product
    static constexpr int WIDE = REGISTERS == 32 ? 4 : 2, FEW = 6;  // vectors of features, keys: their sums fill the registers

    const Problem& p;
    const Unit& u;
    const ptrdiff_t width, value_width;          // of padded rows
    T *q, *g, *d_q, *scores, *weights, *slopes;  // lines of ROWS numbers: queries, scaled, d_out and d_query, then keys
    T *q_rows, *g_rows, *key_copy, *value_copy;  // padded rows
    Row rows[ROWS<T>];
    T sinks[ROWS<T>];
    Units<T> units;
    Band<T> band;
    Terms<T> terms;
    Vec<T> lse[VECTORS], delta[VECTORS];

    static size_t scratch_size(const Problem& p) {
        ptrdiff_t d = padded(p.kind, p.width), e = padded(p.kind, p.value_width);
        return sizeof(T) * (ROWS<T> * (2 * d + e + 4 * BLOCK + d + e) + BLOCK * (d + e));
    }

    Gradient(const Problem& problem, const Unit& unit, char* scratch)
        : p(problem), u(unit), width(padded(problem.kind, problem.width)),
          value_width(padded(problem.kind, problem.value_width)), q((T*)scratch),
          g(q + width * ROWS<T>), d_q(g + value_width * ROWS<T>), scores(d_q + width * ROWS<T>),
          weights(scores + BLOCK * ROWS<T>), slopes(weights + BLOCK * ROWS<T>), q_rows(slopes + 2 * BLOCK * ROWS<T>),
          g_rows(q_rows + ROWS<T> * width), key_copy(g_rows + ROWS<T> * value_width), value_copy(key_copy + BLOCK * width),
          units(problem), band(problem, unit, (find_rows<T>(problem, unit, rows, sinks), rows)),
          terms(problem, unit, rows, band, slopes + BLOCK * ROWS<T>) {}

    // Read queries, d_out, lse and delta. A row without keys has lse 0, and 0 for all else, whatever it holds.
    void read_rows() {
        memset(q_rows, 0, sizeof(T) * ROWS<T> * (width + value_width));
        T base = (T)(1 / units.ln);
        T* out = value_copy;
        memset(out, 0, sizeof(T) * value_width);
        for (int v = 0; v < VECTORS; ++v) lse[v] = delta[v] = Vec<T>{};
        for (int i = 0; i < u.rows; ++i) {
            const Row& r = rows[i];
            T *to = g_rows + i * value_width, its_lse, d_lse = 0;
            Vec<T> products = {};
            memcpy(&its_lse, r.lse, sizeof(T));
            if (its_lse == (T)-INFINITY) continue;
            read<T>(p.query.kind, r.query, p.query.step[2], q_rows + i * width, p.width);
            if (r.d_out) {
                read<T>(p.out.kind, r.out, p.out.step[2], out, p.value_width);
                read<T>(p.d_out.kind, r.d_out, p.d_out.step[2], to, p.value_width);
                for (ptrdiff_t e = 0; e < value_width; e += LANES<T>) products = fma(load(out + e), load(to + e), products);
            }
            if (r.d_lse) memcpy(&d_lse, r.d_lse, sizeof(T));
            lse[i / LANES<T>][i % LANES<T>] = its_lse * base;
            delta[i / LANES<T>][i % LANES<T>] = sum<T>(products) - d_lse;
        }
        to_lines(q_rows, width, units.scale, q);
        to_lines(g_rows, value_width, 1, g);
        memset(d_q, 0, sizeof(T) * width * ROWS<T>);
    }

    // Write padded rows as lines, times a factor.
    static void to_lines(const T* from, ptrdiff_t width, T factor, T* to) {
        for (int v = 0; v < VECTORS; ++v)
            for (ptrdiff_t d = 0; d < width; d += LANES<T>) {
                Vec<T> x[LANES<T>];
                for (int i = 0; i < LANES<T>; ++i) x[i] = load(from + (v * LANES<T> + i) * width + d);
                transpose<T>(x);
                for (int i = 0; i < LANES<T>; ++i) store(to + (d + i) * ROWS<T> + v * LANES<T>, x[i] * broadcast(factor));
            }
    }

    // The weights of J keys, and the gradients of their products with queries; ``done`` keys of the block come before them.
    template <int J, int V>
    __attribute__((noinline)) void weigh(int first, Matrix<T> keys, Matrix<T> values, ptrdiff_t key, int done, bool cut) {
        Vec<T> x[J][V], most[V];
        T *s = scores + done * ROWS<T>, *w = weights + done * ROWS<T>, *slope = slopes + done * ROWS<T>;
        product<J, V>(x, q + first * LANES<T>, keys.data + done * keys.step, keys.step, p.width);
        auto each_score = [&](auto f) __attribute__((always_inline)) {
            each<J, V>([&](auto j, auto v)
                           __attribute__((always_inline)) { f(x[j][v], j * ROWS<T> + (first + v) * LANES<T>, v); });
        };
        each_score([&](Vec<T>& score, ptrdiff_t at, int) __attribute__((always_inline)) { store(s + at, score); });
        if (p.softcap != 0)
            each_score([&](Vec<T>& score, ptrdiff_t at, int) __attribute__((always_inline)) {
                Vec<T> t = tanh<T>(score);
                store(slope + at, broadcast((T)1) - t * t);
            });
        if (terms.any || cut) terms.template apply<J>(s, {first, V}, key, done, cut, most);
        product<J, V>(x, g + first * LANES<T>, values.data + done * values.step, values.step, p.value_width);
        const Vec<T> scale = broadcast((T)p.scale), highest = broadcast((T)64), zero = {};
        auto finish = [&](auto power) __attribute__((always_inline)) {
            each_score([&](Vec<T>& d, ptrdiff_t at, int v) __attribute__((always_inline)) {
                Vec<T> above = load(s + at) - lse[first + v], weight = power(select<T>(above > highest, highest, above));
                store(w + at, weight);
                store(s + at, select<T>(weight == zero, zero, weight * (d - delta[first + v]) * scale));
            });
        };
        if (p.natural)
            finish([](auto y) __attribute__((always_inline)) { return MHA_LEVEL::exp<T>(y); });
        else
            finish([](auto y) __attribute__((always_inline)) { return MHA_LEVEL::exp2<T>(y); });
        if (p.softcap != 0)
            each_score([&](Vec<T>&, ptrdiff_t at, int) __attribute__((always_inline)) {
                store(s + at, load(s + at) * load(slope + at));
            });
    }
    template <int J, int V>
    static MHA_INLINE void product(Vec<T> (&x)[J][V], const T* lines, const T* some, ptrdiff_t step, ptrdiff_t n) {
        each<J, V>([&](auto j, auto v) __attribute__((always_inline)) { x[j][v] = Vec<T>{}; });
        multiply<T, 1, J, V, false>(x, lines, some, step, n);
    }

    // Add to the gradients of n keys: for each the sum over queries of a factor, in lines, times the query's row.
    void add_rows(const Array& d, ptrdiff_t key, int n, const T* factors, const T* its_rows, ptrdiff_t size, Vectors some) {
        if (!d.data) return;
        ptrdiff_t begin = some.first * LANES<T>, end = begin + some.count * LANES<T>;
        end = end < u.rows ? end : u.rows;
        ptrdiff_t step = d.step[1] / (ptrdiff_t)sizeof(T);
        T* to = (T*)keys_of(p, u, d) + key * step;
        in_parts<WIDE>(size / LANES<T>, [&](auto v, ptrdiff_t at) __attribute__((always_inline)) {
            in_parts<FEW, false>(n, [&](auto j, ptrdiff_t k) __attribute__((always_inline)) {
                const T* row = its_rows + begin * size + at * LANES<T>;
                add_product<T, 1, j, v, false>(to + k * step + at * LANES<T>, step, row, size, factors + k * ROWS<T> + begin,
                                               ROWS<T>, end - begin);
            });
        });
    }

    template <int V> void block(int first, ptrdiff_t begin, ptrdiff_t end) {
        int n = (int)(end - begin);
        Matrix<T> keys = rows_of<T, 1>(rows_in(p, u, p.key, p.key_scale), begin, n, p.width, p.width, key_copy);
        Rows value_rows = rows_in(p, u, p.value, p.value_scale);
        Matrix<T> values = rows_of<T, 1>(value_rows, begin, n, p.value_width, p.value_width, value_copy);
        terms.read_block({first, V}, begin, n);
        in_parts<TOGETHER, false>(n, [&](auto j, int at) __attribute__((always_inline)) {
            weigh<j, V>(first, keys, values, begin + at, at, band.is_cut({first, V}, begin + at, begin + at + j));
        });
        add_rows(p.d_value, begin, n, weights, g_rows, value_width, {first, V});
        add_rows(p.d_key, begin, n, scores, q_rows, width, {first, V});
        if (p.d_query.data)
            in_parts<TOGETHER, false>(p.width, [&](auto j, ptrdiff_t d) __attribute__((always_inline)) {
                add_product<T, 1, j, V, true>(d_q + d * ROWS<T> + first * LANES<T>, ROWS<T>, scores + first * LANES<T>,
                                              ROWS<T>, keys.data + d, keys.step, n);
            });
    }

    void compute() {
        read_rows();
        terms.in_blocks(BLOCK, [&](Vectors now, ptrdiff_t begin, ptrdiff_t end) {
            if (now.count == 3) block<3>(now.first, begin, end);
            if (now.count == 2) block<2>(now.first, begin, end);
            if (now.count == 1) block<1>(now.first, begin, end);
        });
        if (p.d_query.data) write_queries();
    }

    // Write d_query, or this part's share of it.
    void write_queries() {
        for (int v = 0; v < band.vectors; ++v)
            for (ptrdiff_t d = 0; d < width; d += LANES<T>) {
                Vec<T> x[LANES<T>];
                for (int i = 0; i < LANES<T>; ++i) x[i] = load(d_q + (d + i) * ROWS<T> + v * LANES<T>);
                transpose<T>(x);
                for (ptrdiff_t i = 0, row = v * LANES<T>; i < LANES<T> && row < u.rows; ++i, ++row)
                    store((u.partial ? (T*)u.partial + row * width : (T*)rows[row].d_query) + d, x[i]);
            }
    }
};

// d_query of some rows: the sum over parts of the keys, in order.
template <class T>
void sum_parts(const Problem& p, const Unit& u, const char* partials, ptrdiff_t parts, ptrdiff_t stride) {
    Row rows[ROWS<T>];
    T sinks[ROWS<T>];
    find_rows<T>(p, u, rows, sinks);
    ptrdiff_t width = padded(p.kind, p.width);
    for (ptrdiff_t i = 0; i < u.rows; ++i)
        for (ptrdiff_t d = 0; d < width; d += LANES<T>) {
            Vec<T> x = {};
            for (ptrdiff_t part = 0; part < parts; ++part) x += load((const T*)(partials + part * stride) + i * width + d);
            store((T*)rows[i].d_query + d, x);
        }
}

}}  // namespace mha::MHA_LEVEL
