// Gradients of attention from its state, with scores and weights in registers only (Dao 2023, FlashAttention-2, algorithm 2).
// Two passes compute the weights again, so that every sum has one owner and a fixed order: no atomic additions. In one pass a
// thread block owns queries and steps through keys; in the other it owns keys and steps through the queries of all their heads:
//
//     w = e^(s - lse)        ds = w (do . v - delta)        dq = scale ds c k        dk = scale ds c q        dv = w do
//
// Defined by compiler options: OF_KEYS (the pass); DTYPE (float16 or bfloat16); OUT (DTYPE or float); BIAS; DIM of queries and
// keys and VALUE_DIM, padded with zeros to multiples of 16; PACK, the COUNT of Tile::copy_from; WARPS, each with 16 of the owned
// rows; OTHERS in a step, a multiple of 16; PLAIN, 1 if there is no softcap, mask, bias or slope, else 0.

#include "tiles.cuh"

constexpr int THREADS = 32 * WARPS, OWN = 16 * WARPS;

// Write the 16 rows of `sums` from row `at` on, as far as there are `count`.
template <int COUNT>
__device__ __forceinline__ void write(
    const float (&sums)[1][COUNT][4], OUT* to, int at, int count, int width, int lane, float factor)
{
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int row = at + half * 8 + lane / 4;
        if (row >= count) continue;
        store_row(sums[0], half, factor, to + (long long)row * width, width, lane);
    }
}

// With room for fewer than two thread blocks in mind, ptxas would use fewer registers and spill (sm_80, sm_90).
extern "C" __global__ void __launch_bounds__(THREADS, 2) flash_vjp(
    const DTYPE* __restrict__ query, const DTYPE* __restrict__ key, const DTYPE* __restrict__ value,
    const DTYPE* __restrict__ d_out,
    OUT* __restrict__ d_query,              // (batch, query heads, rows, dim), contiguous; in the pass of queries
    OUT* __restrict__ d_key,                // (batch, key heads, cols, dim), contiguous; in the pass of keys; or null
    OUT* __restrict__ d_value,              // (batch, key heads, cols, value_dim); likewise
    const float* __restrict__ lse, const float* __restrict__ delta,  // (batch, query heads, rows), contiguous
    const int* __restrict__ spans,          // (rows, 2), non-decreasing: first <= col < stop, of queries and of keys; or null
    const long long* __restrict__ lengths,  // (batch,): col < length; or null
    const bool* __restrict__ mask,          // (batch, query heads, rows, cols); or null
    const BIAS* __restrict__ bias,          // like mask
    const float* __restrict__ slopes,       // (query heads,): -slope |row + shift - col|; or null
    long long query_batch, long long query_head, long long query_row,
    long long key_batch, long long key_head, long long key_row,
    long long value_batch, long long value_head, long long value_row,
    long long d_out_batch, long long d_out_head, long long d_out_row,
    long long lengths_batch,
    long long mask_batch, long long mask_head, long long mask_row, long long mask_col,
    long long bias_batch, long long bias_head, long long bias_row, long long bias_col,
    int batch, int heads, int groups, int rows, int cols,  // heads: of queries; groups of them share a key head
    int dim, int value_dim,                                // without padding
    float scale, float softcap,                            // 0: no softcap
    int low, int high, int has_band,                       // low <= col - row <= high
    int shift)
{
    DYNAMIC_SHARED(memory);
    const int lane = threadIdx.x % 32, at_of_warp = threadIdx.x / 32 * 16;

    // In a band, the thread blocks with the most work come first: the last queries, and the first keys. Otherwise the thread
    // blocks of one head are neighbours, because they share what they step through in the cache.
    const int own_count = OF_KEYS ? cols : rows, own_heads = OF_KEYS ? heads / groups : heads;
    const int blocks = (own_count + OWN - 1) / OWN, which = blockIdx.x, in_order = which / (batch * own_heads);
    const int of_head = has_band ? (OF_KEYS ? in_order : blocks - 1 - in_order) : which % blocks;
    const int of_batch = has_band ? which % (batch * own_heads) : which / blocks;
    const int own_head = of_batch % own_heads, b = of_batch / own_heads, k_head = OF_KEYS ? own_head : own_head / groups;
    const int first = of_head * OWN, last = min(first + OWN, own_count) - 1;

    // The rows that the block steps through, and the part of them that lengths and spans let all see.
    const int length = lengths ? int(min((long long)cols, lengths[b * lengths_batch])) : cols;
    int begin = max(0, OF_KEYS ? first - high : first + low);
    int end = OF_KEYS ? min(first < length ? rows : 0, last - low + 1) : min(length, last + high + 1);
    if (spans) begin = max(begin, spans[2 * first]), end = min(end, spans[2 * last + 1]);
    const int all_from = spans ? spans[2 * last] : 0, all_to = spans ? min(end, spans[2 * first + 1]) : end;
    const int steps = (max(0, end - begin) + OTHERS - 1) / OTHERS, total = OF_KEYS ? groups * steps : steps;

    query += b * query_batch;
    key += b * key_batch + k_head * key_head;
    value += b * value_batch + k_head * value_head;
    d_out += b * d_out_batch;
    lse += (long long)b * heads * rows;
    delta += (long long)b * heads * rows;

    // Tiles of the owned rows, and two of each kind of the others: one arrives while the other is used.
    using OwnKeys = Tile<DTYPE, OWN, DIM>;
    using OwnValues = Tile<DTYPE, OWN, VALUE_DIM>;
    using Keys = Tile<DTYPE, OTHERS, DIM>;
    using Values = Tile<DTYPE, OTHERS, VALUE_DIM>;
    const OwnKeys own_k{reinterpret_cast<DTYPE*>(memory)};  // owned keys, or queries
    const OwnValues own_v{reinterpret_cast<DTYPE*>(memory + OwnKeys::BYTES)};  // their values, or the gradients of their outputs
    unsigned char* const others = memory + OwnKeys::BYTES + OwnValues::BYTES;
    auto tile_k = [&](int at) { return Keys{reinterpret_cast<DTYPE*>(others + at % 2 * Keys::BYTES)}; };
    auto tile_v = [&](int at) { return Values{reinterpret_cast<DTYPE*>(others + 2 * Keys::BYTES + at % 2 * Values::BYTES)}; };
    float* const terms = reinterpret_cast<float*>(others + 2 * Keys::BYTES + 2 * Values::BYTES);  // lse and delta of queries
    auto q_head = [&](int at) { return OF_KEYS ? k_head * groups + at / steps : own_head; };
    auto start = [&](int at) { return begin + at % steps * OTHERS; };
    auto copy_others = [&](int at) {
        const int from = start(at), head = q_head(at);
        const DTYPE* const k = OF_KEYS ? query + head * query_head : key;
        const DTYPE* const v = OF_KEYS ? d_out + head * d_out_head : value;
        const long long k_row = OF_KEYS ? query_row : key_row, v_row = OF_KEYS ? d_out_row : value_row;
        tile_k(at).template copy_from<THREADS, PACK>([&](int i) { return from + i < end ? k + (from + i) * k_row : nullptr; }, dim, k);
        tile_v(at).template copy_from<THREADS, PACK>(
            [&](int i) { return from + i < end ? v + (from + i) * v_row : nullptr; }, value_dim, v);
        if (OF_KEYS)
            for (int i = threadIdx.x; i < OTHERS; i += THREADS) {
                const long long row = (long long)head * rows + from + i;
                terms[at % 2 * 2 * OTHERS + i] = from + i < end ? lse[row] : 0;
                terms[at % 2 * 2 * OTHERS + OTHERS + i] = from + i < end ? delta[row] : 0;
            }
    };
    {
        const DTYPE* const k = OF_KEYS ? key : query + own_head * query_head;
        const DTYPE* const v = OF_KEYS ? value : d_out + own_head * d_out_head;
        const long long k_row = OF_KEYS ? key_row : query_row, v_row = OF_KEYS ? value_row : d_out_row;
        own_k.template copy_from<THREADS, PACK>([&](int i) { return first + i <= last ? k + (first + i) * k_row : nullptr; }, dim, k);
        own_v.template copy_from<THREADS, PACK>(
            [&](int i) { return first + i <= last ? v + (first + i) * v_row : nullptr; }, value_dim, v);
    }
    if (total > 0) copy_others(0);

    float of_k[1][DIM / 8][4], of_v[1][VALUE_DIM / 8][4];
    clear(of_k);
    clear(of_v);
    float own_terms[2][2];  // lse and delta of owned queries
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const long long row = (long long)own_head * rows + min(first + at_of_warp + half * 8 + lane / 4, last);
        own_terms[half][0] = OF_KEYS ? 0 : lse[row];
        own_terms[half][1] = OF_KEYS ? 0 : delta[row];
    }

#pragma unroll 1
    for (int at = 0; at < total; at++) {
        wait_for_copies();
        __syncthreads();  // the tiles have arrived, and all threads are done with those of the previous step
        if (at + 1 < total) copy_others(at + 1);
        const int from = start(at), head = q_head(at);
        float w[1][OTHERS / 8][4], ds[1][OTHERS / 8][4];
        set_product(w, own_k, tile_k(at), at_of_warp, lane);
        set_product(ds, own_v, tile_v(at), at_of_warp, lane);

        const int least = OF_KEYS ? first - (from + OTHERS - 1) : from - last;  // of col - row
        const int most = OF_KEYS ? last - from : from + OTHERS - 1 - first;
        const bool all_seen = least >= low && most <= high && from >= all_from && from + OTHERS <= all_to && (!OF_KEYS || last < length);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int own = min(first + at_of_warp + half * 8 + lane / 4, last);  // past the end: any
#pragma unroll
            for (int i = 0; i < OTHERS / 4; i++) {
                float& x = w[0][i / 2][half * 2 + i % 2];
                float& d = ds[0][i / 2][half * 2 + i % 2];
                const int place = i / 2 * 8 + lane % 4 * 2 + i % 2, other = from + place;
                const int row = OF_KEYS ? other : own, col = OF_KEYS ? own : other;
                bool seen = all_seen;
                if (!all_seen) {
                    seen = other < end && col < length && col - row >= low && col - row <= high;
                    if (seen && spans) seen = col >= spans[2 * row] && col < spans[2 * row + 1];
                }
                float slope = 1;
                x *= scale;
                if (!PLAIN) {
                    if (softcap != 0) {
                        const float t = tanhf(x / softcap);
                        x = softcap * t;
                        slope = 1 - t * t;
                    }
                    if (seen && bias) x += wide(bias[b * bias_batch + head * bias_head + row * bias_row + col * bias_col]);
                    if (slopes) x -= slopes[head] * (float)abs(row + shift - col);
                    if (seen && mask) seen = mask[b * mask_batch + head * mask_head + row * mask_row + col * mask_col];
                }
                x -= OF_KEYS ? terms[at % 2 * 2 * OTHERS + place] : own_terms[half][0];
                x = seen ? exp2f((x > 0 ? 0 : x) * LOG2E) : 0;  // lse, rounded, may be less than a large score; NaN stays NaN
                d -= OF_KEYS ? terms[at % 2 * 2 * OTHERS + OTHERS + place] : own_terms[half][1];
                d = x == 0 ? 0 : x * d * slope;  // a value that has no weight may be NaN
            }
        }
        if (OF_KEYS) add_product(of_v, w, tile_v(at), lane, weight_factor(DTYPE{}));
        add_product(of_k, ds, tile_k(at), lane, 1);
    }
    wait_for_copies();  // of what is owned, if there was no step

    const long long before = ((long long)b * own_heads + own_head) * own_count;
    OUT* const to_k = OF_KEYS ? d_key : d_query;
    if (to_k) write(of_k, to_k + before * dim, first + at_of_warp, own_count, dim, lane, scale);
    if (OF_KEYS && d_value)
        write(of_v, d_value + before * value_dim, first + at_of_warp, own_count, value_dim, lane, 1 / weight_factor(DTYPE{}));
}
