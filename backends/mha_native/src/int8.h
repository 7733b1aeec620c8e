// Linear maps of int8 weights: groups of inputs are rounded to integers, whose products with the weights add up exactly.
#pragma once
#include "int8_amx.h"

namespace mha { namespace MHA_LEVEL {

template <int R> inline void int8_tile(const Int8Map& m, const RoundedRows& x, ptrdiff_t column, float* y) {
    const ptrdiff_t count = words(m.w->inputs), num_groups = groups(m.w->inputs);
    const char *panel = m.w->panels + column / COLUMNS * count * PANEL * BYTES, *from = x.integers;
    Vec<float> totals[R][PANEL] = {};
    for (ptrdiff_t group = 0, k = 0; group < num_groups; ++group) {
        const Scaled* scaled = x.groups + group;
        Sums sums[R][PANEL];
        unroll<R>([&](auto r) __attribute__((always_inline)) {
            unroll<PANEL>([&](auto c) __attribute__((always_inline)) {
                sums[r][c] = Sums{} - scaled[r * num_groups].added;
            });
        });
        const ptrdiff_t end = k + INPUTS / GROUP < count ? k + INPUTS / GROUP : count;
        for (; k < end; ++k, panel += PANEL * BYTES, from += 4) {
            Sums w[PANEL];
            unroll<PANEL>([&](auto c) __attribute__((always_inline)) { memcpy(&w[c], panel + c * BYTES, BYTES); });
            unroll<R>([&](auto r) __attribute__((always_inline)) {
                int32_t word;
                memcpy(&word, from + r * x.step, sizeof word);
                const Sums all = Sums{} + word;
                unroll<PANEL>([&](auto c) __attribute__((always_inline)) {
                    sums[r][c] = add_products(sums[r][c], w[c], all);
                });
            });
        }
        unroll<R>([&](auto r) __attribute__((always_inline)) {
            const Vec<float> scale = broadcast(scaled[r * num_groups].scale);
            unroll<PANEL>([&](auto c) __attribute__((always_inline)) {
                totals[r][c] += __builtin_convertvector(sums[r][c], Vec<float>) * scale;
            });
        });
    }
    unroll<R>([&](auto r) __attribute__((always_inline)) {
        unroll<PANEL>([&](auto c) __attribute__((always_inline)) {
            finish(m, totals[r][c], column + c * LANES<float>, y + r * m.y_step);
        });
    });
}

// Compute some rows of a panel's columns; return how many.
static ptrdiff_t int8_rows(const Int8Map& m, const RoundedRows& x, ptrdiff_t rows, ptrdiff_t column, float* y) {
#if defined(__AMX_INT8__)
    if (rows >= FEWEST) return int8_lines(m, x, rows < LINES ? rows : LINES, column, y);
#endif
    unroll<TILE>([&](auto r) __attribute__((always_inline)) {
        if (rows == r + 1 || (r + 1 == TILE && rows > TILE)) int8_tile<r + 1>(m, x, column, y);
    });
    return rows < TILE ? rows : TILE;
}

// Compute rows first ... end of the columns column ... end_column, the first of which begins a panel.
static void int8_block(const Int8Map& m, ptrdiff_t first, ptrdiff_t end, ptrdiff_t column, ptrdiff_t end_column,
                       char* scratch) {
    const ptrdiff_t n = m.w->inputs, step = rounded_bytes(n), rows = end - first, num_groups = groups(n);
    [[maybe_unused]] const Configured tiles;  // of AMX; of nobody between two calls
    Scaled* scaled = (Scaled*)(scratch + (rows + LINES - 1) * step);
    for (ptrdiff_t i = 0; i < rows; ++i)
        for (ptrdiff_t group = 0; group < num_groups; ++group) {
            const ptrdiff_t at = group * INPUTS;
            scaled[i * num_groups + group] = round_group(m.x + (first + i) * m.x_step + at, n - at < INPUTS ? n - at : INPUTS,
                                                         (Rounded*)(scratch + i * step) + at);
        }
    for (; column < end_column; column += COLUMNS)
        for (ptrdiff_t i = 0; i < rows;) {
            const RoundedRows x = {scratch + i * step, scaled + i * num_groups, step};
            i += int8_rows(m, x, rows - i, column, m.y + (first + i) * m.y_step);
        }
}

}}  // namespace mha::MHA_LEVEL
