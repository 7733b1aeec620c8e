// The units of a problem, depending on its shapes only, and the threads that compute them.
#include "attend.h"

#include <stdlib.h>
#include <string.h>

#include "pool.h"

namespace mha {
namespace {

constexpr double SERIAL = 1 << 20;      // multiplications, about 20 microseconds, that are not worth waking another thread
constexpr ptrdiff_t PART = 512;         // keys in a part, at least
constexpr ptrdiff_t ENOUGH = 32;        // units: where there are fewer, keys are cut into parts
constexpr ptrdiff_t ENOUGH_HEADS = 16;  // likewise for gradients, of which a head's units are computed by one thread

ptrdiff_t divide_up(ptrdiff_t n, ptrdiff_t by) { return (n + by - 1) / by; }
ptrdiff_t least(ptrdiff_t a, ptrdiff_t b) { return a < b ? a : b; }
ptrdiff_t most(ptrdiff_t a, ptrdiff_t b) { return a > b ? a : b; }

// The cuts of a problem. They depend on shapes only, so that every call returns the same bits, for any number of threads.
struct Plan {
    const Problem& p;
    const Level& level;
    ptrdiff_t tile, lanes, group;
    ptrdiff_t parts = 1;
    bool aligned = false;           // whether a part has the same keys in all units of a head, not a share of those they see
    ptrdiff_t* ends = nullptr;      // for each sequence, the number of units for a key head up to its end
    ptrdiff_t one[1];
    ptrdiff_t units;                // of all batch elements and heads, without parts
    ptrdiff_t longest = 0;          // number of keys of a sequence
    char* partials = nullptr;
    ptrdiff_t stride = 0;           // bytes from the state of one part of a unit to the next

    Plan(const Problem& problem, const Level& its_level) : p(problem), level(its_level) {
        tile = level.tile_rows[tile_kind(p)], lanes = level.lanes[p.kind == FLOAT64], group = p.heads / p.key_heads;
    }
    ~Plan() {
        if (ends != one) free(ends);
        free(partials);
    }

    // Count the units. Returns false if memory ran out.
    bool count_units() {
        ptrdiff_t count = p.sequences ? p.num_sequences : 1, total = 0;
        ends = p.sequences ? (ptrdiff_t*)malloc(count * sizeof(ptrdiff_t)) : one;
        if (!ends) return false;
        for (ptrdiff_t i = 0; i < count; ++i) {
            Sequence s = sequence(i);
            longest = most(longest, s.keys);
            ends[i] = total += chunks(s);
        }
        units = total * p.num_batch * p.key_heads;
        return true;
    }

    // Cut keys into at most ``many`` parts, for each of which a row of a unit needs so many numbers. Likewise.
    bool cut_keys(ptrdiff_t many, ptrdiff_t numbers) {
        parts = most(1, least(divide_up(longest, PART), many));
        stride = tile * numbers * (p.kind == FLOAT64 ? 8 : 4);
        return parts == 1 || (partials = (char*)malloc(units * parts * stride));
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
        ptrdiff_t origin = aligned ? 0 : begin, size = part_of(aligned ? p.keys : end - begin);
        u.key_begin = least(end, most(begin, origin + part * size));
        u.key_end = most(u.key_begin, least(end, origin + (part + 1) * size));
        if (partials) u.partial = partials + (index * parts + part) * stride;
        return u;
    }

    ptrdiff_t part_of(ptrdiff_t keys) const { return divide_up(divide_up(keys, parts), 64) * 64; }
    ptrdiff_t of_head() const { return units / (p.num_batch * p.key_heads); }
};

void compute(void* context, ptrdiff_t index, ptrdiff_t next, char* scratch) {
    const Plan& plan = *(const Plan*)context;
    Unit unit = plan.unit(index / plan.parts, index % plan.parts), then;
    if (next >= 0) then = plan.unit(next / plan.parts, next % plan.parts);
    plan.level.of(plan.p).compute(plan.p, unit, next < 0 ? nullptr : &then, scratch);
}

void merge(void* context, ptrdiff_t index, ptrdiff_t, char*) {
    const Plan& plan = *(const Plan*)context;
    const char* partials = plan.partials + index * plan.parts * plan.stride;
    plan.level.of(plan.p).merge(plan.p, plan.unit(index, 0), partials, plan.parts, plan.stride);
}

void clear(const Problem& p, const Array& a, ptrdiff_t head, ptrdiff_t begin, ptrdiff_t end, ptrdiff_t width) {
    if (!a.data) return;
    char* first = a.data + batch_offset(p, a, head / p.key_heads) + head % p.key_heads * a.step[0];
    size_t bytes = padded(p.kind, width) * (p.kind == FLOAT64 ? 8 : 4);
    for (ptrdiff_t i = begin; i < end; ++i) memset(first + i * a.step[1], 0, bytes);
}

// Gradients of some keys of a key head: all units that see them add to these, one after another.
void add_to_keys(void* context, ptrdiff_t index, ptrdiff_t, char* scratch) {
    const Plan& plan = *(const Plan*)context;
    const Problem& p = plan.p;
    ptrdiff_t count = plan.of_head(), head = index / plan.parts, first = head * count;
    ptrdiff_t size = plan.part_of(p.keys), begin = index % plan.parts * size, end = least(p.keys, begin + size);
    clear(p, p.d_key, head, begin, end, p.width);
    clear(p, p.d_value, head, begin, end, p.value_width);
    for (ptrdiff_t i = first; i < first + count; ++i)
        plan.level.of(p).add_gradients(p, plan.unit(i, index % plan.parts), scratch);
}

void sum_gradients(void* context, ptrdiff_t index, ptrdiff_t, char*) {
    const Plan& plan = *(const Plan*)context;
    const char* partials = plan.partials + index * plan.parts * plan.stride;
    plan.level.of(plan.p).sum_gradients(plan.p, plan.unit(index, 0), partials, plan.parts, plan.stride);
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
    // a band keeps the keys of a unit few, or the units are many
    if (!plan.count_units() || !plan.cut_keys(p.has_band ? 0 : divide_up(ENOUGH, plan.units), p.value_width + 2)) return false;
    int threads = is_worth_threads(p) ? p.num_threads : 1;
    Job job = {compute, &plan, plan.units * plan.parts, plan.of_head(), level.of(p).scratch_size(p)};
    if (!run(job, threads, (Team)p.team)) return false;
    return plan.parts == 1 || run({merge, &plan, plan.units, 1, 64}, threads, (Team)p.team);
}

bool attend_vjp(const Problem& p, const Level& level) {
    Plan plan(p, level);
    ptrdiff_t heads = p.num_batch * p.key_heads;
    plan.aligned = true, plan.tile = level.tile_rows[p.kind == FLOAT64];
    if (!plan.count_units() || !plan.cut_keys(p.sequences ? 0 : divide_up(ENOUGH_HEADS, heads), p.width + 64)) return false;
    int threads = is_worth_threads(p) ? p.num_threads : 1;
    Job job = {add_to_keys, &plan, heads * plan.parts, 1, level.of(p).gradient_scratch_size(p)};
    if (!run(job, threads, (Team)p.team)) return false;
    bool summed = plan.parts > 1 && p.d_query.data;
    return !summed || run({sum_gradients, &plan, plan.units, 1, 64}, threads, (Team)p.team);
}

}  // namespace mha
