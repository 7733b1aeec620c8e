// The gradient of x of LayerNorm or RMSNorm, with n = (x - mean) factor and g = d weight: factor (g - mean(g) - n mean(g n)), for
// RMSNorm without both means.

#include "norms.cuh"

// g = d weight for PACK elements.
__device__ __forceinline__ void gradient_of(const DTYPE* d, const DTYPE* weight, int at, WIDE (&g)[PACK]) {
    load(d + at, g);
    if (weight) multiply(weight + at, g);
}

extern "C" __global__ void __launch_bounds__(THREADS * ROWS) normalize_vjp(
    const DTYPE* __restrict__ x, long long x_stride,  // (rows, length), rows x_stride elements apart
    const DTYPE* __restrict__ d, long long d_stride,  // like x
    const DTYPE* __restrict__ weight,                 // (length,), or null
    DTYPE* __restrict__ out,                          // (rows, length); or null
    WIDE* __restrict__ mean_to, WIDE* __restrict__ factor_to,  // (rows,)
    int rows, int length, WIDE eps)
{
    const long long row = (long long)blockIdx.x * ROWS + threadIdx.x / THREADS;
    const int end = row < rows ? length : 0;  // the last thread block may have fewer rows
    x += row * x_stride;
    d += row * d_stride;

    WIDE v[HELD][PACK], g[HELD][PACK];  // x and g
    auto read_x = [&](int k, int at) { load(x + at, v[k]); };
    auto read = [&](int k, int at) {
        read_x(k, at);
        if (out) gradient_of(d, weight, at, g[k]);
    };
    if (EACH > 0) over_row<true>(end, read, [](int, int) {});

    WIDE mean = 0, total = 0, square = 0;
    if (CENTRED) {
        over_row<false>(end, read_x, [&](int k, int) {
#pragma unroll
            for (int i = 0; i < PACK; i++) total += v[k][i];
        });
        mean = sum_of_row(total) / length;
    }
    over_row<false>(end, read_x, [&](int k, int) {
#pragma unroll
        for (int i = 0; i < PACK; i++) square += (v[k][i] - mean) * (v[k][i] - mean);
    });
    const WIDE factor = 1 / sqrt(sum_of_row(square) / length + eps);
    if (threadIdx.x % THREADS == 0 && row < rows) {
        mean_to[row] = mean;
        factor_to[row] = factor;
    }
    if (!out) return;

    WIDE of_g = 0, of_product = 0;
    over_row<false>(end, read, [&](int k, int) {
#pragma unroll
        for (int i = 0; i < PACK; i++) {
            of_g += g[k][i];
            of_product += g[k][i] * ((v[k][i] - mean) * factor);
        }
    });
    of_g = CENTRED ? sum_of_row(of_g) / length : WIDE(0);
    of_product = sum_of_row(of_product) / length;
    over_row<false>(end, read, [&](int k, int at) {
        WIDE dx[PACK];
#pragma unroll
        for (int i = 0; i < PACK; i++) dx[i] = factor * (g[k][i] - of_g - (v[k][i] - mean) * factor * of_product);
        store(dx, out + row * length + at);
    });
}
