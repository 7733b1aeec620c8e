// Tiles of 16-bit floats in shared memory, and their products on tensor cores, for sm_80 and later.
// A warp holds matrices in registers as the PTX ISA defines for mma.m16n8k16: in lane i, i / 4 is a row of A and of the sums, and
// a column of B; 2 * (i % 4) and the next one are columns of A and of the sums, and rows of B.

#pragma once

#include "numbers.cuh"

#ifdef __CUDA_ARCH__
#define DYNAMIC_SHARED(name) extern __shared__ __align__(16) unsigned char name[]

__device__ __forceinline__ unsigned int in_shared(const void* at) { return (unsigned int)__cvta_generic_to_shared(at); }

// sums (16 x 8) += a (16 x 16) b (16 x 8), in float32.
__device__ __forceinline__ void multiply_add(
    float (&sums)[4], const unsigned int (&a)[4], unsigned int b0, unsigned int b1, float16) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
__device__ __forceinline__ void multiply_add(
    float (&sums)[4], const unsigned int (&a)[4], unsigned int b0, unsigned int b1, bfloat16) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Load four 8 x 8 matrices. Lane i passes the address of row i % 8 of matrix i / 8, and receives two neighbours of a row of each.
__device__ __forceinline__ void load_matrices(const void* row, unsigned int (&to)[4]) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"(in_shared(row)) : "memory");
}
// The same, with each matrix transposed.
__device__ __forceinline__ void load_transposed(const void* row, unsigned int (&to)[4]) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"(in_shared(row)) : "memory");
}

// Copy 16 bytes into shared memory, zeros if not `is_there`. This thread sees them after wait_for_copies(), others after a barrier.
__device__ __forceinline__ void copy_later(void* to, const void* from, bool is_there) {
    const int bytes = is_there ? 16 : 0;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" :: "r"(in_shared(to)), "l"(from), "r"(bytes) : "memory");
}
__device__ __forceinline__ void wait_for_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

// Two floats in one register, the first in the lower half, each rounded to nearest even.
__device__ __forceinline__ unsigned int pair(float first, float second, float16) {
    unsigned int both;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(second), "f"(first));
    return both;
}
__device__ __forceinline__ unsigned int pair(float first, float second, bfloat16) {
    unsigned int both;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(second), "f"(first));
    return both;
}
#endif

// ROWS rows of WIDTH elements, a multiple of 16. Rows begin an odd multiple of 16 bytes apart, so that eight consecutive rows are
// in different banks.
template <typename T, int ROWS, int WIDTH> struct Tile {
    static constexpr int PITCH = WIDTH + 8, BYTES = ROWS * PITCH * 2;
    T* at;

    __device__ __forceinline__ T* of(int row, int column) const { return at + row * PITCH + column; }

    // Copy rows of `length` elements, with zeros beyond, by THREADS threads, COUNT elements at a time. `begin(row)` is a row's
    // address, null for a row of zeros. COUNT is 8 if all rows are aligned to 16 bytes and length is a multiple of 8, else 1.
    template <int THREADS, int COUNT, typename Begin>
    __device__ __forceinline__ void copy_from(Begin begin, int length, const T* anywhere) const {
        constexpr int PACKS = WIDTH / COUNT, STEP = THREADS / PACKS;
        if constexpr (COUNT == 8) {  // each thread keeps its column
            const int first = threadIdx.x / PACKS, column = threadIdx.x % PACKS * COUNT;
            if (THREADS % PACKS != 0 && first >= STEP) return;
#pragma unroll
            for (int at = 0; at < ROWS; at += STEP) {
                const int row = at + first;
                if (ROWS % STEP != 0 && row >= ROWS) break;
                const T* from = begin(row);
                const bool is_there = from && column < length;
                copy_later(of(row, column), is_there ? from + column : anywhere, is_there);
            }
        } else {
#pragma unroll 1
            for (int i = threadIdx.x; i < ROWS * PACKS; i += THREADS) {
                const int row = i / PACKS, column = i % PACKS;
                const T* from = begin(row);
                *of(row, column) = from && column < length ? from[column] : T{0};
            }
        }
    }
};

// A warp holds STACK times 16 rows of sums, each in COUNT / 8 matrices: of the four numbers that a lane holds of one, two are in row
// lane / 4 and two in row lane / 4 + 8.
template <int STACK, int N> __device__ __forceinline__ void clear(float (&sums)[STACK][N][4]) {
#pragma unroll
    for (int t = 0; t < STACK; t++)
#pragma unroll
        for (int n = 0; n < N; n++) sums[t][n][0] = sums[t][n][1] = sums[t][n][2] = sums[t][n][3] = 0;
}

// products = the rows of x from `row` on, times y^T.
template <typename T, int STACK, int ROWS, int COUNT, int WIDTH>
__device__ __forceinline__ void set_product(
    float (&products)[STACK][COUNT / 8][4], const Tile<T, ROWS, WIDTH>& x, const Tile<T, COUNT, WIDTH>& y, int row, int lane)
{
    clear(products);
#pragma unroll 2
    for (int d = 0; d < WIDTH; d += 16) {
        unsigned int a[STACK][4];
#pragma unroll
        for (int t = 0; t < STACK; t++) load_matrices(x.of(row + t * 16 + lane % 16, d + lane / 16 * 8), a[t]);
#pragma unroll
        for (int n = 0; n < COUNT; n += 16) {
            unsigned int b[4];
            load_matrices(y.of(n + lane / 16 * 8 + lane % 8, d + lane / 8 % 2 * 8), b);
#pragma unroll
            for (int t = 0; t < STACK; t++) {
                multiply_add(products[t][n / 8], a[t], b[0], b[1], T{});
                multiply_add(products[t][n / 8 + 1], a[t], b[2], b[3], T{});
            }
        }
    }
}

// sums += factor weights y, with the weights rounded after they were multiplied.
template <typename T, int STACK, int COUNT, int WIDTH>
__device__ __forceinline__ void add_product(
    float (&sums)[STACK][WIDTH / 8][4], const float (&weights)[STACK][COUNT / 8][4], const Tile<T, COUNT, WIDTH>& y, int lane,
    float factor)
{
#pragma unroll
    for (int k = 0; k < COUNT; k += 16) {
        unsigned int w[STACK][4];
#pragma unroll
        for (int t = 0; t < STACK; t++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const float* two = &weights[t][k / 8 + i / 2][i % 2 * 2];
                w[t][i] = pair(two[0] * factor, two[1] * factor, T{});
            }
#pragma unroll
        for (int n = 0; n < WIDTH; n += 16) {
            unsigned int b[4];
            load_transposed(y.of(k + lane % 16, n + lane / 16 * 8), b);
#pragma unroll
            for (int t = 0; t < STACK; t++) {
                multiply_add(sums[t][n / 8], w[t], b[0], b[1], T{});
                multiply_add(sums[t][n / 8 + 1], w[t], b[2], b[3], T{});
            }
        }
    }
}

constexpr float LOG2E = 1.44269504088896341f;  // weights are computed as powers of 2

// Weights are multiplied by this before they are rounded: small float16 weights would be subnormal otherwise.
__device__ __forceinline__ constexpr float weight_factor(float16) { return 16384; }
__device__ __forceinline__ constexpr float weight_factor(bfloat16) { return 1; }

// Store two neighbours, or one unless `both`, in one access if pairs are aligned.
__device__ __forceinline__ void store_pair(float first, float second, float* to, bool both, bool aligned) {
    const float two[2] = {first, second};
    if (aligned) return store(two, to);
    to[0] = first;
    if (both) to[1] = second;
}
template <typename T> __device__ __forceinline__ void store_pair(float first, float second, T* to, bool both, bool aligned) {
    const unsigned int two = pair(first, second, T{});
    if (aligned) return void(*reinterpret_cast<unsigned int*>(to) = two);
    to[0].bits = (unsigned short)two;
    if (both) to[1].bits = (unsigned short)(two >> 16);
}

// Write half of the sums that a lane holds, times a factor, to their row of `width` numbers.
template <int N, typename T>
__device__ __forceinline__ void store_row(const float (&sums)[N][4], int half, float factor, T* row, int width, int lane) {
#pragma unroll
    for (int n = 0; n < N; n++) {
        const int column = n * 8 + lane % 4 * 2;
        if (column < width)
            store_pair(
                sums[n][half * 2] * factor, sums[n][half * 2 + 1] * factor, row + column, column + 1 < width, width % 2 == 0);
    }
}
