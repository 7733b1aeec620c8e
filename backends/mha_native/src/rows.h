// The rows of a unit: where their queries, results, masks and biases lie.
#pragma once
#include <math.h>

#include "convert.h"
#include "exponential.h"

namespace mha { namespace MHA_LEVEL {

struct Row {
    const char* query;
    char* out;
    char* lse;                // null if it is not wanted
    const char* mask;         // of key 0
    const char* bias;         // of key 0
    const char* tiles;        // of the query's tile and the first tile of keys
    const char *d_out, *d_lse; // null if they are 0
    char* d_query;            // null if it is not wanted
    const char* distance;     // of key 0; that of key j lies j numbers before it
    ptrdiff_t position;       // the query's index in its sequence
};

constexpr double LN2 = 0.69314718055994530942;

// The base of the scores, 2 or e: a weight is base^(score - top).
template <class T> struct Units {
    T scale;        // from the product of query and key to a score, or to what the softcap multiplies
    T cap;          // the softcap, or 0
    bool natural;   // whether the base is e
    double ln;      // of the base

    explicit Units(const Problem& p) {
        double to_score = p.natural ? 1 : 1 / LN2;
        scale = (T)(p.softcap ? p.scale / p.softcap : p.scale * to_score);
        cap = (T)(p.softcap * to_score);
        natural = p.natural;
        ln = natural ? 1 : LN2;
    }

    Vec<T> power(Vec<T> x) const { return natural ? MHA_LEVEL::exp<T>(x) : MHA_LEVEL::exp2<T>(x); }
    T power(T x) const { return (T)::exp(x * ln); }
    T log(T x) const { return (T)(::log((double)x) / ln); }

    // The total that a row begins with: a sink counts once, relative to itself. NaN for an infinite one, as in e^(inf - inf).
    static T total_of(T sink) { return sink - sink + 1; }
};

inline Sequence sequence_of(const Problem& p, const Unit& u) {
    return p.sequences ? p.sequences[u.sequence] : Sequence{0, p.queries, 0, p.keys};
}

// The first key of a sequence, in the head that the unit reads.
inline const char* keys_of(const Problem& p, const Unit& u, const Array& a) {
    return a.data + batch_offset(p, a, u.batch) + u.key_head * a.step[0] + sequence_of(p, u).key_start * a.step[1];
}

// The rows of keys, or of values, of a unit.
inline Rows rows_in(const Problem& p, const Unit& u, const Array& a, const Array& scale) {
    return {a, keys_of(p, u, a), scale.data ? keys_of(p, u, scale) : nullptr, scale.step[1]};
}

// The unit's first row of an array of query rows.
inline char* first_row(const Problem& p, const Unit& u, const Array& a) {
    Sequence s = sequence_of(p, u);
    ptrdiff_t head = u.key_head * (p.heads / p.key_heads) + u.first / s.queries;
    return a.data + batch_offset(p, a, u.batch) + head * a.step[0] + (s.query_start + u.first % s.queries) * a.step[1];
}

// Fill ``rows``, and return the sinks by row if there are any.
template <class T> void find_rows(const Problem& p, const Unit& u, Row* rows, T* sinks) {
    Sequence s = sequence_of(p, u);
    ptrdiff_t group = p.heads / p.key_heads;
    ptrdiff_t at[10];
    const Array* all[10] = {&p.query, &p.out, &p.lse, &p.mask, &p.bias, &p.d_out, &p.d_lse, &p.d_query, &p.distance, &p.sink};
    for (int i = 0; i < 10; ++i) at[i] = all[i]->data ? batch_offset(p, *all[i], u.batch) : 0;
    const ptrdiff_t at_tiles = p.tiles.data ? batch_offset(p, p.tiles, u.batch) : 0;
    ptrdiff_t position = u.first % s.queries, head = u.key_head * group + u.first / s.queries;
    for (ptrdiff_t i = 0; i < u.rows; ++i) {
        auto place = [&](int which) __attribute__((always_inline)) {
            const Array& a = *all[which];
            return a.data ? a.data + at[which] + head * a.step[0] + (s.query_start + position) * a.step[1] : nullptr;
        };
        Row& r = rows[i];
        const char* tiles = p.tiles.data;
        if (tiles) tiles += at_tiles + head * p.tiles.step[0] + position / TILE * p.tiles.step[1];
        r = {place(0), place(1), place(2), place(3), place(4), tiles, place(5), place(6), place(7), nullptr, position};
        if (p.distance.data)  // the same numbers for every sequence
            r.distance = p.distance.data + at[8] + head * p.distance.step[0] + (position + p.keys - 1) * (ptrdiff_t)sizeof(T);
        sinks[i] = 0;
        if (p.sink.data) read<T>(p.sink.kind, p.sink.data + at[9] + head * p.sink.step[0], 0, sinks + i, 1);
        if (++position == s.queries) position = 0, ++head;
    }
}

// Write the logarithm of ``total``, a sum of exponentials relative to ``top``.
template <class T> void write_lse(const Problem& p, const Row& r, T top, T total) {
    if (!r.lse) return;
    T lse = total == 0 ? (T)-INFINITY : (T)(top * (p.natural ? 1 : LN2) + ::log((double)total));
    memcpy(r.lse, &lse, sizeof lse);
}

// Partial states: for each row of a unit E numbers of out, then top and total.
template <class T> T* partial_of(const Problem& p, const Unit& u, ptrdiff_t row) {
    return (T*)u.partial + row * (p.value_width + 2);
}

// Write a row's part of the state or, where keys are not cut into parts, its lse and its result, if ``from`` is given.
template <class T>
void write_row(const Problem& p, const Unit& u, const Row* rows, ptrdiff_t i, const T* from, T top, T total) {
    if (u.partial) {
        T* to = partial_of<T>(p, u, i);
        memcpy(to, from, sizeof(T) * p.value_width);
        to[p.value_width] = top, to[p.value_width + 1] = total;
        return;
    }
    if (from) write<T>(p.out.kind, rows[i].out, from, p.value_width);
    write_lse<T>(p, rows[i], top, total);
}

// Merge the states of all parts of the keys, of at most MOST rows, in order. Source: Milakov and Gimelshein 2018, section 3.1.
template <class T, int MOST>
void merge_parts(const Problem& p, const Unit& u, const char* partials, ptrdiff_t parts, ptrdiff_t stride) {
    Row rows[MOST];
    T sinks[MOST];
    find_rows<T>(p, u, rows, sinks);
    Units<T> units(p);
    for (ptrdiff_t i = 0; i < u.rows; ++i) {
        auto part = [&](ptrdiff_t at) { return (T*)(partials + at * stride) + i * (p.value_width + 2); };
        T* sum = part(0);
        T top = sum[p.value_width];
        for (ptrdiff_t at = 1; at < parts; ++at) {
            T part_top = part(at)[p.value_width];
            top = part_top > top || part_top != part_top ? part_top : top;
        }
        T total = 0;
        for (ptrdiff_t at = 0; at < parts; ++at) {
            const T* state = part(at) + p.value_width;
            total += state[1] * units.power(state[0] - top);
        }
        for (ptrdiff_t at = 0; at < parts; ++at) {
            T* from = part(at);
            T factor = total == 0 ? 0 : units.power(from[p.value_width] - top) / total;
            for (ptrdiff_t e = 0; e < p.value_width; ++e) sum[e] = at ? sum[e] + factor * from[e] : factor * from[e];
        }
        if (total == 0) memset(sum, 0, p.value_width * sizeof(T));
        write<T>(p.out.kind, rows[i].out, sum, p.value_width);
        write_lse<T>(p, rows[i], top, total);
    }
}

}}  // namespace mha::MHA_LEVEL
