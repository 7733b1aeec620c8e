// LayerNorm or RMSNorm of the rows of x + b + residual.
// Defined by compiler options: DTYPE; WIDE (double for double, else float); CENTRED (0: RMSNorm); PACK (elements in one access);
// THREADS (of a row); ROWS (of a thread block; more than one only if THREADS is 32); EACH (packs held by each thread).

#include "numbers.cuh"

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

// A row of at most THREADS * EACH * PACK elements stays in registers: each element is read once and written once.
extern "C" __global__ void __launch_bounds__(THREADS * ROWS) normalize(
    const DTYPE* __restrict__ x, long long x_stride,                   // (rows, length), rows x_stride elements apart
    const DTYPE* __restrict__ b,                                       // (length,), or null
    const DTYPE* __restrict__ residual, long long residual_stride,     // like x, or null
    DTYPE* __restrict__ sum,                                           // (rows, length): x + b + residual; or null
    const DTYPE* __restrict__ weight, const DTYPE* __restrict__ bias,  // (length,), or null
    DTYPE* __restrict__ out,                                           // (rows, length)
    int rows, int length, WIDE eps)
{
    __shared__ WIDE shared[32];
    const int thread = threadIdx.x % THREADS;
    const long long row = (long long)blockIdx.x * ROWS + threadIdx.x / THREADS;
    const int end = row < rows ? length : 0;  // the last thread block may have fewer rows
    x += row * x_stride;
    if (residual) residual += row * residual_stride;

    WIDE v[EACH][PACK];
    WIDE total = 0;
#pragma unroll
    for (int each = 0; each < EACH; each++) {
        const int at = (thread + each * THREADS) * PACK;
        if (at < end) {
            sum_of(x, b, residual, at, v[each]);
            if (sum) store(v[each], sum + row * length + at);
#pragma unroll
            for (int i = 0; i < PACK; i++) total += v[each][i];
        }
    }
    const WIDE mean = CENTRED ? over_block<Sum, THREADS>(total, WIDE(0), shared) / length : WIDE(0);

    WIDE square = 0;
#pragma unroll
    for (int each = 0; each < EACH; each++)
        if ((thread + each * THREADS) * PACK < end)
#pragma unroll
            for (int i = 0; i < PACK; i++) square += (v[each][i] - mean) * (v[each][i] - mean);
    const WIDE factor = 1 / sqrt(over_block<Sum, THREADS>(square, WIDE(0), shared) / length + eps);

#pragma unroll
    for (int each = 0; each < EACH; each++) {
        const int at = (thread + each * THREADS) * PACK;
        if (at < end) write(v[each], mean, factor, weight, bias, at, out + row * length);
    }
}

// A longer row is read again for the variance and for the result; ROWS and EACH are 1. Unrolled, its loops would spill (sm_90).
extern "C" __global__ void __launch_bounds__(THREADS) normalize_long_rows(
    const DTYPE* __restrict__ x, long long x_stride, const DTYPE* __restrict__ b, const DTYPE* __restrict__ residual,
    long long residual_stride, DTYPE* __restrict__ sum, const DTYPE* __restrict__ weight, const DTYPE* __restrict__ bias,
    DTYPE* __restrict__ out, int rows, int length, WIDE eps)
{
    __shared__ WIDE shared[32];
    const long long row = blockIdx.x;
    x += row * x_stride;
    if (residual) residual += row * residual_stride;

    WIDE v[PACK];
    WIDE total = 0;
#pragma unroll 1
    for (int at = threadIdx.x * PACK; at < length; at += THREADS * PACK) {
        sum_of(x, b, residual, at, v);
        if (sum) store(v, sum + row * length + at);
#pragma unroll
        for (int i = 0; i < PACK; i++) total += v[i];
    }
    const WIDE mean = CENTRED ? over_block<Sum, THREADS>(total, WIDE(0), shared) / length : WIDE(0);

    WIDE square = 0;
#pragma unroll 1
    for (int at = threadIdx.x * PACK; at < length; at += THREADS * PACK) {
        sum_of(x, b, residual, at, v);
#pragma unroll
        for (int i = 0; i < PACK; i++) square += (v[i] - mean) * (v[i] - mean);
    }
    const WIDE factor = 1 / sqrt(over_block<Sum, THREADS>(square, WIDE(0), shared) / length + eps);

#pragma unroll 1
    for (int at = threadIdx.x * PACK; at < length; at += THREADS * PACK) {
        sum_of(x, b, residual, at, v);
        write(v, mean, factor, weight, bias, at, out + row * length);
    }
}
