// f'(x) d: each element is read once and written once.
// Defined by compiler options: DTYPE; WIDE (double for double, else float); ACTIVATION; PACK (elements in one access).

#include "numbers.cuh"

// Beyond +-limit every slope is 0 or 1, and a product of 0 and infinity would be NaN. NaN stays NaN.
__device__ __forceinline__ WIDE within(WIDE x, WIDE limit) { return x > limit ? limit : x < -limit ? -limit : x; }

__device__ __forceinline__ WIDE relu(WIDE x, WIDE d) { return x <= 0 ? WIDE(0) : x == x ? d : x; }

// Phi(x) + x phi(x)
__device__ __forceinline__ WIDE gelu(WIDE x, WIDE d) {
    x = within(x, 40);
    return d * (normcdf(x) + x * (exp(x * x / -2) * WIDE(0.39894228040143268)));  // 1 / sqrt(2 pi)
}

// (1 + t) / 2 + x (1 - t^2) z'(x) / 2, with t = tanh(z(x))
__device__ __forceinline__ WIDE gelu_tanh(WIDE x, WIDE d) {
    x = within(x, 40);
    const WIDE c = WIDE(0.79788456080286536), square = WIDE(0.044715) * x * x;  // sqrt(2 / pi)
    const WIDE t = tanh(c * x * (1 + square));
    return d * ((1 + t) / 2 + x * (1 - t * t) * c * (1 + 3 * square) / 2);
}

// s (1 + x (1 - s)), with s = 1 / (1 + e^-x)
__device__ __forceinline__ WIDE silu(WIDE x, WIDE d) {
    x = within(x, 1000);
    const WIDE e = exp(-fabs(x));  // never overflows
    const WIDE s = (x < 0 ? e : WIDE(1)) / (1 + e), opposite = (x < 0 ? WIDE(1) : e) / (1 + e);
    return d * (s * (1 + x * opposite));
}

extern "C" __global__ void activate_vjp(
    const DTYPE* __restrict__ x, long long x_stride,  // (rows, length), rows x_stride elements apart
    const DTYPE* __restrict__ d, long long d_stride,  // like x
    DTYPE* __restrict__ out,                          // (rows, length)
    unsigned int packs, unsigned int packs_of_row)
{
    const unsigned int pack = blockIdx.x * blockDim.x + threadIdx.x;
    if (pack >= packs) return;
    const long long row = pack / packs_of_row;
    const int at = pack % packs_of_row * PACK;
    WIDE y[PACK], d_y[PACK];
    load(x + row * x_stride + at, y);
    load(d + row * d_stride + at, d_y);
#pragma unroll
    for (int i = 0; i < PACK; i++) y[i] = ACTIVATION(y[i], d_y[i]);
    store(y, out + row * packs_of_row * PACK + at);
}
