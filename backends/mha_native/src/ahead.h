// Memory that is read soon, asked for a few lines at a time while something else is computed: arrays lie in many short runs, of
// which the processor does not foresee the next.
#pragma once
#include "rows.h"

namespace mha { namespace MHA_LEVEL {

class Ahead {
    struct Run { const char *at, *end; ptrdiff_t gap, rest, bytes; };  // a row's next line, its end; rows after it
    Run runs[4];
    int first = 0, count = 0;

    void add(const Array& a, const char* data, ptrdiff_t rows, ptrdiff_t width) {
        ptrdiff_t size = size_of(a.kind), bytes = width * size, step = a.step[1];
        if (a.step[2] != size || step < bytes || rows <= 0) return;
        if (step == bytes) bytes *= rows, rows = 1;
        runs[count++] = {data, data + bytes, step - bytes, rows - 1, bytes};
        lines += rows * (bytes / 64 + 1);
    }

public:
    ptrdiff_t lines = 0;

    // Memory that is needed after unit u: its results, then the next unit's queries and, if they differ, first keys and values.
    Ahead(const Problem& p, const Unit& u, const Unit* next) {
        add(p.out, first_row(p, u, p.out), u.partial ? 0 : u.rows, p.value_width);
        if (!next) return;
        add(p.query, first_row(p, *next, p.query), next->rows, p.width);
        if (next->batch == u.batch && next->key_head == u.key_head && next->sequence == u.sequence) return;
        ptrdiff_t keys = next->key_end - next->key_begin;
        keys = keys < 128 ? keys : 128;
        add(p.key, keys_of(p, *next, p.key) + next->key_begin * p.key.step[1], keys, p.width);
        add(p.value, keys_of(p, *next, p.value) + next->key_begin * p.value.step[1], keys, p.value_width);
    }

    MHA_INLINE void fetch(ptrdiff_t some) {
        for (; some > 0 && first < count; --some) {
            Run& r = runs[first];
            __builtin_prefetch(r.at, 0, 2);
            r.at += 64;
            if (r.at < r.end) continue;
            if (r.rest-- > 0)
                r.at = r.end + r.gap, r.end = r.at + r.bytes;
            else
                ++first;
        }
    }
};

}}  // namespace mha::MHA_LEVEL
