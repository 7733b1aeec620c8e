// Softcap, bias, mask, softmax and log-sum-exp of a row of scores: each score is read once, each weight written once.
// Defined by compiler options: SCORE (float or double), WEIGHT, BIAS, THREADS, EACH. A thread block takes a row of at most
// THREADS * EACH scores.

#include "numbers.cuh"

extern "C" __global__ void __launch_bounds__(THREADS) softmax(
    const SCORE* scores,      // (batch, heads, rows, stride), already scaled
    WEIGHT* weights,          // (batch, heads, rows, stride), multiplied by `weight_factor`; may be the scores
    SCORE* __restrict__ lse, long long lse_batch, long long lse_head, long long lse_row,  // or null
    int heads, int rows, int cols, long long stride, SCORE weight_factor,
    SCORE softcap,                               // 0: none
    int first_row, int first_col,                // where this block of scores begins
    int low, int high,                           // low <= col - row <= high
    const long long* __restrict__ lengths, long long lengths_batch,  // (batch,): col < length; or null
    const bool* __restrict__ mask, long long mask_batch, long long mask_head, long long mask_row, long long mask_col,  // or null
    const BIAS* __restrict__ bias, long long bias_batch, long long bias_head, long long bias_row, long long bias_col,  // or null
    const SCORE* __restrict__ slopes, int shift)  // (heads,): -slope |row + shift - col|; or null
{
    __shared__ SCORE shared[32];
    const SCORE NONE = -infinity<SCORE>();
    const long long which = blockIdx.x;
    const int r = int(which % rows), head = int(which / rows % heads), batch = int(which / rows / heads);
    const int row = first_row + r;
    scores += which * stride;
    weights += which * stride;

    SCORE s[EACH];
    SCORE largest = NONE;
#pragma unroll
    for (int each = 0; each < EACH; each++) {
        const int c = threadIdx.x + each * THREADS, col = first_col + c;
        bool seen = c < cols && col - row >= low && col - row <= high;
        if (seen && lengths) seen = col < lengths[batch * lengths_batch];
        if (seen && mask) seen = mask[batch * mask_batch + head * mask_head + r * mask_row + c * mask_col];
        s[each] = NONE;
        if (seen) {
            SCORE x = scores[c];
            if (softcap != 0) x = softcap * tanh(x / softcap);
            if (bias) x += wide(bias[batch * bias_batch + head * bias_head + r * bias_row + c * bias_col]);
            if (slopes) x -= slopes[head] * (SCORE)abs(row + shift - col);
            s[each] = x;
        }
        largest = Max::of(largest, s[each]);
    }
    largest = over_block<Max, THREADS>(largest, NONE, shared);

    const SCORE from = largest == NONE ? SCORE(0) : largest;  // a fully masked row: weights 0, lse -inf
    SCORE total = 0;
#pragma unroll
    for (int each = 0; each < EACH; each++) {
        s[each] = exp(s[each] - from);
        total += s[each];
    }
    total = over_block<Sum, THREADS>(total, SCORE(0), shared);

    const SCORE factor = total == 0 ? SCORE(0) : weight_factor / total;
#pragma unroll
    for (int each = 0; each < EACH; each++) {
        const int c = threadIdx.x + each * THREADS;
        if (c < cols) narrow(s[each] * factor, weights[c]);
    }
    if (lse && threadIdx.x == 0) lse[batch * lse_batch + head * lse_head + r * lse_row] = total == 0 ? NONE : from + log(total);
}
