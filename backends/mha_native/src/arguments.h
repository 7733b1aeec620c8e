// The arguments of a call, which the bindings of Python and of XLA check alike before anything is read.
#pragma once
#include <stdarg.h>
#include <stdio.h>

#include "problem.h"

namespace mha {

constexpr ptrdiff_t LARGEST = (ptrdiff_t)1 << 31;  // an axis, at most: positions fit 32 bits
constexpr int MOST_AXES = MAX_BATCH_AXES + 3;

// Why a call is refused.
struct Refusal {
    bool of_type;
    char text[160];

    // Keep the reason, and return false.
    __attribute__((format(printf, 3, 4))) bool give(bool about_type, const char* format, ...) {
        va_list values;
        va_start(values, format);
        vsnprintf(text, sizeof text, format, values);
        va_end(values);
        of_type = about_type;
        return false;
    }
};

// An array that comes with a call: the format of its numbers, as in Python's module struct, and a step in bytes for each axis.
struct View {
    char* data;
    const char* format;
    ptrdiff_t size, ndim;  // of a number; of axes, whose shape and steps are given if they are not too many
    ptrdiff_t shape[MOST_AXES], steps[MOST_AXES];
};

// An array that a call expects: its last three axes, and the two kinds of which it may be.
struct Given {
    const char* name;
    Array* to;
    ptrdiff_t tail[3];
    Kind kinds[2];
    bool optional, written;
};

inline bool kind_of(const char* format, ptrdiff_t size, Kind* kind) {
    if (format[0] == '=') ++format;  // may be unaligned
    switch (format[0]) {
        case 'f': *kind = FLOAT32; return size == 4;
        case 'd': *kind = FLOAT64; return size == 8;
        case 'e': *kind = FLOAT16; return size == 2;
        case 'H': *kind = BFLOAT16; return size == 2;  // NumPy has no name for it
        case '?': case 'B': *kind = BYTE; return size == 1;
        case 'i': *kind = INTEGER; return size == 4;
        case 'b': *kind = INT8; return size == 1;
    }
    return false;
}

// Check the sizes of a problem, and count its batch elements.
inline bool check_sizes(Problem& p, Refusal& why) {
    double numbers = (double)size_of(p.kind);
    p.num_batch = 1;
    for (int i = 0; i < p.batch_axes; ++i) {
        p.num_batch *= p.batch[i] > 0 && p.num_batch < LARGEST * LARGEST / (p.batch[i] + 1) ? p.batch[i] : 0;
        numbers *= (double)p.batch[i];
    }
    const ptrdiff_t sizes[] = {p.num_batch, p.heads, p.key_heads, p.queries, p.keys, p.width, p.value_width};
    for (ptrdiff_t n : sizes)
        if (n < 1 || n >= LARGEST) return why.give(false, "an axis has length %td; expected 1 to 2^31 - 1", n);
    numbers *= (double)p.heads * (double)(p.queries > p.keys ? p.queries : p.keys) *
               (double)(p.width > p.value_width ? p.width : p.value_width);
    if (numbers > 0x1p62) return why.give(false, "an array of this shape does not fit in memory");
    return p.heads % p.key_heads == 0 || why.give(false, "%td heads do not share %td key heads", p.heads, p.key_heads);
}

// The arrays of a call of attention, or of its gradients, which reads out and lse; d_out and those up to SCALES are theirs.
// The last two come if keys and values are in int8.
constexpr int ARRAYS = 16, D_OUT = 9, SCALES = 14;
struct Arrays { Given given[ARRAYS]; };
inline Arrays arrays_of(Problem& p, bool forward, bool int8) {
    const Kind kind = p.kind, wide = kind == FLOAT64 ? FLOAT64 : FLOAT32, of_keys = int8 ? INT8 : kind;
    const ptrdiff_t width = padded(kind, p.width), value_width = padded(kind, p.value_width);
    return {{
        {"query", &p.query, {p.heads, p.queries, p.width}, {kind, kind}, false, false},
        {"key", &p.key, {p.key_heads, p.keys, p.width}, {of_keys, of_keys}, false, false},
        {"value", &p.value, {p.key_heads, p.keys, p.value_width}, {of_keys, of_keys}, false, false},
        {"out", &p.out, {p.heads, p.queries, p.value_width}, {kind, kind}, false, forward},
        {"lse", &p.lse, {p.heads, p.queries, 1}, {wide, wide}, forward, forward},
        {"sink", &p.sink, {p.heads, 1, 1}, {kind, wide}, true, false},
        {"mask", &p.mask, {p.heads, p.queries, p.keys}, {BYTE, BYTE}, true, false},
        {"bias", &p.bias, {p.heads, p.queries, p.keys}, {kind, wide}, true, false},
        {"distance", &p.distance, {p.heads, 1, p.queries + p.keys - 1}, {wide, wide}, true, false},
        {"d_out", &p.d_out, {p.heads, p.queries, p.value_width}, {kind, wide}, true, false},
        {"d_lse", &p.d_lse, {p.heads, p.queries, 1}, {wide, wide}, true, false},
        {"d_query", &p.d_query, {p.heads, p.queries, width}, {wide, wide}, true, true},
        {"d_key", &p.d_key, {p.key_heads, p.keys, width}, {wide, wide}, true, true},
        {"d_value", &p.d_value, {p.key_heads, p.keys, value_width}, {wide, wide}, true, true},
        {"key_scale", &p.key_scale, {p.key_heads, p.keys, 1}, {wide, wide}, true, false},
        {"value_scale", &p.value_scale, {p.key_heads, p.keys, 1}, {wide, wide}, true, false},
    }};
}

// Keep an array with axes (batch..., tail[0], tail[1], tail[2]), of which the first may be missing; axes of length 1 broadcast.
// An array that is written has every axis.
inline bool keep(const View& v, const Given& g, const Problem& p, Refusal& why) {
    Array* a = g.to;
    bool readable = v.ndim <= MOST_AXES && kind_of(v.format, v.size, &a->kind) && v.data;
    if (!readable || (a->kind != g.kinds[0] && a->kind != g.kinds[1]))
        return why.give(true, "%s has %td axes of format %s, which the plan does not expect", g.name, v.ndim, v.format);
    const ptrdiff_t expected = p.batch_axes + 3;
    if (v.ndim > expected || (g.written && v.ndim < expected))
        return why.give(false, "%s has %td axes; expected %s%td", g.name, v.ndim, g.written ? "" : "at most ", expected);
    a->data = v.data;
    for (ptrdiff_t i = 0; i < v.ndim; ++i) {
        ptrdiff_t axis = expected - v.ndim + i, in_tail = axis - p.batch_axes, size = v.shape[i];
        ptrdiff_t wanted = in_tail < 0 ? p.batch[axis] : g.tail[in_tail];
        if (size != wanted && (size != 1 || g.written))
            return why.give(false, "%s has an axis of length %td; expected %td", g.name, size, wanted);
        (in_tail < 0 ? a->batch[axis] : a->step[in_tail]) = size == 1 ? 0 : v.steps[i];
    }
    return true;
}

// Check that the map of a mask's tiles names no words that are missing, for tiles of so many queries and keys.
inline bool check_tiles(const Problem& p, ptrdiff_t queries, ptrdiff_t keys, ptrdiff_t count, Refusal& why) {
    if (p.num_sequences) return why.give(false, "tiles are not combined with sequences");
    const char* last = nullptr;
    for (ptrdiff_t b = 0; b < p.num_batch; ++b)
        for (ptrdiff_t h = 0; h < p.heads; ++h) {
            const char* first = p.tiles.data + batch_offset(p, p.tiles, b) + h * p.tiles.step[0];
            for (ptrdiff_t i = 0; first != last && i < queries * keys; ++i) {
                int32_t at = *(const int32_t*)(first + i / keys * p.tiles.step[1] + i % keys * p.tiles.step[2]);
                if (at < 0 || at - 2 >= count) return why.give(false, "tiles: %d is not among %td words", at - 2, count);
            }
            last = first;
        }
    return true;
}

// Check that what sequences index lies inside the arrays.
inline bool check_sequences(const Problem& p, Refusal& why) {
    for (ptrdiff_t i = 0; i < p.num_sequences; ++i) {
        Sequence s = p.sequences[i];
        if (s.query_start < 0 || s.queries < 1 || s.queries > p.queries - s.query_start || s.key_start < 0 || s.keys < 0 ||
            s.keys > p.keys - s.key_start)
            return why.give(false, "sequence %td lies outside of the arrays", i);
    }
    return true;
}

}  // namespace mha
