// Sums over rows, in an order that depends on the shapes only: first over chunks of rows, then over the chunks.
// Defined by compiler options: DTYPE; WIDE (double for double, else float); PACK (elements in one access).

#include "numbers.cuh"

constexpr int WARPS = 8;  // without room for two thread blocks in mind, ptxas would spill (sm_90, sm_100)

// The sum over the warps of what each lane holds, in the first warp. `shared` has room for it.
__device__ __forceinline__ void over_warps(WIDE (&x)[PACK], WIDE (&shared)[WARPS][32][PACK]) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    __syncthreads();  // all threads have read what `shared` held before
#pragma unroll
    for (int i = 0; i < PACK; i++) shared[warp][lane][i] = x[i];
    __syncthreads();
#pragma unroll
    for (int i = 0; i < PACK; i++) {
        x[i] = 0;
        for (int w = 0; w < WARPS; w++) x[i] += shared[w][lane][i];
    }
}

// sums = d, products = d (x - mean) factor, each summed over a chunk of rows. A thread block takes 32 packs of columns.
extern "C" __global__ void __launch_bounds__(32 * WARPS, 2) column_sums(
    const DTYPE* __restrict__ d, long long d_stride,                      // (rows, length), rows d_stride elements apart
    const DTYPE* __restrict__ x, long long x_stride,                      // like d; null without products
    const WIDE* __restrict__ mean, const WIDE* __restrict__ factor,       // (rows,)
    WIDE* __restrict__ sums, WIDE* __restrict__ products,                 // (chunks, length), or null
    int rows, int length, int rows_of_chunk)
{
    __shared__ WIDE shared[WARPS][32][PACK];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int tiles = (length / PACK + 31) / 32, chunk = blockIdx.x / tiles, at = (blockIdx.x % tiles * 32 + lane) * PACK;
    const int end = min(rows, (chunk + 1) * rows_of_chunk);
    WIDE sum[PACK], product[PACK];
#pragma unroll
    for (int i = 0; i < PACK; i++) sum[i] = product[i] = 0;
    if (at < length) {
#pragma unroll 2
        for (long long row = chunk * rows_of_chunk + warp; row < end; row += WARPS) {
            WIDE d_row[PACK], y[PACK];
            load(d + row * d_stride + at, d_row);
#pragma unroll
            for (int i = 0; i < PACK; i++) sum[i] += d_row[i];
            if (products) {
                load(x + row * x_stride + at, y);
#pragma unroll
                for (int i = 0; i < PACK; i++) product[i] += d_row[i] * ((y[i] - mean[row]) * factor[row]);
            }
        }
    }
    over_warps(sum, shared);
    if (products) over_warps(product, shared);
    if (warp != 0 || at >= length) return;
#pragma unroll
    for (int i = 0; i < PACK; i++) {
        if (sums) sums[(long long)chunk * length + at + i] = sum[i];
        if (products) products[(long long)chunk * length + at + i] = product[i];
    }
}

// The sum over the chunks, (length,).
extern "C" __global__ void add_chunks(const WIDE* __restrict__ chunks, DTYPE* __restrict__ out, int count, int length) {
    const int at = blockIdx.x * blockDim.x + threadIdx.x;
    if (at >= length) return;
    WIDE total = 0;
    for (int chunk = 0; chunk < count; chunk++) total += chunks[(long long)chunk * length + at];
    narrow(total, out[at]);
}

// Row i of out is the sum of the rows order[start[i]], ..., order[start[i + 1] - 1] of d. A thread block takes 32 packs of columns.
extern "C" __global__ void __launch_bounds__(32 * WARPS, 2) sums_of_runs(
    const DTYPE* __restrict__ d, long long d_stride, const long long* __restrict__ order, const long long* __restrict__ start,
    DTYPE* __restrict__ out, int length)
{
    __shared__ WIDE shared[WARPS][32][PACK];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int tiles = (length / PACK + 31) / 32, row = blockIdx.x / tiles, at = (blockIdx.x % tiles * 32 + lane) * PACK;
    const long long first = start[row], end = start[row + 1];
    WIDE sum[PACK];
#pragma unroll
    for (int i = 0; i < PACK; i++) sum[i] = 0;
    if (at < length) {
        for (long long which = first + warp; which < end; which += WARPS) {
            WIDE d_row[PACK];
            load(d + order[which] * d_stride + at, d_row);
#pragma unroll
            for (int i = 0; i < PACK; i++) sum[i] += d_row[i];
        }
    }
    if (end - first > 1) over_warps(sum, shared);
    if (warp == 0 && at < length) store(sum, out + (long long)row * length + at);
}
