// f(x + b) * (gate + gate_b) + residual: each element is read once and written once.
// Defined by compiler options: DTYPE; WIDE (double for double, else float); ACTIVATION; PACK (elements in one access).

#include "numbers.cuh"

__device__ __forceinline__ WIDE identity(WIDE x) { return x; }

__device__ __forceinline__ WIDE relu(WIDE x) { return x < 0 ? WIDE(0) : x; }  // NaN stays NaN

// x Phi(x), accurate in the lower tail. Below -40 the result is 0; for x = -inf the product would be NaN.
__device__ __forceinline__ WIDE gelu(WIDE x) { return x < -40 ? WIDE(0) : x * normcdf(x); }

// x (1 + tanh(z)) / 2 = x / (1 + e^-2z), which has no cancellation in the lower tail.
__device__ __forceinline__ WIDE gelu_tanh(WIDE x) {
    const WIDE z = WIDE(0.79788456080286536) * (x + WIDE(0.044715) * x * x * x);  // sqrt(2 / pi)
    return x < -40 ? WIDE(0) : x / (1 + exp(-2 * z));
}

__device__ __forceinline__ WIDE silu(WIDE x) {
    const WIDE e = exp(-fabs(x));  // never overflows
    return x < -1000 ? WIDE(0) : x * (x < 0 ? e : WIDE(1)) / (1 + e);
}

extern "C" __global__ void activate(
    const DTYPE* x, long long x_stride,                     // (rows, length), rows x_stride elements apart
    const DTYPE* __restrict__ b,                            // (length,), or null
    const DTYPE* __restrict__ gate, long long gate_stride,  // like x, or null
    const DTYPE* __restrict__ gate_b,                       // like b
    const DTYPE* __restrict__ residual, long long residual_stride,
    DTYPE* out,                                             // (rows, length); may be x
    unsigned int packs, unsigned int packs_of_row)
{
    const unsigned int pack = blockIdx.x * blockDim.x + threadIdx.x;
    if (pack >= packs) return;
    const long long row = pack / packs_of_row;
    const int at = pack % packs_of_row * PACK;
    WIDE y[PACK];
    load(x + row * x_stride + at, y);
    if (b) add(b + at, y);
#pragma unroll
    for (int i = 0; i < PACK; i++) y[i] = ACTIVATION(y[i]);
    if (gate) {
        WIDE by[PACK];
        load(gate + row * gate_stride + at, by);
        if (gate_b) add(gate_b + at, by);
#pragma unroll
        for (int i = 0; i < PACK; i++) y[i] *= by[i];
    }
    if (residual) add(residual + row * residual_stride + at, y);
    store(y, out + row * packs_of_row * PACK + at);
}
