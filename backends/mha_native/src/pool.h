// Threads that compute the tasks of a job together with its caller.
#pragma once
#include <stddef.h>

namespace mha {

struct Job {
    void (*task)(void* context, ptrdiff_t index, char* scratch);
    void* context;
    ptrdiff_t count;     // of tasks: 0 ... count - 1, begun in this order
    size_t scratch;      // bytes of memory, aligned to 64, that each thread needs
};

// Compute all tasks on at most ``threads`` threads, the caller's among them. Returns false if memory ran out.
// Any number of threads may call at the same time; a caller never waits for a task that has not begun.
bool run(const Job& job, int threads);

}  // namespace mha
