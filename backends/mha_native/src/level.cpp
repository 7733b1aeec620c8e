// The functions of one level of processor: this file is compiled once for each.
#include "amx.h"
#include "few.h"
#include "few_rows.h"
#include "gradient.h"
#include "int8.h"
#include "lines.h"

namespace mha { namespace MHA_LEVEL {

template <class T> void compute(const Problem& p, const Unit& u, const Unit* next, char* scratch) {
    if (u.rows <= Few<T>::MOST && (u.rows == 1 || u.key_end - u.key_begin >= Few<T>::BLOCK))
        return Few<T>(p, u, scratch).compute();
    if (tile_kind(p) == BFLOAT16) return Halves(p, u, next, scratch).compute();
    Tile<T, 1>(p, u, next, scratch).compute();
}

template <class T> size_t scratch_size(const Problem& p) {
    size_t few = Few<T>::scratch_size(p);
    size_t tile = tile_kind(p) == BFLOAT16 ? Halves::scratch_size(p) : Tile<T, 1>::scratch_size(p);
    return few > tile ? few : tile;
}

template <class T> void add_gradients(const Problem& p, const Unit& u, char* scratch) {
    Gradient<T>(p, u, scratch).compute();
}

static void exponentials(const float* x, float* y, ptrdiff_t n) {
    for (ptrdiff_t i = 0; i + LANES<float> <= n; i += LANES<float>) store(y + i, MHA_LEVEL::exp2<float>(load(x + i)));
}

template <class T> constexpr Functions FUNCTIONS = {scratch_size<T>, compute<T>, merge_parts<T, Halves::MOST>,
                                                    Gradient<T>::scratch_size, add_gradients<T>, sum_parts<T>};

#define NAMED(x) #x
#define NAME(x) NAMED(x)
extern const Level level;
const Level level = {NAME(MHA_LEVEL), {LANES<float>, LANES<double>}, {ROWS<float>, ROWS<double>, ROWS<float>, Halves::MOST},
                     {FUNCTIONS<float>, FUNCTIONS<double>}, exponentials, compute_lines,
                     {COLUMNS, int8_bytes, int8_pack, int8_scratch, int8_block}, {few_rows_scratch, few_rows_block}};

}}  // namespace mha::MHA_LEVEL
