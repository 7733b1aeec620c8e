// Linear maps of int8 weights on several threads: blocks of rows and, where rows are few, of columns. A result is computed in
// the same way in any block, so the bits do not depend on the number of threads.
#include "attend.h"
#include "pool.h"

namespace mha {
namespace {

constexpr ptrdiff_t ROWS = 96;           // in a block, a multiple of the rows of a tile
constexpr ptrdiff_t UNITS = 4;           // for each thread, at least, so that no thread waits long for another
constexpr double SERIAL = 1 << 20;       // products, below which waking other threads takes longer

struct Blocks {
    const Int8Map& m;
    ptrdiff_t row_blocks, columns;  // columns: in a block
};

void compute(void* context, ptrdiff_t index, ptrdiff_t, char* scratch) {
    const Blocks& blocks = *(const Blocks*)context;
    const Int8Map& m = blocks.m;
    ptrdiff_t row = index % blocks.row_blocks * ROWS, column = index / blocks.row_blocks * blocks.columns;
    ptrdiff_t end = row + ROWS < m.rows ? row + ROWS : m.rows;
    ptrdiff_t end_column = column + blocks.columns < m.w->outputs ? column + blocks.columns : m.w->outputs;
    m.w->level->int8.block(m, row, end, column, end_column, scratch);
}

ptrdiff_t divide_up(ptrdiff_t a, ptrdiff_t b) { return (a + b - 1) / b; }

}  // namespace

bool linear_int8(const Int8Map& m, int threads, void* team) {
    if ((double)m.rows * m.w->inputs * m.w->outputs < SERIAL) threads = 1;
    Blocks blocks = {m, divide_up(m.rows, ROWS), 0};
    ptrdiff_t panels = divide_up(m.w->outputs, m.w->level->int8.columns);
    ptrdiff_t cuts = threads == 1 ? 1 : divide_up(UNITS * threads, blocks.row_blocks);
    blocks.columns = divide_up(panels, cuts < panels ? cuts : panels) * m.w->level->int8.columns;
    ptrdiff_t count = blocks.row_blocks * divide_up(m.w->outputs, blocks.columns);
    const size_t scratch = m.w->level->int8.scratch(m.w->inputs, m.rows < ROWS ? m.rows : ROWS);
    return run({compute, &blocks, count, 1, scratch}, threads, (Team)team);
}

}  // namespace mha
