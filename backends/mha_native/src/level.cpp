// The functions of one level of processor: this file is compiled once for each.
#include "few.h"
#include "gradient.h"
#include "lines.h"
#include "tile.h"

namespace mha { namespace MHA_LEVEL {

template <class T> void compute_as(const Problem& p, const Unit& u, const Unit* next, char* scratch) {
    if (u.rows <= Few<T>::MOST && (u.rows == 1 || u.key_end - u.key_begin >= Few<T>::BLOCK))
        return Few<T>(p, u, scratch).compute();
    if constexpr (HAS_PAIRS && sizeof(T) == 4)
        if (p.kind == BFLOAT16) return Tile<T, 2>(p, u, next, scratch).compute();
    Tile<T, 1>(p, u, next, scratch).compute();
}

template <class T> void merge_as(const Problem& p, const Unit& u, const char* partials, ptrdiff_t parts, ptrdiff_t stride) {
    Row rows[ROWS<T>];
    T sinks[ROWS<T>];
    merge_parts<T>(p, u, partials, parts, stride, rows, sinks);
}

static void compute(const Problem& p, const Unit& u, const Unit* next, char* scratch) {
    p.kind == FLOAT64 ? compute_as<double>(p, u, next, scratch) : compute_as<float>(p, u, next, scratch);
}

static void merge(const Problem& p, const Unit& u, const char* partials, ptrdiff_t parts, ptrdiff_t stride) {
    p.kind == FLOAT64 ? merge_as<double>(p, u, partials, parts, stride) : merge_as<float>(p, u, partials, parts, stride);
}

template <class T> size_t larger_scratch(const Problem& p) {
    size_t few = Few<T>::scratch_size(p), tile = Tile<T, 1>::scratch_size(p);
    return few > tile ? few : tile;
}

static size_t scratch_size(const Problem& p) {
    return p.kind == FLOAT64 ? larger_scratch<double>(p) : larger_scratch<float>(p);
}

static size_t gradient_scratch_size(const Problem& p) {
    return p.kind == FLOAT64 ? Gradient<double>::scratch_size(p) : Gradient<float>::scratch_size(p);
}

static void add_gradients(const Problem& p, const Unit& u, char* scratch) {
    p.kind == FLOAT64 ? Gradient<double>(p, u, scratch).compute() : Gradient<float>(p, u, scratch).compute();
}

static void sum_gradients(const Problem& p, const Unit& u, const char* partials, ptrdiff_t parts, ptrdiff_t stride) {
    p.kind == FLOAT64 ? sum_parts<double>(p, u, partials, parts, stride) : sum_parts<float>(p, u, partials, parts, stride);
}

static void exponentials(const float* x, float* y, ptrdiff_t n) {
    for (ptrdiff_t i = 0; i + LANES<float> <= n; i += LANES<float>) store(y + i, MHA_LEVEL::exp2<float>(load(x + i)));
}

#define NAMED(x) #x
#define NAME(x) NAMED(x)
extern const Level level;
const Level level = {NAME(MHA_LEVEL), {LANES<float>, LANES<double>}, {ROWS<float>, ROWS<double>},
                     scratch_size, compute, merge, gradient_scratch_size, add_gradients, sum_gradients,
                     exponentials, compute_lines};

}}  // namespace mha::MHA_LEVEL
