// The positions of a unit's rows, and which keys the band lets them see.
#pragma once
#include "product.h"
#include "rows.h"

namespace mha { namespace MHA_LEVEL {

// Some vectors of rows.
struct Vectors {
    int first, count;
    bool operator==(const Vectors& other) const { return first == other.first && count == other.count; }
};

template <class T, int N = VECTORS> struct Band {  // of N vectors at most
    const Problem& p;
    int vectors;                                   // of rows
    bool consecutive[N];                     // whether the rows of a vector follow each other, in one head
    ptrdiff_t origin;                              // the position of row 0
    Bits<T> position[N];                     // of each row, relative to the origin
    ptrdiff_t earliest[N], latest[N];  // of each vector

    Band(const Problem& problem, const Unit& u, const Row* rows) : p(problem), origin(rows[0].position) {
        vectors = (int)((u.rows + LANES<T> - 1) / LANES<T>);
        if (!p.has_band && !p.distance.data) return;
        for (int v = 0; v < vectors; ++v) {
            earliest[v] = latest[v] = rows[v * LANES<T>].position;
            consecutive[v] = (v + 1) * LANES<T> <= u.rows;
            for (int lane = 0; lane < LANES<T>; ++lane) {
                int i = v * LANES<T> + lane;
                ptrdiff_t at = rows[i < u.rows ? i : u.rows - 1].position;  // after the last row it is computed in vain
                position[v][lane] = (Int<T>)(at - origin);
                earliest[v] = at < earliest[v] ? at : earliest[v];
                latest[v] = at > latest[v] ? at : latest[v];
                consecutive[v] = consecutive[v] && (lane == 0 || at > rows[i - 1].position);
            }
        }
    }

    // Whether some row of a vector sees some of the keys from ``begin`` to ``end``.
    bool sees(int v, ptrdiff_t begin, ptrdiff_t end) const {
        return !p.has_band || (begin <= latest[v] + p.high && end - 1 >= earliest[v] + p.low);
    }

    // From the first to the last vector that does, and for which ``also`` is true.
    template <class G> Vectors seeing(ptrdiff_t begin, ptrdiff_t end, G also) const {
        int first = vectors, last = -1;
        for (int v = 0; v < vectors; ++v)
            if (sees(v, begin, end) && also(v, begin, end)) {
                first = first < v ? first : v;
                last = v;
            }
        return {first, last < first ? 0 : last - first + 1};
    }

    // Call f(vectors, begin, end) for blocks of at most ``most`` keys, each with the vectors that see some of its keys.
    template <class F, class G> void in_blocks(ptrdiff_t key, ptrdiff_t end, ptrdiff_t most, F f, G also) const {
        while (key < end) {
            ptrdiff_t stop = key + TOGETHER < end ? key + TOGETHER : end;
            Vectors now = seeing(key, stop, also);
            while (stop < end && stop - key < most) {
                ptrdiff_t next = stop + TOGETHER < end ? stop + TOGETHER : end;
                if (!(seeing(stop, next, also) == now)) break;
                stop = next;
            }
            f(now, key, stop);
            key = stop;
        }
    }

    // Whether one of these rows does not see one of these keys.
    bool is_cut(Vectors some, ptrdiff_t begin, ptrdiff_t end) const {
        if (!p.has_band) return false;
        for (int v = some.first; v < some.first + some.count; ++v)
            if (end - 1 > earliest[v] + p.high || begin < latest[v] + p.low) return true;
        return false;
    }

    // The rows of a vector that do not see a key.
    MHA_INLINE Bits<T> hides(int v, ptrdiff_t key) const {
        Bits<T> first = Bits<T>{} + narrow(key - origin - p.high), last = Bits<T>{} + narrow(key - origin - p.low);
        return (position[v] < first) | (position[v] > last);
    }
    static Int<T> narrow(ptrdiff_t x) {
        return (Int<T>)(x < -(ptrdiff_t)INT32_MAX ? -(ptrdiff_t)INT32_MAX : x > INT32_MAX ? INT32_MAX : x);
    }
};

}}  // namespace mha::MHA_LEVEL
