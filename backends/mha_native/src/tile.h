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
// A weight is 2^(score - top), where top is a maximum of the row's scores that moves only when a score exceeds it by LAZY: then
// what was summed before is multiplied by a power of two. Source: Milakov and Gimelshein 2018; Dao et al. 2022, algorithm 1; the
// lazy maximum: Dao and Shah, FlashAttention-4, 2025.
#pragma once
#include "rows.h"

namespace mha { namespace MHA_LEVEL {

constexpr int VECTORS = 3;                            // 3 x 8, or 3 x 4, sums fill the registers
constexpr int TOGETHER = REGISTERS == 32 ? 8 : 4;     // keys, or features, of a product
constexpr int BLOCK = 128;                             // keys whose weights are kept until they multiply values
template <class T> constexpr int ROWS = VECTORS * LANES<T>;
template <class T> constexpr T LAZY = sizeof(T) == 8 ? 256 : 32;  // 2^LAZY times a sum of values is finite, with few exceptions

// c[j][v] += sum over i < n of a[i][v] b(i, j), where b(i, j) is b[j * step + i] or, if ACROSS, b[i * step + j].
template <class T, int J, int V, bool ACROSS>
MHA_INLINE void multiply(Vec<T> (&c)[J][V], const T* a, const T* b, ptrdiff_t step, ptrdiff_t n) {
    for (ptrdiff_t i = 0; i < n; ++i) {
        Vec<T> x[V];
        unroll<V>([&](auto v) __attribute__((always_inline)) { x[v] = load(a + v * LANES<T>); });
        unroll<J>([&](auto j) __attribute__((always_inline)) {
            Vec<T> y = broadcast(ACROSS ? b[j] : b[j * step]);
            forget(a);
            unroll<V>([&](auto v) __attribute__((always_inline)) {
                c[j][v] = fma(v < KEPT ? x[v] : load(a + v * LANES<T>), y, c[j][v]);
            });
        });
        a += ROWS<T>;
        b += ACROSS ? step : 1;
    }
}

template <class T> struct Tile {
    const Problem& p;
    const Unit& u;
    Row rows[ROWS<T>];
    T sinks[ROWS<T>];
    Vec<T> top[VECTORS], total[VECTORS];
    Bits<T> position[VECTORS];               // of each row, relative to row 0
    ptrdiff_t earliest[VECTORS], latest[VECTORS];  // positions of each vector's rows
    bool consecutive[VECTORS];               // whether they follow each other, in one head
    int vectors;
    T cap;
    bool has_terms;
    T *q, *o, *weights, *terms, *key_copy, *value_copy;  // the first four: rows of ROWS numbers

    static ptrdiff_t up(ptrdiff_t n, ptrdiff_t to) { return (n + to - 1) / to * to; }

    static size_t scratch_size(const Problem& p) {
        ptrdiff_t lines = up(p.width, LANES<T>) + up(p.value_width, LANES<T>) + BLOCK + (p.bias.data || p.mask.data ? BLOCK : 0);
        ptrdiff_t copies = BLOCK * (up(p.width, LANES<T>) + up(p.value_width, LANES<T>));
        return sizeof(T) * (lines * ROWS<T> + copies);
    }

    Tile(const Problem& problem, const Unit& unit, char* scratch) : p(problem), u(unit) {
        T* at = (T*)scratch;
        auto take = [&](ptrdiff_t n) { T* taken = at; at += n; return taken; };
        q = take(up(p.width, LANES<T>) * ROWS<T>);
        o = take(up(p.value_width, LANES<T>) * ROWS<T>);
        weights = take(BLOCK * ROWS<T>);
        terms = p.bias.data || p.mask.data ? take(BLOCK * ROWS<T>) : nullptr;
        key_copy = take(BLOCK * up(p.width, LANES<T>));
        value_copy = take(BLOCK * up(p.value_width, LANES<T>));
        find_rows<T>(p, u, rows, sinks);
        vectors = (int)((u.rows + LANES<T> - 1) / LANES<T>);
        cap = (T)p.softcap;
        has_terms = p.mask.data || p.bias.data || p.distance.data || cap != 0;
        find_positions();
    }

    void find_positions() {
        for (int v = 0; v < vectors; ++v) {
            earliest[v] = latest[v] = rows[v * LANES<T>].position;
            consecutive[v] = true;
            for (int lane = 0; lane < LANES<T>; ++lane) {
                int i = v * LANES<T> + lane;
                if (i >= u.rows) {  // repeat the last row: it is computed in vain
                    position[v][lane] = (Int<T>)(rows[u.rows - 1].position - rows[0].position);
                    consecutive[v] = false;
                    continue;
                }
                ptrdiff_t at = rows[i].position;
                position[v][lane] = (Int<T>)(at - rows[0].position);
                earliest[v] = at < earliest[v] ? at : earliest[v];
                latest[v] = at > latest[v] ? at : latest[v];
                consecutive[v] &= lane == 0 || at == rows[i - 1].position + 1;
            }
        }
    }

    // Write the queries of all rows to q, transposed and scaled, so that scores come out in base 2, or divided by the softcap.
    void read_queries() {
        T scale = (T)(p.softcap ? p.scale / p.softcap : p.scale * 1.4426950408889634074);
        ptrdiff_t width = up(p.width, LANES<T>);
        bool direct = p.query.kind == KIND<T> && p.query.step[2] == sizeof(T) && width == p.width;
        for (int v = 0; v < vectors; ++v) {
            int some = (int)(u.rows - v * LANES<T>);
            some = some > LANES<T> ? LANES<T> : some;
            if (!direct)
                for (int i = 0; i < some; ++i) {
                    read<T>(p.query.kind, rows[v * LANES<T> + i].query, p.query.step[2], value_copy_row(i, width), p.width);
                    memset(value_copy_row(i, width) + p.width, 0, (width - p.width) * sizeof(T));
                }
            for (ptrdiff_t d = 0; d < width; d += LANES<T>) {
                Vec<T> x[LANES<T>];
                for (int i = 0; i < LANES<T>; ++i) {
                    int row = v * LANES<T> + i;
                    const T* from = direct ? (const T*)rows[row < u.rows ? row : 0].query : value_copy_row(i, width);
                    x[i] = i < some ? load(from + d) : Vec<T>{};
                }
                transpose<T>(x);
                for (int i = 0; i < LANES<T>; ++i) store(q + (d + i) * ROWS<T> + v * LANES<T>, x[i] * broadcast(scale));
            }
        }
    }

    // Copies of rows; LANES rows of queries or results fit where copies of BLOCK keys do.
    T* value_copy_row(int i, ptrdiff_t width) { return key_copy + i * width; }

    // The vectors first ... first + count, of which some row sees some of the keys from ``begin`` to ``end``.
    struct Seeing {
        int first, count;
        bool operator==(const Seeing& other) const { return first == other.first && count == other.count; }
    };
    Seeing seeing(ptrdiff_t begin, ptrdiff_t end) const {
        if (!p.has_band) return {0, vectors};
        int first = vectors, last = -1;
        for (int v = 0; v < vectors; ++v)
            if (begin <= latest[v] + p.high && end - 1 >= earliest[v] + p.low) {
                first = first < v ? first : v;
                last = v;
            }
        return {first, last < first ? 0 : last - first + 1};
    }
    bool is_cut(Seeing s, ptrdiff_t begin, ptrdiff_t end) const {  // whether one of these rows does not see one of these keys
        if (!p.has_band) return false;
        for (int v = s.first; v < s.first + s.count; ++v)
            if (end - 1 > earliest[v] + p.high || begin < latest[v] + p.low) return true;
        return false;
    }

    // Apply softcap, biases and masks to the scores of keys key ... key + count with some vectors of rows.
    __attribute__((noinline)) void transform(T* scores, int count, Seeing s, ptrdiff_t key, const T* terms, bool cut) {
        for (int v = s.first; v < s.first + s.count; ++v) {
            T* at = scores + v * LANES<T>;
            if (cap != 0)
                for (int j = 0; j < count; ++j)
                    store(at + j * ROWS<T>, broadcast((T)(cap * LOG2E<T>)) * tanh<T>(load(at + j * ROWS<T>)));
            if (p.distance.data)
                for (int j = 0; j < count; ++j) add(at + j * ROWS<T>, distances(v, key + j));
            if (terms)
                for (int j = 0; j < count; ++j) {
                    Vec<T> term = load(terms + j * ROWS<T> + v * LANES<T>), hidden = broadcast((T)-INFINITY);
                    Vec<T> sum = fma(term, broadcast(LOG2E<T>), load(at + j * ROWS<T>));
                    store(at + j * ROWS<T>, select<T>(term == hidden, hidden, sum));
                }
            if (cut)
                for (int j = 0; j < count; ++j) {
                    ptrdiff_t distance = key + j - rows[0].position;
                    Bits<T> first = Bits<T>{} + narrow(distance - p.high), last = Bits<T>{} + narrow(distance - p.low);
                    hide(at + j * ROWS<T>, (position[v] < first) | (position[v] > last));
                }
        }
    }
    static MHA_INLINE void add(T* scores, Vec<T> bias) { store(scores, fma(bias, broadcast(LOG2E<T>), load(scores))); }
    static MHA_INLINE void hide(T* scores, Bits<T> where) {
        store(scores, select<T>(where, broadcast((T)-INFINITY), load(scores)));
    }

    // The biases of one key, by distance.
    MHA_INLINE Vec<T> distances(int v, ptrdiff_t key) const {
        const Row* r = rows + v * LANES<T>;
        if (consecutive[v]) return load((const T*)r->distance - key);
        Vec<T> b = {};
        for (int i = 0; i < LANES<T> && v * LANES<T> + i < u.rows; ++i) b[i] = ((const T*)r[i].distance)[-key];
        return b;
    }

    static Int<T> narrow(ptrdiff_t x) {
        return (Int<T>)(x < -(ptrdiff_t)INT32_MAX ? -(ptrdiff_t)INT32_MAX : x > INT32_MAX ? INT32_MAX : x);
    }

    // Raise the tops of rows with a score above top + LAZY to that score, and divide what was summed accordingly.
    template <int V> __attribute__((noinline)) void raise(int first, const Vec<T>* most, int done) {
        for (int v = 0; v < V; ++v) {
            int at = first + v;
            Vec<T> raised = select<T>(most[v] > top[at] + broadcast(LAZY<T>), most[v], top[at]);
            Vec<T> factor = MHA_LEVEL::exp2<T>(top[at] - raised);
            top[at] = raised;
            total[at] *= factor;
            for (int k = 0; k < done; ++k) scale_by(weights + k * ROWS<T> + at * LANES<T>, factor);
            for (ptrdiff_t e = 0; e < p.value_width; ++e) scale_by(o + e * ROWS<T> + at * LANES<T>, factor);
        }
    }
    static void scale_by(T* x, Vec<T> factor) { store(x, load(x) * factor); }

    // The weights of J keys, from ``key`` on; ``done`` of the block's are known.
    template <int J, int V>
    __attribute__((noinline)) void weigh(int first, const T* keys, ptrdiff_t step, ptrdiff_t key, int done, const T* terms, bool cut) {
        T* to = weights + done * ROWS<T>;
        Vec<T> s[J][V], most[V];
        unroll<J>([&](auto j) __attribute__((always_inline)) {
            unroll<V>([&](auto v) __attribute__((always_inline)) { s[j][v] = Vec<T>{}; });
        });
        multiply<T, J, V, false>(s, q + first * LANES<T>, keys, step, p.width);
        bool plain = !has_terms && !cut;
        unroll<V>([&](auto v) __attribute__((always_inline)) {
            most[v] = s[0][v];
            unroll<J>([&](auto j) __attribute__((always_inline)) {
                most[v] = larger(s[j][v], most[v]);
                store(to + j * ROWS<T> + (first + v) * LANES<T>, s[j][v]);
            });
        });
        if (!plain) {
            transform(to, J, {first, V}, key, terms, cut);
            for (int v = 0; v < V; ++v) {
                most[v] = load(to + (first + v) * LANES<T>);
                for (int j = 1; j < J; ++j) most[v] = larger(load(to + j * ROWS<T> + (first + v) * LANES<T>), most[v]);
            }
        }
        Bits<T> above = {};
        for (int v = 0; v < V; ++v) above |= most[v] > top[first + v] + broadcast(LAZY<T>);
        if (__builtin_expect(any<T>(above), 0)) raise<V>(first, most, done);
        Vec<T> t[V], sums[V];
        unroll<V>([&](auto v) __attribute__((always_inline)) { t[v] = top[first + v], sums[v] = Vec<T>{}; });
        for (int j = 0; j < J; ++j)
            unroll<V>([&](auto v) __attribute__((always_inline)) {
                T* at = to + j * ROWS<T> + (first + v) * LANES<T>;
                Vec<T> w = MHA_LEVEL::exp2<T>(load(at) - t[v]);
                store(at, w);
                sums[v] += w;
            });
        unroll<V>([&](auto v) __attribute__((always_inline)) { total[first + v] += sums[v]; });
    }

    // o[e] += weights of n keys times values, for J features from e on.
    template <int J, int V> __attribute__((noinline)) void add_values(int first, const T* values, ptrdiff_t step, ptrdiff_t e, int n) {
        Vec<T> c[J][V];
        T* to = o + e * ROWS<T> + first * LANES<T>;
        unroll<J>([&](auto j) __attribute__((always_inline)) {
            unroll<V>([&](auto v) __attribute__((always_inline)) { c[j][v] = load(to + j * ROWS<T> + v * LANES<T>); });
        });
        multiply<T, J, V, true>(c, weights + first * LANES<T>, values + e, step, n);
        unroll<J>([&](auto j) __attribute__((always_inline)) {
            unroll<V>([&](auto v) __attribute__((always_inline)) { store(to + j * ROWS<T> + v * LANES<T>, c[j][v]); });
        });
    }

    // All of some rows' work on keys begin ... end, at most BLOCK.
    template <int V> __attribute__((noinline)) void block(int first, ptrdiff_t begin, ptrdiff_t end) {
        constexpr int J = TOGETHER;
        int n = (int)(end - begin), at = 0;
        Matrix<T> keys = rows_of<T>(p.key, key_data, begin, n, p.width, p.width, key_copy);
        Matrix<T> values = rows_of<T>(p.value, value_data, begin, n, p.value_width, p.value_width, value_copy);
        if (terms) read_terms(first, V, begin, n);
        auto some = [&](auto j) __attribute__((always_inline)) {
            bool cut = is_cut({first, V}, begin + at, begin + at + j);
            const T* its = terms ? terms + at * ROWS<T> : nullptr;
            weigh<j, V>(first, keys.data + at * keys.step, keys.step, begin + at, at, its, cut);
            at += j;
        };
        while (at + J <= n) some(Constant<J>{});
        if (n - at >= 4) some(Constant<4>{});
        if (n - at >= 2) some(Constant<2>{});
        if (n - at >= 1) some(Constant<1>{});
        ptrdiff_t e = 0, width = p.value_width;
        for (; e + J <= width; e += J) add_values<J, V>(first, values.data, values.step, e, n);
        if (width - e >= 4) add_values<4, V>(first, values.data, values.step, e, n), e += 4;
        if (width - e >= 2) add_values<2, V>(first, values.data, values.step, e, n), e += 2;
        if (width - e >= 1) add_values<1, V>(first, values.data, values.step, e, n);
    }

    // Write biases, and -inf where the mask hides a key, for a block: transposed, so that a vector holds those of one key.
    void read_terms(int first, int count, ptrdiff_t begin, int n) {
        bool direct = p.bias.kind == KIND<T> && p.bias.step[2] == sizeof(T), bytes = p.mask.step[2] == 1;
        for (int v = first; v < first + count; ++v)
            for (int k = 0; k < n; k += LANES<T>) {
                int some = n - k < LANES<T> ? n - k : LANES<T>;
                Vec<T> x[LANES<T>];
                for (int i = 0; i < LANES<T>; ++i) {
                    const Row& r = rows[v * LANES<T> + i < u.rows ? v * LANES<T> + i : 0];
                    x[i] = Vec<T>{};
                    if (r.bias) __builtin_prefetch(r.bias + (begin + k + BLOCK) * p.bias.step[2]);  // rows are too many to be foreseen
                    if (r.bias && direct && some == LANES<T>)
                        x[i] = load((const T*)(r.bias + (begin + k) * sizeof(T)));
                    else if (r.bias) {
                        T line[LANES<T>] = {};
                        read<T>(p.bias.kind, r.bias + (begin + k) * p.bias.step[2], p.bias.step[2], line, some);
                        x[i] = load(line);
                    }
                    if (r.mask) {
                        uint8_t line[LANES<T>] = {};
                        const char* from = r.mask + (begin + k) * p.mask.step[2];
                        bool whole = bytes && some == LANES<T>;
                        for (int j = 0; j < some && !whole; ++j) line[j] = (uint8_t)from[j * p.mask.step[2]];
                        x[i] = select<T>(widen_bytes<T>(whole ? (const uint8_t*)from : line) == 0, broadcast((T)-INFINITY), x[i]);
                        __builtin_prefetch(from + BLOCK * p.mask.step[2]);
                    }
                }
                transpose<T>(x);
                for (int i = 0; i < some; ++i) store(terms + (k + i) * ROWS<T> + v * LANES<T>, x[i]);
            }
    }

    const char *key_data, *value_data;

    // Attend to all keys of the unit, beginning with these tops and totals.
    void attend() {
        memset(o, 0, sizeof(T) * p.value_width * ROWS<T>);
        key_data = keys_of(p, u, p.key), value_data = keys_of(p, u, p.value);
        ptrdiff_t key = u.key_begin, end = u.key_end;
        while (key < end) {
            ptrdiff_t stop = key + TOGETHER < end ? key + TOGETHER : end;
            Seeing now = seeing(key, stop);
            while (stop < end && stop - key < BLOCK) {
                ptrdiff_t next = stop + TOGETHER < end ? stop + TOGETHER : end;
                if (!(seeing(stop, next) == now)) break;
                stop = next;
            }
            if (now.count == 3) block<3>(now.first, key, stop);
            if (now.count == 2) block<2>(now.first, key, stop);
            if (now.count == 1) block<1>(now.first, key, stop);
            key = stop;
        }
    }

    void compute() {
        read_queries();
        for (int v = 0; v < vectors; ++v) {
            T most = -most_of<T>(), none = 0;
            top[v] = broadcast(most), total[v] = broadcast(none);
            if (u.has_sink)
                for (int i = 0; i < LANES<T> && v * LANES<T> + i < u.rows; ++i) {
                    T sink = sinks[v * LANES<T> + i] * LOG2E<T>;
                    if (sink == (T)-INFINITY) continue;
                    top[v][i] = sink, total[v][i] = 1;
                }
        }
        attend();
        if (!is_finite()) again();
        finish();
    }

    bool is_finite() const {
        Vec<T> zeros = {};
        for (int v = 0; v < vectors; ++v)
            for (ptrdiff_t e = 0; e < p.value_width; ++e) zeros += load(o + e * ROWS<T> + v * LANES<T>) * broadcast((T)0);
        return !any<T>(zeros != zeros);
    }

    // A sum may overflow where the weighted mean does not: compute once more with weights that add up to 1.
    void again() {
        for (int v = 0; v < vectors; ++v)
            for (int i = 0; i < LANES<T>; ++i) {
                T sum = total[v][i], shift = sum > 0 ? (T)log2((double)sum) : 0, before = top[v][i];
                bool sunk = u.has_sink && v * LANES<T> + i < u.rows;
                top[v][i] = before + shift;
                total[v][i] = sunk ? (T)::exp2(sinks[v * LANES<T> + i] * LOG2E<T> - top[v][i]) : 0;
            }
        attend();
    }

    // Write out and lse, or the state of this part of the keys.
    void finish() {
        ptrdiff_t width = up(p.value_width, LANES<T>);
        for (int v = 0; v < vectors; ++v) {
            int some = (int)(u.rows - v * LANES<T> < LANES<T> ? u.rows - v * LANES<T> : LANES<T>);
            Bits<T> empty = total[v] == broadcast((T)0);
            Vec<T> inverse = u.partial ? broadcast((T)1) : broadcast((T)1) / total[v];
            bool direct = !u.partial && p.out.kind == KIND<T> && width == p.value_width;
            for (ptrdiff_t e = 0; e < width; e += LANES<T>) {
                Vec<T> x[LANES<T>];
                for (int i = 0; i < LANES<T>; ++i)
                    x[i] = e + i < p.value_width
                               ? select<T>(empty, Vec<T>{}, load(o + (e + i) * ROWS<T> + v * LANES<T>) * inverse)
                               : Vec<T>{};
                transpose<T>(x);
                for (int i = 0; i < some; ++i)
                    store((direct ? (T*)rows[v * LANES<T> + i].out : value_copy_row(i, width)) + e, x[i]);
            }
            for (int i = 0; i < some; ++i) {
                int row = v * LANES<T> + i;
                if (u.partial) {
                    T* to = partial_of<T>(p, u, row);
                    memcpy(to, value_copy_row(i, width), p.value_width * sizeof(T));
                    to[p.value_width] = top[v][i], to[p.value_width + 1] = total[v][i];
                    continue;
                }
                if (!direct) write<T>(p.out.kind, rows[row].out, value_copy_row(i, width), p.value_width);
                write_lse<T>(rows[row], top[v][i], total[v][i], sinks[row]);
            }
        }
    }
};

}}  // namespace mha::MHA_LEVEL
