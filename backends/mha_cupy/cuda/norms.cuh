// The loop and the sum of norms and their gradients. Defined by compiler options: DTYPE; WIDE (double for double, else float); CENTRED (0:
// RMSNorm); PACK (elements in one access); THREADS (of a row); ROWS (of a thread block; more than one only if THREADS is 32); EACH
// (packs held by each thread of a row in registers; 0: the row is too long and is read again in each pass).

#pragma once

#include "numbers.cuh"

constexpr int HELD = EACH > 0 ? EACH : 1;

// Call what(k, at) for each pack of this thread: the place `at` of the row, which is pack k of those that are held. read(k, at) is
// called before to hold it: in the first pass only, or in each pass of a row that is too long, whose loop would spill if unrolled (sm_90).
template <bool FIRST, typename Read, typename What> __device__ __forceinline__ void over_row(int end, Read read, What what) {
    const int thread = threadIdx.x % THREADS;
    if (EACH > 0) {
#pragma unroll
        for (int each = 0; each < HELD; each++) {
            const int at = (thread + each * THREADS) * PACK;
            if (at >= end) continue;
            if (FIRST) read(each, at);
            what(each, at);
        }
    } else {
#pragma unroll 1
        for (int at = thread * PACK; at < end; at += THREADS * PACK) {
            read(0, at);
            what(0, at);
        }
    }
}

// The sum over the threads of a row.
__device__ __forceinline__ WIDE sum_of_row(WIDE x) {
    __shared__ WIDE shared[32];
    return over_block<Sum, THREADS>(x, WIDE(0), shared);
}
