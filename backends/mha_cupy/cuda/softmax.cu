// Softcap, bias, mask, softmax and log-sum-exp of a row of scores, and the gradients of the scores: each number is read once and
// written once. Defined by compiler options: SCORE (float or double), WEIGHT, BIAS, THREADS, EACH. A thread block takes a row,
// which for ``softmax`` has at most THREADS * EACH scores.

#include "numbers.cuh"

// Masks and biases of the scores of one row.
struct Modifiers {
    int row, first_col;  // the query, and where the block of scores begins
    int low, high;       // low <= col - row <= high
    long long length;    // col < length
    const bool* mask; long long mask_col;  // of the row; or null
    const BIAS* bias; long long bias_col;  // of the row; or null
    SCORE slope; int shift;                // -slope |row + shift - col|

    __device__ __forceinline__ bool sees(int c) const {
        const int col = first_col + c;
        return col - row >= low && col - row <= high && col < length && (!mask || mask[c * mask_col]);
    }
    __device__ __forceinline__ SCORE with_bias(SCORE x, int c) const {
        if (bias) x += wide(bias[c * bias_col]);
        return slope == 0 ? x : x - slope * (SCORE)abs(row + shift - (first_col + c));
    }
};

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
    const Modifiers of_row{
        first_row + r, first_col, low, high, lengths ? lengths[batch * lengths_batch] : 0x7fffffff,
        mask ? mask + batch * mask_batch + head * mask_head + r * mask_row : nullptr, mask_col,
        bias ? bias + batch * bias_batch + head * bias_head + r * bias_row : nullptr, bias_col,
        slopes ? slopes[head] : SCORE(0), shift};
    scores += which * stride;
    weights += which * stride;

    SCORE s[EACH];
    SCORE largest = NONE;
#pragma unroll
    for (int each = 0; each < EACH; each++) {
        const int c = threadIdx.x + each * THREADS;
        s[each] = NONE;
        if (c < cols && of_row.sees(c)) {
            SCORE x = scores[c];
            if (softcap != 0) x = softcap * tanh(x / softcap);
            s[each] = of_row.with_bias(x, c);
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

// With the scores s, their gradients d_s = w (d_w - delta), where w = e^(s - lse) and d_w = d_out v^T.
extern "C" __global__ void __launch_bounds__(THREADS) softmax_vjp(
    const SCORE* scores,   // (batch, heads, rows, stride), already scaled
    const SCORE* d_weights,
    WEIGHT* weights,       // multiplied by `weight_factor`; may be the scores
    WEIGHT* d_scores,      // times the slope of the softcap; may be d_weights
    SCORE* d_bias,         // without that slope; may be d_weights; or null
    const SCORE* __restrict__ lse, const SCORE* __restrict__ delta, long long rows_batch, long long rows_head,  // rows adjacent
    int heads, int rows, int cols, long long stride, SCORE weight_factor,
    SCORE softcap,                               // 0: none
    int first_row, int first_col,                // where this block of scores begins
    int low, int high,                           // low <= col - row <= high
    const long long* __restrict__ lengths, long long lengths_batch,  // (batch,): col < length; or null
    const bool* __restrict__ mask, long long mask_batch, long long mask_head, long long mask_row, long long mask_col,  // or null
    const BIAS* __restrict__ bias, long long bias_batch, long long bias_head, long long bias_row, long long bias_col,  // or null
    const SCORE* __restrict__ slopes, int shift)  // (heads,): -slope |row + shift - col|; or null
{
    const long long which = blockIdx.x;
    const int r = int(which % rows), head = int(which / rows % heads), batch = int(which / rows / heads);
    const Modifiers of_row{
        first_row + r, first_col, low, high, lengths ? lengths[batch * lengths_batch] : 0x7fffffff,
        mask ? mask + batch * mask_batch + head * mask_head + r * mask_row : nullptr, mask_col,
        bias ? bias + batch * bias_batch + head * bias_head + r * bias_row : nullptr, bias_col,
        slopes ? slopes[head] : SCORE(0), shift};
    const long long of_rows = batch * rows_batch + head * rows_head + r;
    const SCORE lse_of_row = lse[of_rows], delta_of_row = delta[of_rows];
#pragma unroll 1
    for (int c = threadIdx.x; c < cols; c += THREADS) {
        const long long at = which * stride + c;
        SCORE w = 0, d = 0, slope = 1;
        if (of_row.sees(c)) {
            SCORE x = scores[at];
            if (softcap != 0) {
                const SCORE t = tanh(x / softcap);
                x = softcap * t;
                slope = 1 - t * t;
            }
            const SCORE exponent = of_row.with_bias(x, c) - lse_of_row;
            w = exp(exponent > 0 ? SCORE(0) : exponent);  // lse, rounded, may be less than a large score; NaN stays NaN
            d = w == 0 ? SCORE(0) : w * (d_weights[at] - delta_of_row);  // a value that has no weight may be NaN
        }
        if (d_bias) d_bias[at] = d;
        narrow(w * weight_factor, weights[at]);
        narrow(d * slope, d_scores[at]);
    }
}
