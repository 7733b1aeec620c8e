// Attention in one pass over the keys, with scores and weights in registers only (Dao 2023, FlashAttention-2, algorithm 1).
// Defined by compiler options: DTYPE (float16 or bfloat16); OUT (DTYPE, or float for splits); BIAS; DIM of queries and keys and
// VALUE_DIM, padded with zeros to multiples of 16; PACK, the COUNT of Tile::copy_from; WARPS, and TILES of 16 rows for each of
// them; KEYS in a step, a multiple of 16; PLAIN, 1 if scale > 0 and there is no softcap, mask, bias or slope, else 0.
// A row is one query of one query head. Query heads that share a key head are stacked, query by query.

#include "tiles.cuh"

constexpr int THREADS = 32 * WARPS, ROWS = 16 * WARPS * TILES;
constexpr float LN2 = 0.693147180559945309f;

extern "C" __global__ void __launch_bounds__(THREADS) flash(
    const DTYPE* __restrict__ query, const DTYPE* __restrict__ key, const DTYPE* __restrict__ value, OUT* __restrict__ out,
    float* __restrict__ lse,                // (splits, batch, heads, groups, rows), contiguous; or null
    const int* __restrict__ spans,          // (rows, 2), non-decreasing: first <= col < stop; or null
    const long long* __restrict__ lengths,  // (batch,): col < length; or null
    const bool* __restrict__ mask,          // (batch, query heads, rows, cols); or null
    const BIAS* __restrict__ bias,          // like mask
    const float* __restrict__ slopes,       // (query heads,): -slope |row + shift - col|; or null
    const float* __restrict__ sink,         // (query heads,): one more score, without a value; or null
    long long query_batch, long long query_head, long long query_group, long long query_row,
    long long key_batch, long long key_head, long long key_row,
    long long value_batch, long long value_head, long long value_row,
    long long out_split, long long out_batch, long long out_head, long long out_group, long long out_row,
    long long lengths_batch,
    long long mask_batch, long long mask_head, long long mask_row, long long mask_col,
    long long bias_batch, long long bias_head, long long bias_row, long long bias_col,
    int splits, int batch, int heads, int groups, int rows, int cols,  // heads: of keys; groups: query heads for each
    int dim, int value_dim,                                           // without padding
    float scale, float softcap,                                       // 0: no softcap
    int low, int high, int has_band,                                  // low <= col - row <= high
    int shift)
{
    DYNAMIC_SHARED(memory);
    const float NONE = -infinity<float>();
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;

    // In a band, the last queries of all heads come first: they may see the most keys, and short work fills the end. Otherwise the
    // thread blocks of one head are neighbours, because they share its keys and values in the cache.
    const int stack = groups * rows, blocks = (stack + ROWS - 1) / ROWS, split = blockIdx.x % splits, which = blockIdx.x / splits;
    const int of_head = has_band ? blocks - 1 - which / (batch * heads) : which % blocks;
    const int of_batch = has_band ? which % (batch * heads) : which / blocks;
    const int k_head = of_batch % heads, b = of_batch / heads, first = of_head * ROWS;
    const int first_row = first / groups, last_row = (min(first + ROWS, stack) - 1) / groups;

    int begin = max(0, first_row + low), end = min(cols, last_row + high + 1);
    if (lengths) end = int(min((long long)end, lengths[b * lengths_batch]));
    if (spans) begin = max(begin, spans[2 * first_row]), end = min(end, spans[2 * last_row + 1]);
    const int each = ((max(0, end - begin) + splits - 1) / splits + KEYS - 1) / KEYS * KEYS;  // keys in a split
    begin += split * each;
    end = min(end, begin + each);

    // Keys that lengths and spans let all rows see.
    const int all_from = spans ? spans[2 * last_row] : 0, all_to = spans ? min(end, spans[2 * first_row + 1]) : end;

    query += b * query_batch + k_head * query_head;
    key += b * key_batch + k_head * key_head;
    value += b * value_batch + k_head * value_head;

    using Queries = Tile<DTYPE, ROWS, DIM>;
    using Keys = Tile<DTYPE, KEYS, DIM>;
    using Values = Tile<DTYPE, KEYS, VALUE_DIM>;
    const Queries q_tile{reinterpret_cast<DTYPE*>(memory)};
    const Keys k_tile{reinterpret_cast<DTYPE*>(memory + Queries::BYTES)};
    const Values v_tile{reinterpret_cast<DTYPE*>(memory + Queries::BYTES + Keys::BYTES)};
    auto copy_keys = [&](int from) {
        k_tile.template copy_from<THREADS, PACK>(
            [&](int i) { return from + i < end ? key + (from + i) * key_row : nullptr; }, dim, key);
    };
    q_tile.template copy_from<THREADS, PACK>(
        [&](int i) {
            const int row = (first + i) / groups, group = (first + i) % groups;
            return first + i < stack ? query + group * query_group + row * query_row : nullptr;
        },
        dim, query);
    copy_keys(begin);

    float sums[TILES][VALUE_DIM / 8][4], largest[TILES][2], total[TILES][2];
    clear(sums);
#pragma unroll
    for (int t = 0; t < TILES; t++) {
        largest[t][0] = largest[t][1] = NONE;
        total[t][0] = total[t][1] = 0;
    }
    const float factor = PLAIN ? scale * LOG2E : LOG2E;  // weight = 2^(factor * (score - largest))

    for (int from = begin; from < end; from += KEYS) {
        wait_for_copies();
        __syncthreads();  // the keys have arrived, and all threads are done with the values of the previous step
        v_tile.template copy_from<THREADS, PACK>(
            [&](int i) { return from + i < end ? value + (from + i) * value_row : nullptr; }, value_dim, value);

        float s[TILES][KEYS / 8][4];
        set_product(s, q_tile, k_tile, warp * TILES * 16, lane);

        const bool in_band = from - last_row >= low && from + KEYS - 1 - first_row <= high;
        const bool all_seen = in_band && from >= all_from && from + KEYS <= all_to;
        if (!PLAIN || !all_seen) {
#pragma unroll
            for (int t = 0; t < TILES; t++)
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    const int at = min(first + (warp * TILES + t) * 16 + half * 8 + lane / 4, stack - 1);  // past the end: any row
                    const int row = at / groups, head = k_head * groups + at % groups;
                    const int start = max(row + low, spans ? spans[2 * row] : 0);
                    const int stop = min(min(end, row + high + 1), spans ? spans[2 * row + 1] : end);
                    const bool* mask_at = mask + b * mask_batch + head * mask_head + row * mask_row;
                    const BIAS* bias_at = bias + b * bias_batch + head * bias_head + row * bias_row;
#pragma unroll
                    for (int i = 0; i < KEYS / 4; i++) {
                        float& x = s[t][i / 2][half * 2 + i % 2];
                        const int col = from + i / 2 * 8 + lane % 4 * 2 + i % 2;
                        bool seen = col >= start && col < stop;
                        if (!PLAIN) {
                            x *= scale;
                            if (softcap != 0) x = softcap * tanhf(x / softcap);
                            if (seen && bias) x += wide(bias_at[col * bias_col]);
                            if (slopes) x -= slopes[head] * (float)abs(row + shift - col);
                            if (seen && mask) seen = mask_at[col * mask_col];
                        }
                        if (!seen) x = NONE;
                    }
                }
        }

#pragma unroll
        for (int t = 0; t < TILES; t++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const float before = largest[t][half];
                float now = before;
#pragma unroll
                for (int i = 0; i < KEYS / 4; i++) now = fmaxf(now, s[t][i / 2][half * 2 + i % 2]);
                now = over_lanes<Max, 4>(now);
                const float base = now == NONE ? 0 : now;  // differences first: the largest weight is exactly 1, however large its score
                const float keep = exp2f((before - base) * factor);
                float sum = 0;
#pragma unroll
                for (int i = 0; i < KEYS / 4; i++) {
                    float& x = s[t][i / 2][half * 2 + i % 2];
                    x = exp2f((x - base) * factor);
                    sum += x;
                }
                largest[t][half] = now;
                total[t][half] = total[t][half] * keep + sum;
#pragma unroll
                for (int n = 0; n < VALUE_DIM / 8; n++) sums[t][n][half * 2] *= keep, sums[t][n][half * 2 + 1] *= keep;
            }

        wait_for_copies();
        __syncthreads();  // the values have arrived, and all threads are done with the keys
        if (from + KEYS < end) copy_keys(from + KEYS);
        add_product(sums, s, v_tile, lane, weight_factor(DTYPE{}));
    }
    wait_for_copies();  // of queries and keys, if there was no step

#pragma unroll
    for (int t = 0; t < TILES; t++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int at = first + (warp * TILES + t) * 16 + half * 8 + lane / 4;
            float sum = over_lanes<Sum, 4>(total[t][half]);
            float base = largest[t][half] == NONE ? 0 : largest[t][half] * factor, keep = 1;
            if (at >= stack) continue;
            const int row = at / groups, group = at % groups;
            const float extra = sink ? sink[k_head * groups + group] : NONE;
            float lse_of_row = extra, factor_of_sum = 0;
            if (sum == 0) {  // no key is seen: weights of 0 would keep a value of NaN
#pragma unroll
                for (int n = 0; n < VALUE_DIM / 8; n++) sums[t][n][half * 2] = sums[t][n][half * 2 + 1] = 0;
            } else {
                if (extra != NONE) {
                    const float top = fmaxf(base, extra * LOG2E);
                    keep = exp2f(base - top);
                    sum = sum * keep + exp2f(extra * LOG2E - top);
                    base = top;
                }
                lse_of_row = (base + log2f(sum)) * LN2;
                factor_of_sum = keep / (sum * weight_factor(DTYPE{}));
            }
            if (lse && lane % 4 == 0)
                lse[(((long long)(split * batch + b) * heads + k_head) * groups + group) * rows + row] = lse_of_row;
            OUT* row_of_out = out + split * out_split + b * out_batch + k_head * out_head + group * out_group + row * out_row;
            store_row(sums[t], half, factor_of_sum, row_of_out, value_dim, lane);
        }
}

// Combine out and lse of all splits, and the sink, with one warp for each row.
extern "C" __global__ void combine(
    const float* __restrict__ outs, const float* __restrict__ lses,  // (splits, n, value_dim), (splits, n); n: (batch, ..., rows)
    DTYPE* __restrict__ out, float* __restrict__ lse,                // (n,), or null
    const float* __restrict__ sink,                                  // (query heads,); or null
    long long out_batch, long long out_head, long long out_group, long long out_row,
    int splits, int batch, int heads, int groups, int rows, int value_dim)
{
    const long long n = (long long)batch * heads * groups * rows;
    const long long which = blockIdx.x * (long long)(blockDim.x / 32) + threadIdx.x / 32;
    if (which >= n) return;
    const int row = int(which % rows), group = int(which / rows % groups), head = int(which / rows / groups % heads);
    const int b = int(which / rows / groups / heads), lane = threadIdx.x % 32;
    const float NONE = -infinity<float>();

    const float extra = sink ? sink[head * groups + group] : NONE;
    float top = extra, total = 0;
    for (int split = 0; split < splits; split++) top = fmaxf(top, lses[split * n + which]);
    const float base = top == NONE ? 0 : top;
    for (int split = 0; split < splits; split++) total += expf(lses[split * n + which] - base);
    total += expf(extra - base);
    if (lse && lane == 0) lse[which] = total == 0 ? NONE : base + logf(total);
    out += b * out_batch + head * out_head + group * out_group + row * out_row;
    for (int d = lane; d < value_dim; d += 32) {
        float sum = 0;
        for (int split = 0; split < splits; split++)
            sum += expf(lses[split * n + which] - base) * outs[(split * n + which) * value_dim + d];
        narrow(total == 0 ? 0.f : sum / total, out[d]);
    }
}
