// Attention of a few query rows, as in decoding: a vector holds neighbouring features of one key, or scores of neighbouring keys.
// All time goes into reading keys and values once.
#pragma once
#include "rows.h"

namespace mha { namespace MHA_LEVEL {

template <class T> struct Few {
    static constexpr int BLOCK = 64, KEYS = 8, MOST = LANES<T> / 2;

    const Problem& p;
    const Unit& u;
    Row rows[MOST];
    T sinks[MOST], top[MOST], total[MOST];
    ptrdiff_t width, value_width;  // of q and o: multiples of LANES
    T *q, *o, *s, *key_copy, *value_copy;
    const char *key_data, *value_data;

    static ptrdiff_t up(ptrdiff_t n) { return (n + LANES<T> - 1) / LANES<T> * LANES<T>; }

    static size_t scratch_size(const Problem& p) { return sizeof(T) * (up(p.width) + up(p.value_width)) * (MOST + BLOCK) + sizeof(T) * BLOCK; }

    Few(const Problem& problem, const Unit& unit, char* scratch) : p(problem), u(unit) {
        width = up(p.width), value_width = up(p.value_width);
        q = (T*)scratch, o = q + MOST * width, s = o + MOST * value_width;
        key_copy = s + BLOCK, value_copy = key_copy + BLOCK * width;
        find_rows<T>(p, u, rows, sinks);
        key_data = keys_of(p, u, p.key), value_data = keys_of(p, u, p.value);
    }

    void read_queries() {
        T scale = (T)(p.softcap ? p.scale / p.softcap : p.scale * 1.4426950408889634074);
        memset(q, 0, sizeof(T) * u.rows * width);
        for (ptrdiff_t i = 0; i < u.rows; ++i) {
            read<T>(p.query.kind, rows[i].query, p.query.step[2], q + i * width, p.width);
            for (ptrdiff_t d = 0; d < p.width; ++d) q[i * width + d] *= scale;
        }
    }

    // Write the scores of J keys with row i.
    template <int J> MHA_INLINE void multiply(ptrdiff_t i, const T* keys, ptrdiff_t step, T* to) {
        Vec<T> c[J];
        unroll<J>([&](auto j) __attribute__((always_inline)) { c[j] = Vec<T>{}; });
        for (ptrdiff_t d = 0; d < width; d += LANES<T>) {
            Vec<T> x = load(q + i * width + d);
            unroll<J>([&](auto j) __attribute__((always_inline)) { c[j] = fma(x, load(keys + j * step + d), c[j]); });
        }
        unroll<J>([&](auto j) __attribute__((always_inline)) { to[j] = sum<T>(c[j]); });
    }

    // Apply softcap, biases and masks to the scores of row i with keys begin ... begin + n.
    void transform(ptrdiff_t i, ptrdiff_t begin, int n) {
        const Row& r = rows[i];
        if (p.softcap)
            for (int k = 0; k < BLOCK; k += LANES<T>)
                store(s + k, broadcast((T)(p.softcap * 1.4426950408889634074)) * tanh<T>(load(s + k)));
        if (r.distance)
            for (int k = 0; k < n; ++k) s[k] += ((const T*)r.distance)[-(begin + k)] * LOG2E<T>;
        if (r.bias) {
            T b[BLOCK];
            read<T>(p.bias.kind, r.bias + begin * p.bias.step[2], p.bias.step[2], b, n);
            for (int k = 0; k < n; ++k) s[k] += b[k] * LOG2E<T>;
        }
        if (r.mask)
            for (int k = 0; k < n; ++k) s[k] = r.mask[(begin + k) * p.mask.step[2]] ? s[k] : (T)-INFINITY;
        if (p.has_band)
            for (int k = 0; k < n; ++k) {
                ptrdiff_t distance = begin + k - r.position;
                s[k] = distance >= p.low && distance <= p.high ? s[k] : (T)-INFINITY;
            }
        for (int k = n; k < BLOCK; ++k) s[k] = (T)-INFINITY;
    }

    // Turn the scores of row i into weights, and keep its total.
    void weigh(ptrdiff_t i) {
        Vec<T> most = load(s), sums = {};
        for (int k = LANES<T>; k < BLOCK; k += LANES<T>) most = larger(load(s + k), most);
        T above = largest<T>(most);
        if (above > top[i]) {
            T factor = MHA_LEVEL::exp2<T>(broadcast(top[i] - above))[0];
            total[i] *= factor, top[i] = above;
            for (ptrdiff_t e = 0; e < value_width; e += LANES<T>) store(o + i * value_width + e, load(o + i * value_width + e) * broadcast(factor));
        }
        for (int k = 0; k < BLOCK; k += LANES<T>) {
            Vec<T> w = MHA_LEVEL::exp2<T>(load(s + k) - broadcast(top[i]));
            store(s + k, w);
            sums += w;
        }
        total[i] += sum<T>(sums);
    }

    // o[e] += weights of n keys times values, for J vectors of features.
    template <int J> MHA_INLINE void add_values(ptrdiff_t i, const T* values, ptrdiff_t step, ptrdiff_t e, int n) {
        Vec<T> c[J];
        T* to = o + i * value_width + e;
        unroll<J>([&](auto j) __attribute__((always_inline)) { c[j] = load(to + j * LANES<T>); });
        for (int k = 0; k < n; ++k) {
            Vec<T> w = broadcast(s[k]);
            unroll<J>([&](auto j) __attribute__((always_inline)) { c[j] = fma(w, load(values + k * step + e + j * LANES<T>), c[j]); });
        }
        unroll<J>([&](auto j) __attribute__((always_inline)) { store(to + j * LANES<T>, c[j]); });
    }

    // Begin to read what follows: the values of these keys, and keys further on. Processors do not read ahead across two arrays.
    MHA_INLINE void prefetch(Matrix<T> keys, Matrix<T> values, int k) const {
        constexpr ptrdiff_t LINE = 64 / sizeof(T), AHEAD = 32;
        for (int j = 0; j < KEYS; ++j) {
            for (ptrdiff_t d = 0; d < p.width; d += LINE) __builtin_prefetch(keys.data + (k + j + AHEAD) * keys.step + d);
            for (ptrdiff_t e = 0; e < p.value_width; e += LINE) __builtin_prefetch(values.data + (k + j) * values.step + e);
        }
    }

    void attend() {
        memset(o, 0, sizeof(T) * u.rows * value_width);
        for (ptrdiff_t begin = u.key_begin; begin < u.key_end; begin += BLOCK) {
            int n = (int)(u.key_end - begin < BLOCK ? u.key_end - begin : BLOCK);
            Matrix<T> keys = rows_of<T>(p.key, key_data, begin, n, p.width, width, key_copy);
            Matrix<T> values = rows_of<T>(p.value, value_data, begin, n, p.value_width, value_width, value_copy);
            for (ptrdiff_t i = 0; i < u.rows; ++i) {
                int k = 0;
                for (; k + KEYS <= n; k += KEYS) {
                    if (i == 0) prefetch(keys, values, k);
                    multiply<KEYS>(i, keys.data + k * keys.step, keys.step, s + k);
                }
                for (; k < n; ++k) multiply<1>(i, keys.data + k * keys.step, keys.step, s + k);
                for (; k < BLOCK; ++k) s[k] = 0;
                transform(i, begin, n);
                weigh(i);
                ptrdiff_t e = 0;
                for (; e + 4 * LANES<T> <= value_width; e += 4 * LANES<T>) add_values<4>(i, values.data, values.step, e, n);
                for (; e < value_width; e += LANES<T>) add_values<1>(i, values.data, values.step, e, n);
            }
        }
    }

    void compute() {
        read_queries();
        for (ptrdiff_t i = 0; i < u.rows; ++i) {
            T sink = sinks[i] * LOG2E<T>;
            bool sunk = u.has_sink && sink != (T)-INFINITY;
            top[i] = sunk ? sink : -most_of<T>(), total[i] = sunk ? 1 : 0;
        }
        attend();
        T zeros = 0;
        for (ptrdiff_t e = 0; e < u.rows * value_width; ++e) zeros += o[e] * 0;
        if (zeros != zeros) {  // a sum may overflow where the weighted mean does not: use weights that add up to 1
            for (ptrdiff_t i = 0; i < u.rows; ++i) {
                top[i] += total[i] > 0 ? (T)log2((double)total[i]) : 0;
                total[i] = u.has_sink ? (T)::exp2(sinks[i] * LOG2E<T> - top[i]) : 0;
            }
            attend();
        }
        finish();
    }

    void finish() {
        for (ptrdiff_t i = 0; i < u.rows; ++i) {
            T* from = o + i * value_width;
            if (u.partial) {
                T* to = partial_of<T>(p, u, i);
                memcpy(to, from, sizeof(T) * p.value_width);
                to[p.value_width] = top[i], to[p.value_width + 1] = total[i];
                continue;
            }
            T inverse = 1 / total[i];
            for (ptrdiff_t e = 0; e < p.value_width; ++e) from[e] = total[i] == 0 ? 0 : from[e] * inverse;
            write<T>(p.out.kind, rows[i].out, from, p.value_width);
            write_lse<T>(rows[i], top[i], total[i], sinks[i]);
        }
    }
};

}}  // namespace mha::MHA_LEVEL
