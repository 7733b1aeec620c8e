// Linear maps of int8 weights by the tiles of AMX. One product multiplies 16 rows of x by 16 columns of the weight, over the
// inputs of a group: lines of 64 signed bytes by 16 lines of words, as they lie in a panel. Behind the last input x is 0, so
// what the weight's lines hold there adds nothing; lines of x behind the last row are computed and not stored.
#pragma once
#include "amx.h"
#include "int8_rounded.h"

namespace mha { namespace MHA_LEVEL {

#if defined(__AMX_INT8__)
// sums = the integers of x times the weights of column vector c, in group ``at``. Numbers of tiles are part of instructions.
#define MHA_MULTIPLY(sum, of_x, of_w, at)                                                           \
    _tile_zero(sum);                                                                                \
    _tile_loadd(of_x, x.integers + (at) * INPUTS, x.step);                                          \
    _tile_loadd(of_w, panel + (at) * (INPUTS / GROUP) * PANEL * BYTES + c * BYTES, PANEL * BYTES);  \
    _tile_dpbsud(sum, of_x, of_w);                                                                  \
    _tile_stored(sum, sums[sum], BYTES)

constexpr ptrdiff_t FEWEST = 6;  // rows, below which the products of vectors are fewer instructions

// Compute some rows, LINES at most, of a panel's columns; return how many.
static ptrdiff_t int8_lines(const Int8Map& m, const RoundedRows& x, ptrdiff_t rows, ptrdiff_t column, float* y) {
    const ptrdiff_t num_groups = groups(m.w->inputs);
    const char* panel = m.w->panels + column / COLUMNS * words(m.w->inputs) * PANEL * BYTES;
    Sums sums[2][LINES];
    for (ptrdiff_t c = 0; c < PANEL; ++c) {
        Vec<float> totals[LINES] = {};
        auto add = [&](ptrdiff_t group) __attribute__((always_inline)) {
            const Scaled* scaled = x.groups + group;
            unroll<LINES>([&](auto r) __attribute__((always_inline)) {
                const Scaled* of = scaled + r * num_groups;
                const Sums exact = sums[group % 2][r] - of->added;
                totals[r] += __builtin_convertvector(exact, Vec<float>) * broadcast(of->scale);
            });
        };
        for (ptrdiff_t group = 0; group < num_groups; group += 2) {
            write_memory();
            MHA_MULTIPLY(0, 2, 3, group);
            if (group + 1 < num_groups) { MHA_MULTIPLY(1, 4, 5, group + 1); }
            write_memory();
            add(group);
            if (group + 1 < num_groups) add(group + 1);
        }
        unroll<LINES>([&](auto r) __attribute__((always_inline)) {
            if (r < rows) finish(m, totals[r], column + c * LANES<float>, y + r * m.y_step);
        });
    }
    return rows;
}
#undef MHA_MULTIPLY

struct Configured {
    Configured() { _tile_loadconfig(PALETTE); }
    ~Configured() { _tile_release(); }
};
#else
struct Configured {};
#endif

}}  // namespace mha::MHA_LEVEL
