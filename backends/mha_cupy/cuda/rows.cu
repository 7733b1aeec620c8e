// Terms of each query in the gradients of attention: delta = d_out . out - d_lse, lse, and d_out, with zeros for a query that
// sees no key, whatever is given there. Defined by compiler options: DTYPE; SCORE (float or double). A warp takes a row.

#include "numbers.cuh"

extern "C" __global__ void row_terms(
    const DTYPE* __restrict__ out, long long out_batch, long long out_head, long long out_row, long long out_col,
    const DTYPE* __restrict__ d_out, long long d_out_batch, long long d_out_head, long long d_out_row, long long d_out_col,
    const SCORE* __restrict__ lse, long long lse_batch, long long lse_head, long long lse_row,
    const SCORE* __restrict__ d_lse, long long d_lse_batch, long long d_lse_head, long long d_lse_row,  // or null: zeros
    const SCORE* __restrict__ sink,                                      // (heads,); or null
    SCORE* __restrict__ lse_to, SCORE* __restrict__ delta_to,            // (batch, heads, rows), contiguous
    DTYPE* __restrict__ d_out_to,                                        // (batch, heads, rows, length), contiguous; or null
    int batch, int heads, int rows, int length)
{
    const long long which = blockIdx.x * (long long)(blockDim.x / 32) + threadIdx.x / 32;
    if (which >= (long long)batch * heads * rows) return;
    const int lane = threadIdx.x % 32, row = int(which % rows), head = int(which / rows % heads), b = int(which / rows / heads);
    out += b * out_batch + head * out_head + row * out_row;
    d_out += b * d_out_batch + head * d_out_head + row * d_out_row;
    const SCORE of_row = lse[b * lse_batch + head * lse_head + row * lse_row];

    SCORE largest = 0;  // of |out|
    for (int d = lane; d < length; d += 32) largest = Max::of(largest, SCORE(fabs(wide(out[d * out_col]))));
    largest = over_lanes<Max, 32>(largest);
    const bool no_terms = of_row == -infinity<SCORE>();
    const bool only_sink = sink && of_row == sink[head] && largest == 0;  // its weights may also be too small to show

    SCORE delta = 0;
    for (int d = lane; d < length; d += 32) {
        DTYPE element = d_out[d * d_out_col];
        SCORE x = wide(element);
        if (no_terms || (only_sink && !(fabs(x) < infinity<SCORE>()))) {
            x = 0;
            narrow(x, element);
        }
        delta += x * wide(out[d * out_col]);
        if (d_out_to) d_out_to[which * length + d] = element;
    }
    delta = over_lanes<Sum, 32>(delta);
    if (lane != 0) return;
    if (d_lse && !no_terms) delta -= d_lse[b * d_lse_batch + head * d_lse_head + row * d_lse_row];
    lse_to[which] = no_terms ? SCORE(0) : of_row;
    delta_to[which] = no_terms ? SCORE(0) : delta;
}
