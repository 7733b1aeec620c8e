// The gradient of x of LayerNorm or RMSNorm, with n = (x - mean) factor and g = d weight: factor (g - mean(g) - n mean(g n)).
// Defined by compiler options: DTYPE; WIDE (double for double, else float); CENTRED (0: RMSNorm, without both means); PACK (elements
// in one access); THREADS (of a row); ROWS (of a thread block; more than one only if THREADS is 32); EACH (packs held by each
// thread of a row in registers; 0: the row is too long and is read again).

#include "numbers.cuh"

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
    __shared__ WIDE shared[32];
    const int thread = threadIdx.x % THREADS;
    const long long row = (long long)blockIdx.x * ROWS + threadIdx.x / THREADS;
    const int end = row < rows ? length : 0;  // the last thread block may have fewer rows
    constexpr int HELD = EACH > 0 ? EACH : 1;
    x += row * x_stride;
    d += row * d_stride;

    WIDE v[HELD][PACK], g[HELD][PACK];  // x and g
    if (EACH > 0) {
#pragma unroll
        for (int each = 0; each < HELD; each++) {
            const int at = (thread + each * THREADS) * PACK;
            if (at >= end) continue;
            load(x + at, v[each]);
            if (out) gradient_of(d, weight, at, g[each]);
        }
    }
    // Call what(x, g, place) for each pack of this thread; g is there only if `with_g`.
    auto over_row = [&](auto what, bool with_g) {
        if (EACH > 0) {
#pragma unroll
            for (int each = 0; each < HELD; each++)
                if ((thread + each * THREADS) * PACK < end) what(v[each], g[each], (thread + each * THREADS) * PACK);
        } else {
#pragma unroll 1
            for (int at = thread * PACK; at < end; at += THREADS * PACK) {
                load(x + at, v[0]);
                if (with_g) gradient_of(d, weight, at, g[0]);
                what(v[0], g[0], at);
            }
        }
    };
    auto sum = [&](WIDE total) { return over_block<Sum, THREADS>(total, WIDE(0), shared); };
    using Held = WIDE (&)[PACK];

    WIDE mean = 0, total = 0, square = 0;
    if (CENTRED) {
        over_row([&](Held y, Held, int) {
#pragma unroll
            for (int i = 0; i < PACK; i++) total += y[i];
        }, false);
        mean = sum(total) / length;
    }
    over_row([&](Held y, Held, int) {
#pragma unroll
        for (int i = 0; i < PACK; i++) square += (y[i] - mean) * (y[i] - mean);
    }, false);
    const WIDE factor = 1 / sqrt(sum(square) / length + eps);
    if (thread == 0 && row < rows) {
        mean_to[row] = mean;
        factor_to[row] = factor;
    }
    if (!out) return;

    WIDE of_g = 0, of_product = 0;
    over_row([&](Held y, Held z, int) {
#pragma unroll
        for (int i = 0; i < PACK; i++) {
            of_g += z[i];
            of_product += z[i] * ((y[i] - mean) * factor);
        }
    }, true);
    of_g = CENTRED ? sum(of_g) / length : WIDE(0);
    of_product = sum(of_product) / length;
    over_row([&](Held y, Held z, int at) {
        WIDE found[PACK];
#pragma unroll
        for (int i = 0; i < PACK; i++) found[i] = factor * (z[i] - of_g - (y[i] - mean) * factor * of_product);
        store(found, out + row * length + at);
    }, true);
}
