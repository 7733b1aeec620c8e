// The CUDA that our kernels use, on the host: the threads of a block are fibers that take turns, and meet where CUDA's would.
// It shows what a kernel computes, and nothing of how fast, nor of a device's own arithmetic (its exp, log and tanh).

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <ucontext.h>
#include <utility>
#include <vector>

#define __global__
#define __device__
#define __forceinline__ inline
#define __restrict__
#define __launch_bounds__(...)
#define __shared__ static  // blocks run one after another

struct Dim { unsigned int x, y, z; };
inline Dim threadIdx, blockIdx, blockDim, gridDim;

namespace host {

constexpr std::size_t STACK = 1 << 16;

struct Fiber {
    ucontext_t context;
    std::unique_ptr<char[]> stack{new char[STACK]};  // kept from block to block
    bool done = false;
    unsigned long long slot = 0;  // of a shuffle
};

inline std::vector<Fiber> fibers;
inline ucontext_t scheduler;
inline unsigned int current;

inline void wait() { swapcontext(&fibers[current].context, &scheduler); }  // until all others have come as far

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

    // Rounds: in each, every fiber runs to its next meeting. A kernel in which some threads skip one is wrong on a device
    // too, and ends here with 1: in one round all fibers must be done, or none.
    static int run(Dim grid, Dim block) {
        gridDim = grid;
        blockDim = block;
        for (blockIdx = {0, 0, 0}; blockIdx.x < grid.x; blockIdx.x++) {
            fibers.resize(block.x);
            for (Fiber& fiber : fibers) {
                fiber.done = false;
                getcontext(&fiber.context);
                fiber.context.uc_stack.ss_sp = fiber.stack.get();
                fiber.context.uc_stack.ss_size = STACK;
                makecontext(&fiber.context, body, 0);
            }
            for (unsigned int done = 0; done < block.x;) {
                done = 0;
                for (current = 0; current < block.x; current++) {
                    threadIdx = {current, 0, 0};
                    if (!fibers[current].done) swapcontext(&scheduler, &fibers[current].context);
                    done += fibers[current].done;
                }
                if (done != 0 && done != block.x) return 1;
            }
        }
        return 0;
    }
};

template <typename... Args> int launch(void (*kernel)(Args...), unsigned int grid, unsigned int block, void** args) {
    Launch<Args...>::kernel = kernel;
    Launch<Args...>::args = args;
    return Launch<Args...>::run({grid, 1, 1}, {block, 1, 1});
}

}  // namespace host

inline void __syncthreads() { host::wait(); }

template <typename T> T __shfl_xor_sync(unsigned int, T x, int step) {
    std::memcpy(&host::fibers[host::current].slot, &x, sizeof(T));
    host::wait();
    T y;
    std::memcpy(&y, &host::fibers[host::current ^ step].slot, sizeof(T));
    host::wait();
    return y;
}

inline float normcdf(float x) { return float(std::erfc(-x / std::sqrt(2.0)) / 2); }
inline double normcdf(double x) { return double(std::erfc(-x / std::sqrt(2.0L)) / 2); }

inline float __int_as_float(int x) { float y; std::memcpy(&y, &x, 4); return y; }
inline int __float_as_int(float x) { int y; std::memcpy(&y, &x, 4); return y; }

#include "numbers.cuh"

inline float wide(float16 x) { _Float16 y; std::memcpy(&y, &x, 2); return y; }
inline void narrow(float x, float16& y) { _Float16 z = (_Float16)x; std::memcpy(&y, &z, 2); }
