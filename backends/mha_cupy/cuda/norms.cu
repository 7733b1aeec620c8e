// LayerNorm or RMSNorm of the rows of x + b + residual. In a row that fits into registers, each element is read once.

#include "norms.cuh"

// x + b + residual for PACK elements.
__device__ __forceinline__ void sum_of(const DTYPE* x, const DTYPE* b, const DTYPE* residual, int at, WIDE (&to)[PACK]) {
    load(x + at, to);
    if (b) add(b + at, to);
    if (residual) add(residual + at, to);
}

// (v - mean) * factor * weight + bias for PACK elements.
__device__ __forceinline__ void write(
    WIDE (&v)[PACK], WIDE mean, WIDE factor, const DTYPE* weight, const DTYPE* bias, int at, DTYPE* out)
{
#pragma unroll
    for (int i = 0; i < PACK; i++) v[i] = (v[i] - mean) * factor;
    if (weight) multiply(weight + at, v);
    if (bias) add(bias + at, v);
    store(v, out + at);
}

extern "C" __global__ void __launch_bounds__(THREADS * ROWS) normalize(
    const DTYPE* __restrict__ x, long long x_stride,                   // (rows, length), rows x_stride elements apart
    const DTYPE* __restrict__ b,                                       // (length,), or null
    const DTYPE* __restrict__ residual, long long residual_stride,     // like x, or null
    DTYPE* __restrict__ sum,                                           // (rows, length): x + b + residual; or null
    const DTYPE* __restrict__ weight, const DTYPE* __restrict__ bias,  // (length,), or null
    DTYPE* __restrict__ out,                                           // (rows, length)
    int rows, int length, WIDE eps)
{
    const long long row = (long long)blockIdx.x * ROWS + threadIdx.x / THREADS;
    const int end = row < rows ? length : 0;  // the last thread block may have fewer rows
    x += row * x_stride;
    if (residual) residual += row * residual_stride;

    WIDE v[HELD][PACK], total = 0, square = 0;
    auto read = [&](int k, int at) { sum_of(x, b, residual, at, v[k]); };
    over_row<true>(end, read, [&](int k, int at) {
        if (sum) store(v[k], sum + row * length + at);
#pragma unroll
        for (int i = 0; i < PACK; i++) total += v[k][i];
    });
    const WIDE mean = CENTRED ? sum_of_row(total) / length : WIDE(0);
    over_row<false>(end, read, [&](int k, int) {
#pragma unroll
        for (int i = 0; i < PACK; i++) square += (v[k][i] - mean) * (v[k][i] - mean);
    });
    const WIDE factor = 1 / sqrt(sum_of_row(square) / length + eps);
    over_row<false>(end, read, [&](int k, int at) { write(v[k], mean, factor, weight, bias, at, out + row * length); });
}
