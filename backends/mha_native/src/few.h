// Attention of a few query rows, as in decoding: all time goes into reading keys and values once.
//
// A vector holds neighbouring features of one key, or scores of neighbouring keys. Keys and values in int8 are read where they
// lie; scores and weights are multiplied by their scales.
#pragma once
#include "tile_map.h"

namespace mha { namespace MHA_LEVEL {

template <class T> struct Few {
    static constexpr int BLOCK = 64, MOST = LANES<T> / 2, AHEAD = 32;  // keys at a time; rows, at most; keys

    const Problem& p;
    const Unit& u;
    Row rows[MOST];
    T sinks[MOST], top[MOST], total[MOST];
    Units<T> units;
    ptrdiff_t width, value_width;  // of q and o: multiples of LANES
    T *q, *o, *s, *key_copy, *value_copy;
    T key_scales[BLOCK], value_scales[BLOCK];  // of a block's keys in int8
    const Rows key_rows, value_rows;

    static ptrdiff_t up(ptrdiff_t n) { return (n + LANES<T> - 1) / LANES<T> * LANES<T>; }

    static size_t scratch_size(const Problem& p) {
        return sizeof(T) * ((up(p.width) + up(p.value_width)) * (MOST + BLOCK) + 2 * BLOCK);
    }

    Few(const Problem& problem, const Unit& unit, char* scratch)
        : p(problem), u(unit), units(problem), key_rows(rows_in(problem, unit, problem.key, problem.key_scale)),
          value_rows(rows_in(problem, unit, problem.value, problem.value_scale)) {
        width = up(p.width), value_width = up(p.value_width);
        q = (T*)scratch, o = q + MOST * width, s = o + MOST * value_width;
        key_copy = s + 2 * BLOCK, value_copy = key_copy + BLOCK * width;
        find_rows<T>(p, u, rows, sinks);
    }

    void read_queries() {
        memset(q, 0, sizeof(T) * u.rows * width);
        for (ptrdiff_t i = 0; i < u.rows; ++i) {
            read<T>(p.query.kind, rows[i].query, p.query.step[2], q + i * width, p.width);
            for (ptrdiff_t d = 0; d < p.width; ++d) q[i * width + d] *= units.scale;
        }
    }

    // Write the scores of rows i ... i + R with all keys of a block.
    template <int R, class K> MHA_INLINE void multiply(ptrdiff_t i, Matrix<K> keys, Matrix<K> values, int n) {
        bool ahead = i == 0;
        constexpr int J = LANES<T> / R;
        int k = 0;
        for (; k + J <= n; k += J) {
            const K* from = keys.data + k * keys.step;
            Vec<T> c[LANES<T>];
            unroll<LANES<T>>([&](auto at) __attribute__((always_inline)) { c[at] = Vec<T>{}; });
            for (ptrdiff_t d = 0; d < width; d += LANES<T>) {
                Vec<T> x[R];
                unroll<R>([&](auto r) __attribute__((always_inline)) { x[r] = load(q + (i + r) * width + d); });
                unroll<J>([&](auto j) __attribute__((always_inline)) {
                    Vec<T> y = load<T>(from + j * keys.step + d);
                    unroll<R>([&](auto r) __attribute__((always_inline)) { c[r * J + j] = fma(x[r], y, c[r * J + j]); });
                });
            }
            Vec<T> scores = sums<T>(c);
            if (ahead) prefetch(keys, k + AHEAD, J, width), prefetch(values, k, J, value_width);
            for (int r = 0; r < R; ++r) memcpy(s + r * BLOCK + k, (char*)&scores + r * J * sizeof(T), J * sizeof(T));
        }
        for (; k < n; ++k)
            for (int r = 0; r < R; ++r) {
                Vec<T> c = {};
                const T* x = q + (i + r) * width;
                const K* y = keys.data + k * keys.step;
                for (ptrdiff_t d = 0; d < width; d += LANES<T>) c = fma(load(x + d), load<T>(y + d), c);
                s[r * BLOCK + k] = sum<T>(c);
            }
    }

    // Apply softcap, biases and masks to the scores of row i with keys begin ... begin + n.
    void transform(ptrdiff_t i, T* s, ptrdiff_t begin, int n) {
        const Row& r = rows[i];
        if (p.softcap)
            for (int k = 0; k < n; k += LANES<T>)
                store(s + k, broadcast(units.cap) * tanh<T>(load(s + k)));
        if (r.distance)
            for (int k = 0; k < n; ++k) s[k] += ((const T*)r.distance)[-(begin + k)];
        if (r.bias) {
            T b[BLOCK];
            read<T>(p.bias.kind, r.bias + begin * p.bias.step[2], p.bias.step[2], b, n);
            for (int k = 0; k < n; ++k) s[k] = b[k] == (T)-INFINITY ? b[k] : s[k] + b[k];
        }
        if (r.mask)
            for (int k = 0; k < n; ++k) s[k] = r.mask[(begin + k) * p.mask.step[2]] ? s[k] : (T)-INFINITY;
        if (r.tiles) {
            uint64_t seen = seen_from(p, r, begin);
            for (int k = 0; k < n; ++k) s[k] = seen >> k & 1 ? s[k] : (T)-INFINITY;
        }
        if (p.has_band)
            for (int k = 0; k < n; ++k) {
                ptrdiff_t distance = begin + k - r.position;
                s[k] = distance >= p.low && distance <= p.high ? s[k] : (T)-INFINITY;
            }
        for (int k = n; k < up(n); ++k) s[k] = (T)-INFINITY;
    }

    // Turn the scores of row i with n keys into weights, and keep their total.
    void weigh(ptrdiff_t i, T* s, int n) {
        Vec<T> most = load(s), sums = {};
        for (int k = LANES<T>; k < n; k += LANES<T>) most = larger(load(s + k), most);
        T above = largest<T>(most);
        if (above > top[i]) {
            T factor = units.power(top[i] - above);
            total[i] *= factor, top[i] = above;
            T* to = o + i * value_width;
            for (ptrdiff_t e = 0; e < value_width; e += LANES<T>) store(to + e, load(to + e) * broadcast(factor));
        }
        for (int k = 0; k < n; k += LANES<T>) {
            Vec<T> w = units.power(load(s + k) - broadcast(top[i]));
            store(s + k, w);
            sums += w;
        }
        total[i] += sum<T>(sums);
    }

    // Add the weights of n keys times values to rows i ... i + R, for J vectors of features from e on.
    template <int R, int J, class K> MHA_INLINE void add_values(ptrdiff_t i, Matrix<K> values, ptrdiff_t e, int n) {
        Vec<T> c[R][J];
        T* to = o + i * value_width + e;
        for (int r = 0; r < R; ++r)
            for (int j = 0; j < J; ++j) c[r][j] = load(to + r * value_width + j * LANES<T>);
        for (int k = 0; k < n; ++k) {
            const K* from = values.data + k * values.step + e;
            unroll<J>([&](auto j) __attribute__((always_inline)) {
                Vec<T> y = load<T>(from + j * LANES<T>);
                unroll<R>([&](auto r) __attribute__((always_inline)) {
                    c[r][j] = fma(broadcast(s[r * BLOCK + k]), y, c[r][j]);
                });
            });
        }
        for (int r = 0; r < R; ++r)
            for (int j = 0; j < J; ++j) store(to + r * value_width + j * LANES<T>, c[r][j]);
    }

    // Multiply n numbers, rounded up to whole vectors.
    static MHA_INLINE void multiply_by(const T* factors, T* x, int n) {
        for (int k = 0; k < n; k += LANES<T>) store(x + k, load(x + k) * load(factors + k));
    }

    // Attend with rows i ... i + R to a block of keys.
    template <int R, class K>
    __attribute__((noinline)) void block(ptrdiff_t i, Matrix<K> keys, Matrix<K> values, ptrdiff_t begin, int n) {
        constexpr bool scaled = sizeof(K) == 1;
        multiply<R>(i, keys, values, n);
        for (int r = 0; r < R; ++r) {
            if (scaled) multiply_by(key_scales, s + r * BLOCK, n);
            transform(i + r, s + r * BLOCK, begin, n);
            weigh(i + r, s + r * BLOCK, n);
            if (scaled) multiply_by(value_scales, s + r * BLOCK, n);
        }
        ptrdiff_t e = 0;
        for (; e + 4 * LANES<T> <= value_width; e += 4 * LANES<T>) add_values<R, 4>(i, values, e, n);
        for (; e < value_width; e += LANES<T>) add_values<R, 1>(i, values, e, n);
    }

    // Begin to read rows of an array that follow soon: processors do not foresee the change between keys and values.
    template <class K> static MHA_INLINE void prefetch(Matrix<K> x, int first, int count, ptrdiff_t width) {
        constexpr ptrdiff_t LINE = 64 / sizeof(K);
        for (int i = first; i < first + count; ++i)
            for (ptrdiff_t at = 0; at < width; at += LINE) __builtin_prefetch(x.data + i * x.step + at);
    }

    // Attend with all rows to a block of keys.
    template <class K> void rows_attend(Matrix<K> keys, Matrix<K> values, ptrdiff_t begin, int n) {
        ptrdiff_t i = 0;
        for (; i + 2 <= u.rows && MOST > 1; i += 2) block<2 <= MOST ? 2 : 1>(i, keys, values, begin, n);
        for (; i < u.rows; ++i) block<1>(i, keys, values, begin, n);
    }

    // Whether rows in int8 can be computed with where they lie.
    static bool lie_well(const Rows& rows, ptrdiff_t size, ptrdiff_t padded) {
        return rows.a.kind == INT8 && rows.a.step[2] == 1 && size == padded;
    }

    void attend() {
        memset(o, 0, sizeof(T) * u.rows * value_width);
        bool in_place = lie_well(key_rows, p.width, width) && lie_well(value_rows, p.value_width, value_width);
        in_runs(p, rows, u.rows, u.key_begin, u.key_end, [&](ptrdiff_t first, ptrdiff_t end, bool) {
            for (ptrdiff_t begin = first; begin < end; begin += BLOCK) attend_block(begin, end, in_place);
        });
    }

    // Attend with all rows to a block of the keys from ``begin`` to ``end``.
    void attend_block(ptrdiff_t begin, ptrdiff_t end, bool in_place) {
        int n = (int)(end - begin < BLOCK ? end - begin : BLOCK);
        if (in_place) {
            for (int k = 0; k < n; ++k)
                key_scales[k] = scale_of<T>(key_rows, begin + k), value_scales[k] = scale_of<T>(value_rows, begin + k);
            ptrdiff_t step = p.key.step[1], value_step = p.value.step[1];
            return rows_attend<int8_t>({(const int8_t*)key_rows.data + begin * step, step},
                                       {(const int8_t*)value_rows.data + begin * value_step, value_step}, begin, n);
        }
        Matrix<T> keys = rows_of<T, 1>(key_rows, begin, n, p.width, width, key_copy);
        Matrix<T> values = rows_of<T, 1>(value_rows, begin, n, p.value_width, value_width, value_copy);
        rows_attend(keys, values, begin, n);
    }

    void compute() {
        read_queries();
        for (ptrdiff_t i = 0; i < u.rows; ++i) {
            bool sunk = u.has_sink && sinks[i] != (T)-INFINITY;
            top[i] = sunk ? sinks[i] : -most_of<T>(), total[i] = sunk ? units.total_of(sinks[i]) : 0;
        }
        attend();
        T zeros = 0;
        for (ptrdiff_t e = 0; e < u.rows * value_width; ++e) zeros += o[e] * 0;
        if (zeros != zeros) {  // a sum may overflow where the weighted mean does not: use weights that add up to 1
            for (ptrdiff_t i = 0; i < u.rows; ++i) {
                top[i] += total[i] > 0 ? units.log(total[i]) : 0;
                total[i] = u.has_sink ? units.power(sinks[i] - top[i]) : 0;
            }
            attend();
        }
        finish();
    }

    void finish() {
        for (ptrdiff_t i = 0; i < u.rows; ++i) {
            T *from = o + i * value_width, inverse = 1 / total[i];
            for (ptrdiff_t e = 0; e < p.value_width && !u.partial; ++e) from[e] = total[i] == 0 ? 0 : from[e] * inverse;
            write_row<T>(p, u, rows, i, from, top[i], total[i]);
        }
    }
};

}}  // namespace mha::MHA_LEVEL
