// (a, b) -> (a cos - b sin, a sin + b cos) for pairs of features; features beyond the pairs pass through. BACK: by -sin, for gradients.
// Defined by compiler options: DTYPE; WIDE (double for double, else float); INTERLEAVED (1: a pair is two neighbours, 0: a feature
// and its counterpart in the second half); BACK (0 or 1); PACK (elements in one access).

#include "numbers.cuh"

struct Strides { long long of[3]; };  // in elements; 0 if the axis is broadcast

__device__ __forceinline__ long long along(Strides s, int i, int j, int k) { return i * s.of[0] + j * s.of[1] + k * s.of[2]; }

// Each thread rotates PACK pairs, or copies PACK features.
extern "C" __global__ void rotary(
    const DTYPE* __restrict__ x, Strides x_strides,      // (., second, third, features)
    const DTYPE* __restrict__ cos, Strides cos_strides,  // (., second, third, half)
    const DTYPE* __restrict__ sin, Strides sin_strides,
    DTYPE* __restrict__ out,                             // shape of x, contiguous
    int second, int third, int features, int half, unsigned int threads)
{
    const unsigned int which = blockIdx.x * blockDim.x + threadIdx.x;
    if (which >= threads) return;
    const unsigned int of_row = (features - half) / PACK;
    const int row = which / of_row, at = which % of_row * PACK;
    const int k = row % third, j = row / third % second, i = row / third / second;
    x += along(x_strides, i, j, k);
    out += (long long)row * features;

    WIDE a[PACK], b[PACK];
    if (at >= half) {
        load(x + half + at, a);
        store(a, out + half + at);
        return;
    }
    WIDE c[PACK], s[PACK];
    load(cos + along(cos_strides, i, j, k) + at, c);
    load(sin + along(sin_strides, i, j, k) + at, s);
#pragma unroll
    for (int n = 0; n < PACK; n++) s[n] = BACK ? -s[n] : s[n];
#if INTERLEAVED
    load(x + 2 * at, a);
    load(x + 2 * at + PACK, b);
    WIDE pairs[2][PACK];
#pragma unroll
    for (int n = 0; n < PACK; n++) {  // pair n is (2n, 2n + 1) of the 2 PACK features in a and b
        const WIDE first = 2 * n < PACK ? a[2 * n % PACK] : b[2 * n % PACK];
        const WIDE other = 2 * n + 1 < PACK ? a[(2 * n + 1) % PACK] : b[(2 * n + 1) % PACK];
        pairs[2 * n / PACK][2 * n % PACK] = first * c[n] - other * s[n];
        pairs[(2 * n + 1) / PACK][(2 * n + 1) % PACK] = other * c[n] + first * s[n];
    }
    store(pairs[0], out + 2 * at);
    store(pairs[1], out + 2 * at + PACK);
#else
    load(x + at, a);
    load(x + half + at, b);
#pragma unroll
    for (int n = 0; n < PACK; n++) {
        const WIDE first = a[n];
        a[n] = first * c[n] - b[n] * s[n];
        b[n] = b[n] * c[n] + first * s[n];
    }
    store(a, out + at);
    store(b, out + half + at);
#endif
}
