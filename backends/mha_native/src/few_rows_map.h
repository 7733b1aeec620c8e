// Linear maps of few rows, as the binding fills and every level of processor reads them.
#pragma once
#include <stddef.h>

namespace mha {

// y = x w + b, (rows, inputs) -> (rows, outputs), of float32 or bfloat16. Steps are in bytes; rows of x, b and y have no gaps.
struct FewRowsMap {
    bool half;                   // bfloat16
    bool by_output;              // what an output is multiplied by lies together, as in files; else what an input is
    const char *x, *w, *b;       // b may be null
    char* y;
    ptrdiff_t rows, inputs, outputs, x_step, w_step, y_step;
};

struct FewRowsFunctions {
    size_t (*scratch)(const FewRowsMap&);
    void (*block)(const FewRowsMap&, ptrdiff_t first, ptrdiff_t end, char* scratch);  // some outputs of all rows
};

// Write y. Returns false if memory ran out.
bool linear_few_rows(const FewRowsMap& m, int threads, void* team);

}  // namespace mha
