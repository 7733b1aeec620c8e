// The CUDA that our kernels use, on the host: the threads of a block are fibers that take turns and synchronize as CUDA's do.
// It shows what a kernel computes, but not how fast, nor with which rounding a device computes exp, log and tanh.

#include <cmath>
#include <csetjmp>
#include <cstring>
#include <ucontext.h>
#include <utility>
#include <vector>
#include <xmmintrin.h>

#define __global__
#define __device__
#define __forceinline__ inline
#define __restrict__
#define __launch_bounds__(...)
#define __shared__ static  // thread blocks run one after another

template <typename T> T max(T a, T b) { return a < b ? b : a; }
template <typename T> T min(T a, T b) { return b < a ? b : a; }

struct Dim { unsigned int x, y, z; };
inline Dim threadIdx, blockIdx, blockDim, gridDim;

namespace host {

constexpr std::size_t STACK = 1 << 16;

struct Copy { void* to; const void* from; bool is_there; };

struct Fiber {
    ucontext_t start;
    std::jmp_buf place;
    std::vector<char> stack = std::vector<char>(STACK);  // reused by all thread blocks
    bool begun = false, done = false, at_barrier = false;
    unsigned int slot[8];         // what this lane shows to the others of its warp
    std::vector<Copy> to_be_done;  // asynchronous copies that are still pending
};

inline std::vector<Fiber> fibers;
inline std::jmp_buf scheduler;
inline unsigned int current;
inline bool is_misaligned;
inline std::vector<unsigned char> shared;  // of a thread block, followed by BEYOND bytes that must stay UNTOUCHED
constexpr unsigned int BEYOND = 64;
constexpr unsigned char UNTOUCHED = 0xff;  // a NaN in every type

// Wait until all others of the warp have come as far. Uses jumps because swapcontext makes a system call each time.
inline void wait() {
    if (!_setjmp(fibers[current].place)) _longjmp(scheduler, 1);
}

[[gnu::noinline]] inline void go_on(Fiber& fiber) {
    if (_setjmp(scheduler)) return;
    if (fiber.begun) _longjmp(fiber.place, 1);
    fiber.begun = true;
    setcontext(&fiber.start);
}

template <typename... Args, std::size_t... Index>
void call(void (*kernel)(Args...), void** args, std::index_sequence<Index...>) {
    kernel(*static_cast<std::remove_reference_t<Args>*>(args[Index])...);
}

template <typename... Args> struct Launch {
    static inline void (*kernel)(Args...);
    static inline void** args;

    static void body() {
        call(kernel, args, std::index_sequence_for<Args...>{});
        fibers[current].done = true;
        wait();
    }

    // Run a warp to its next barrier or its end. In each round, every fiber runs to its next synchronization point. Either all of
    // them have then come to a barrier or the end, or none has; else the result is false.
    static bool to_barrier(unsigned int first, unsigned int end) {
        for (unsigned int stopped = 0; stopped == 0;) {
            for (current = first; current < end; current++) {
                threadIdx = {current, 0, 0};
                go_on(fibers[current]);
                stopped += fibers[current].done || fibers[current].at_barrier;
            }
            if (stopped != 0 && stopped != end - first) return false;
        }
        return true;
    }

    // A warp runs to a barrier before the next warp starts, so that a missing barrier shows: data is then overwritten or not yet
    // there. A kernel in which some threads skip a synchronization point is wrong on a device too; the result is then 1.
    static int run(Dim grid, Dim block) {
        gridDim = grid;
        blockDim = block;
        for (blockIdx = {0, 0, 0}; blockIdx.x < grid.x; blockIdx.x++) {
            fibers.resize(block.x);
            for (Fiber& fiber : fibers) {
                fiber.begun = fiber.done = fiber.at_barrier = false;
                getcontext(&fiber.start);
                fiber.start.uc_stack.ss_sp = fiber.stack.data();
                fiber.start.uc_stack.ss_size = STACK;
                makecontext(&fiber.start, body, 0);
            }
            shared.assign(shared.size(), UNTOUCHED);
            for (unsigned int done = 0; done < block.x;) {
                for (unsigned int first = 0; first < block.x; first += 32)
                    if (!to_barrier(first, min(first + 32, block.x))) return 1;
                done = 0;
                for (Fiber& fiber : fibers) {
                    done += fiber.done;
                    fiber.at_barrier = false;
                }
                if (done != 0 && done != block.x) return 1;
            }
            for (auto byte = shared.end() - BEYOND; byte != shared.end(); byte++)
                if (*byte != UNTOUCHED) return 2;
        }
        return 0;
    }
};

template <typename... Args>
int launch(void (*kernel)(Args...), unsigned int grid, unsigned int block, unsigned int shared_bytes, bool flushes, void** args) {
    shared.resize(shared_bytes + BEYOND);
    Launch<Args...>::kernel = kernel;
    Launch<Args...>::args = args;
    is_misaligned = false;
    const unsigned int before = _mm_getcsr();
    if (flushes) _mm_setcsr(before | 0x8040);  // subnormal results and operands are flushed to zero
    const int status = Launch<Args...>::run({grid, 1, 1}, {block, 1, 1});
    _mm_setcsr(before);
    return status == 0 && is_misaligned ? 3 : status;
}

}  // namespace host

inline void __syncthreads() {
    host::fibers[host::current].at_barrier = true;
    host::wait();
}

template <typename T> T __shfl_xor_sync(unsigned int, T x, int step) {
    std::memcpy(host::fibers[host::current].slot, &x, sizeof(T));
    host::wait();
    T y;
    std::memcpy(&y, host::fibers[host::current ^ step].slot, sizeof(T));
    host::wait();
    return y;
}

inline float normcdf(float x) { return float(std::erfc(-x / std::sqrt(2.0)) / 2); }
inline double normcdf(double x) { return double(std::erfc(-x / std::sqrt(2.0L)) / 2); }

inline float __int_as_float(int x) { float y; std::memcpy(&y, &x, 4); return y; }
inline int __float_as_int(float x) { int y; std::memcpy(&y, &x, 4); return y; }

#include "numbers.cuh"
#include "tiles.h"

inline float wide(float16 x) { _Float16 y; std::memcpy(&y, &x, 2); return y; }
inline void narrow(float x, float16& y) { _Float16 z = (_Float16)x; std::memcpy(&y, &z, 2); }
