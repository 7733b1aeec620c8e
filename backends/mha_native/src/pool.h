// Threads that compute the tasks of a job together with its caller.
#pragma once
#include <stddef.h>

namespace mha {

struct Job {
    void (*task)(void* context, ptrdiff_t index, ptrdiff_t next, char* scratch);  // next: what the thread does then, or -1
    void* context;
    ptrdiff_t count;     // of tasks: 0 ... count - 1, begun in this order
    ptrdiff_t together;  // tasks that one thread had better do one after the other
    size_t scratch;      // bytes of memory, aligned to 64, that each thread needs
};

// GOMP_parallel of GNU's OpenMP: calls function(data) on each thread of the caller's team, and waits for all of them.
typedef void (*Team)(void (*function)(void* data), void* data, unsigned threads, unsigned flags);

// Prepare the pool, before any fork.
void start_pool();

// Compute all tasks on at most ``threads`` threads, the caller's among them. Returns false if memory ran out.
// Any number of threads may call at the same time; a caller never waits for a task that has not begun.
// With a team its threads are used instead of helpers: they may be spinning after other work, and helpers would wait for a
// core.
bool run(const Job& job, int threads, Team team);

}  // namespace mha
