// The units of a problem, depending on its shapes only, and the threads that compute them.
#include "attend.h"

#include <stdlib.h>

#include "pool.h"

namespace mha {
namespace {

constexpr double SERIAL = 1 << 20;      // multiplications, about 20 microseconds, that are not worth waking another thread
constexpr ptrdiff_t PART = 512;         // keys in a part, at least
constexpr ptrdiff_t ENOUGH = 32;        // units: where there are fewer, keys are cut into parts

ptrdiff_t divide_up(ptrdiff_t n, ptrdiff_t by) { return (n + by - 1) / by; }
ptrdiff_t least(ptrdiff_t a, ptrdiff_t b) { return a < b ? a : b; }
ptrdiff_t most(ptrdiff_t a, ptrdiff_t b) { return a > b ? a : b; }

// How a problem is cut. It depends on shapes only, so that every call returns the same bits, for any number of threads.
struct Plan {
    const Problem& p;
    const Level& level;
    ptrdiff_t tile, lanes, group;
    ptrdiff_t parts = 1;
    ptrdiff_t* ends = nullptr;      // for each sequence, the number of units for a key head up to its end
    ptrdiff_t one[1];
    ptrdiff_t units;                // of all batch elements and heads, without parts
    char* partials = nullptr;
    ptrdiff_t stride = 0;           // bytes from the state of one part of a unit to the next

    Plan(const Problem& problem, const Level& its_level) : p(problem), level(its_level) {
        int wide = p.kind == FLOAT64;
        tile = level.tile_rows[wide], lanes = level.lanes[wide], group = p.heads / p.key_heads;
    }
    ~Plan() {
        if (ends != one) free(ends);
        free(partials);
    }

    bool cut() {
        ptrdiff_t count = p.sequences ? p.num_sequences : 1, longest = 0, total = 0;
        ends = p.sequences ? (ptrdiff_t*)malloc(count * sizeof(ptrdiff_t)) : one;
        if (!ends) return false;
        for (ptrdiff_t i = 0; i < count; ++i) {
            Sequence s = sequence(i);
            longest = most(longest, s.keys);
            ends[i] = total += chunks(s);
        }
        units = total * p.num_batch * p.key_heads;
        if (!units || p.has_band) return true;  // a band keeps the keys of a unit few, or the units are many
        parts = most(1, least(divide_up(longest, PART), divide_up(ENOUGH, units)));
        if (parts == 1) return true;
        stride = tile * (p.value_width + 2) * (p.kind == FLOAT64 ? 8 : 4);
        partials = (char*)malloc(units * parts * stride);
        return partials != nullptr;
    }

    Sequence sequence(ptrdiff_t i) const { return p.sequences ? p.sequences[i] : Sequence{0, p.queries, 0, p.keys}; }

    // Rows of one head form tiles; if they fill no vector, those of all heads that read one key head do together.
    bool by_head(Sequence s) const { return group == 1 || s.queries >= lanes; }
    ptrdiff_t chunks(Sequence s) const {
        return by_head(s) ? group * divide_up(s.queries, tile) : divide_up(group * s.queries, tile);
    }

    Unit unit(ptrdiff_t index, ptrdiff_t part) const {
        ptrdiff_t count = p.sequences ? p.num_sequences : 1, of_head = ends[count - 1];
        ptrdiff_t head = index / of_head, at = index % of_head, low = 0, high = count - 1;
        while (low < high) {
            ptrdiff_t middle = (low + high) / 2;
            if (ends[middle] > at)
                high = middle;
            else
                low = middle + 1;
        }
        Sequence s = sequence(low);
        at -= low ? ends[low - 1] : 0;
        Unit u = {head / p.key_heads, head % p.key_heads, low, 0, 0, 0, 0, part == 0 && p.sink.data, nullptr};
        ptrdiff_t from = 0, to = s.queries;  // positions of the rows
        if (by_head(s)) {
            ptrdiff_t tiles = divide_up(s.queries, tile);
            from = (tiles - 1 - at % tiles) * tile;  // the last queries first: with a causal mask they take longest
            to = least(from + tile, s.queries);
            u.first = at / tiles * s.queries + from, u.rows = to - from;
        } else {
            u.first = at * tile, u.rows = least(tile, group * s.queries - u.first);
        }
        ptrdiff_t keys = p.lengths ? most(0, least(p.lengths[u.batch], s.keys)) : s.keys;
        ptrdiff_t begin = p.has_band ? most(0, from + p.low) : 0;
        ptrdiff_t end = p.has_band ? least(keys, to + p.high) : keys;
        end = most(begin, end);
        ptrdiff_t size = divide_up(divide_up(end - begin, parts), 64) * 64;
        u.key_begin = least(end, begin + part * size), u.key_end = least(end, u.key_begin + size);
        if (partials) u.partial = partials + (index * parts + part) * stride;
        return u;
    }

};

void compute(void* context, ptrdiff_t index, ptrdiff_t next, char* scratch) {
    const Plan& plan = *(const Plan*)context;
    Unit unit = plan.unit(index / plan.parts, index % plan.parts), then;
    if (next >= 0) then = plan.unit(next / plan.parts, next % plan.parts);
    plan.level.compute(plan.p, unit, next < 0 ? nullptr : &then, scratch);
}

void merge(void* context, ptrdiff_t index, ptrdiff_t, char*) {
    const Plan& plan = *(const Plan*)context;
    plan.level.merge(plan.p, plan.unit(index, 0), plan.partials + index * plan.parts * plan.stride, plan.parts, plan.stride);
}

}  // namespace

bool is_worth_threads(const Problem& p) {
    double pairs = p.sequences ? 0 : (double)p.queries * p.keys;
    for (ptrdiff_t i = 0; i < p.num_sequences; ++i) pairs += (double)p.sequences[i].queries * p.sequences[i].keys;
    double rows = 4.0 * (p.queries + p.keys);  // reading a row and writing a result cost about as much as four pairs
    return (pairs + rows) * p.num_batch * p.heads * (p.width + p.value_width) >= SERIAL;
}

bool attend(const Problem& p, const Level& level) {
    Plan plan(p, level);
    if (!plan.cut()) return false;
    int threads = is_worth_threads(p) ? p.num_threads : 1;
    ptrdiff_t of_head = plan.units / (p.num_batch * p.key_heads);
    if (!run({compute, &plan, plan.units * plan.parts, of_head, level.scratch_size(p)}, threads, (Team)p.team)) return false;
    return plan.parts == 1 || run({merge, &plan, plan.units, 1, 64}, threads, (Team)p.team);
}

}  // namespace mha
