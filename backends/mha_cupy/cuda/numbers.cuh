// 16-bit floats, widened exactly and narrowed by one rounding to nearest even; reductions over a warp and a thread block.
// Needs no CUDA header, so NVRTC compiles it without a CUDA toolkit.

#pragma once

struct float16 { unsigned short bits; };
struct bfloat16 { unsigned short bits; };

#ifdef __CUDA_ARCH__
__device__ __forceinline__ float wide(float16 x) {
    float y;
    asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits));
    return y;
}
__device__ __forceinline__ void narrow(float x, float16& y) { asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y.bits) : "f"(x)); }
#endif

__device__ __forceinline__ float wide(bfloat16 x) { return __int_as_float(int(x.bits) << 16); }
__device__ __forceinline__ float wide(float x) { return x; }
__device__ __forceinline__ double wide(double x) { return x; }

__device__ __forceinline__ void narrow(float x, bfloat16& y) {
    unsigned int bits = (unsigned int)__float_as_int(x);
    bool nan = (bits & 0x7fffffffu) > 0x7f800000u;
    y.bits = nan ? 0x7fff : (unsigned short)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}
__device__ __forceinline__ void narrow(float x, float& y) { y = x; }
__device__ __forceinline__ void narrow(double x, double& y) { y = x; }

template <typename T> __device__ __forceinline__ T infinity() { return T(__int_as_float(0x7f800000)); }

struct Max {
    template <typename T> static __device__ __forceinline__ T of(T a, T b) { return a > b || a != a ? a : b; }  // NaN stays NaN
};
struct Sum {
    template <typename T> static __device__ __forceinline__ T of(T a, T b) { return a + b; }
};

// Reduce over COUNT neighbouring lanes of a warp, a power of two. Each lane receives the result.
template <typename Op, int COUNT, typename T> __device__ __forceinline__ T over_lanes(T x) {
#pragma unroll
    for (int step = COUNT / 2; step > 0; step >>= 1) x = Op::of(x, __shfl_xor_sync(0xffffffffu, x, step));
    return x;
}

// Reduce over the COUNT threads of a thread block. Each receives the result. `shared` has room for 32. The order is fixed.
template <typename Op, int COUNT, typename T> __device__ __forceinline__ T over_block(T x, T none, T* shared) {
    x = over_lanes<Op, 32>(x);
    if (COUNT == 32) return x;
    __syncthreads();  // all threads have read what `shared` held before
    if ((threadIdx.x & 31) == 0) shared[threadIdx.x >> 5] = x;
    __syncthreads();
    x = (threadIdx.x & 31) < COUNT / 32 ? shared[threadIdx.x & 31] : none;
    return over_lanes<Op, 32>(x);
}

// COUNT neighbours in one access of at most 16 bytes: `from` and `to` are aligned to it.
template <typename T, int COUNT> struct alignas(sizeof(T) * COUNT) Pack { T of[COUNT]; };

template <typename T, typename W, int COUNT> __device__ __forceinline__ void load(const T* from, W (&to)[COUNT]) {
    const Pack<T, COUNT> pack = *reinterpret_cast<const Pack<T, COUNT>*>(from);
#pragma unroll
    for (int i = 0; i < COUNT; i++) to[i] = wide(pack.of[i]);
}
template <typename T, typename W, int COUNT> __device__ __forceinline__ void add(const T* from, W (&to)[COUNT]) {
    W more[COUNT];
    load(from, more);
#pragma unroll
    for (int i = 0; i < COUNT; i++) to[i] += more[i];
}
template <typename T, typename W, int COUNT> __device__ __forceinline__ void multiply(const T* from, W (&to)[COUNT]) {
    W more[COUNT];
    load(from, more);
#pragma unroll
    for (int i = 0; i < COUNT; i++) to[i] *= more[i];
}
template <typename T, typename W, int COUNT> __device__ __forceinline__ void store(const W (&from)[COUNT], T* to) {
    Pack<T, COUNT> pack;
#pragma unroll
    for (int i = 0; i < COUNT; i++) narrow(from[i], pack.of[i]);
    *reinterpret_cast<Pack<T, COUNT>*>(to) = pack;
}
