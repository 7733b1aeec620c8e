// Linear maps of int8 weights, as the binding fills and every level of processor reads them.
#pragma once
#include <stddef.h>
#include <stdint.h>

namespace mha {

struct Level;

// The weight of a linear map in int8, in the order in which one level of processor reads it.
struct Int8Weight {
    const Level* level;
    ptrdiff_t inputs, outputs;
    char* panels;
    float* scale;                // of each column, and zeros up to a whole panel
};

// y = x w + b of some rows, (rows, inputs) -> (rows, outputs). Steps are in numbers.
struct Int8Map {
    const Int8Weight* w;
    const float *x, *b;          // b may be null
    float* y;
    ptrdiff_t x_step, y_step, rows;
};

struct Int8Functions {
    ptrdiff_t columns;           // in a panel
    size_t (*bytes)(ptrdiff_t inputs, ptrdiff_t outputs);  // of all panels
    void (*pack)(const int8_t* values, ptrdiff_t inputs, ptrdiff_t outputs, char* panels);
    size_t (*scratch)(ptrdiff_t inputs, ptrdiff_t rows);
    void (*block)(const Int8Map&, ptrdiff_t first, ptrdiff_t end, ptrdiff_t column, ptrdiff_t end_column, char* scratch);
};

// Write y of a linear map of int8 weights. Returns false if memory ran out.
bool linear_int8(const Int8Map& m, int threads, void* team);

}  // namespace mha
