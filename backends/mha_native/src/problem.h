// The record of one call, which the binding fills and every level of processor reads.
#pragma once
#include <stddef.h>
#include <stdint.h>

#include "few_rows_map.h"
#include "int8_map.h"

namespace mha {

constexpr int MAX_BATCH_AXES = 8;
constexpr int TILE = 64;  // queries, and keys, of a tile of a mask

enum Kind { FLOAT32, FLOAT64, FLOAT16, BFLOAT16, BYTE, INTEGER, INT8 };
inline ptrdiff_t size_of(Kind kind) { return kind == FLOAT32 ? 4 : kind == FLOAT64 ? 8 : kind == INT8 ? 1 : 2; }

// An array in memory. Its steps are in bytes, 0 along axes that it broadcasts over.
struct Array {
    char* data = nullptr;
    Kind kind = FLOAT32;
    ptrdiff_t batch[MAX_BATCH_AXES] = {};
    ptrdiff_t step[3] = {};  // heads, then the last two axes
};

// Rows of gradients are padded to a multiple of 64 bytes; this is how many numbers they have.
inline ptrdiff_t padded(Kind kind, ptrdiff_t n) {
    ptrdiff_t line = kind == FLOAT64 ? 8 : 16;
    return (n + line - 1) / line * line;
}

// Some rows of the queries, and the keys that they attend to.
struct Sequence {
    ptrdiff_t query_start, queries, key_start, keys;
};

// Attention of B batch elements (all batch axes together), H query heads, K key heads, L queries and S keys.
struct Problem {
    Kind kind;
    int batch_axes;
    ptrdiff_t batch[MAX_BATCH_AXES];
    ptrdiff_t num_batch, heads, key_heads, queries, keys, width, value_width;
    double scale;
    double softcap;       // 0: none
    int64_t low, high;    // low <= key - query <= high, in a sequence's own indices
    bool has_band;
    bool natural;         // something is added to the scores, which are therefore kept in base e; else in base 2
    int num_threads;
    void* team;           // a Team of pool.h, or null
    Array query, key, value;   // (B, H, L, D), (B, K, S, D), (B, K, S, E)
    Array key_scale, value_scale;  // (B, K, S, 1): what rows of keys and values in int8 are multiplied by; else without data
    Array out, lse;            // (B, H, L, E); (B, H, L, 1), without data if it is not wanted
    Array d_out, d_lse;        // gradients of these, for a call that computes gradients; without data: zeros
    Array d_query, d_key, d_value;  // results, in the dtype of lse, with padded rows; null: not wanted
    Array sink;                // (B, H, 1, 1); without data if there is none
    Array mask;                // (B, H, L, S) bytes, 0: hidden
    Array tiles;               // (B, H, tiles of queries, tiles of keys), as tile_map.h reads them
    const uint64_t* words;     // TILE for each tile of which some pairs attend: a bit for each key that a query sees
    Array bias;                // (B, H, L, S)
    Array distance;            // (B, H, 1, L + S - 1): a bias by query - key + S - 1
    const int64_t* lengths;    // (B): the number of keys of each batch element, or null
    const Sequence* sequences; // or null: one sequence of all queries and keys
    ptrdiff_t num_sequences;
};

// The kind whose tiles compute a problem: pairs of bfloat16 numbers do not hold keys in int8.
inline Kind tile_kind(const Problem& p) { return p.kind == BFLOAT16 && p.key.kind == INT8 ? FLOAT32 : p.kind; }

inline ptrdiff_t batch_offset(const Problem& p, const Array& a, ptrdiff_t batch) {
    ptrdiff_t offset = 0;
    for (int axis = p.batch_axes - 1; axis >= 0; --axis) {
        offset += batch % p.batch[axis] * a.batch[axis];
        batch /= p.batch[axis];
    }
    return offset;
}

// Some query rows of the heads that read one key head, and some of the keys: what one thread computes at a time.
struct Unit {
    ptrdiff_t batch, key_head, sequence;
    ptrdiff_t first, rows;       // rows of all heads of the group laid end to end: head * queries + query
    ptrdiff_t key_begin, key_end;
    bool has_sink;               // whether the state holds the sink: that of one part of the keys does
    char* partial;               // where to write the state of these keys; null: write out and lse
};

// A function of each of some rows of numbers. Steps are in numbers.
enum What { GELU, GELU_VJP, LAYER_NORM, RMS_NORM };
struct Lines {
    What what;
    const float *x, *a, *bias;   // a: what is added before GELU, d_out, or a weight; a and bias may be null
    float* y;                    // may be x
    ptrdiff_t x_step, a_step, y_step, rows, width;
    float eps;
};

// Computes a unit; scratch has scratch_size(problem) bytes. ``next``: what the thread computes then, or null.
struct Functions {
    size_t (*scratch_size)(const Problem&);
    void (*compute)(const Problem&, const Unit&, const Unit* next, char* scratch);
    void (*merge)(const Problem&, const Unit&, const char* partials, ptrdiff_t parts, ptrdiff_t stride);
    size_t (*gradient_scratch_size)(const Problem&);
    void (*add_gradients)(const Problem&, const Unit&, char* scratch);  // to d_key, d_value; d_query is written
    void (*sum_gradients)(const Problem&, const Unit&, const char* partials, ptrdiff_t parts, ptrdiff_t stride);  // d_query
};

struct Level {
    const char* name;
    int lanes[2];                // numbers in a vector: float, double
    int tile_rows[4];            // rows of a unit, at most, by kind
    Functions functions[2];      // likewise
    void (*exponentials)(const float* x, float* y, ptrdiff_t n);  // 2^x, for tests
    void (*lines)(const Lines&);
    Int8Functions int8;
    FewRowsFunctions few_rows;

    const Functions& of(const Problem& p) const { return functions[p.kind == FLOAT64]; }
};

}  // namespace mha
