// Helper threads, which start when they are first needed, sleep between jobs, and serve all callers.
//
// A helper joins the oldest job that has tasks left and fewer threads than it asked for.
#include "pool.h"

#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

namespace mha {
namespace {

struct Running {
    Job job;
    ptrdiff_t next = 0;      // the first task that has not begun; atomic
    int helpers = 0;         // inside; atomic, changed with the lock held
    int most;                // helpers, at most
    bool failed = false;     // memory ran out; atomic
    Running* later = nullptr;
};

pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
pthread_cond_t wanted = PTHREAD_COND_INITIALIZER;    // a job has come
pthread_cond_t left = PTHREAD_COND_INITIALIZER;      // a helper has left a job
Running* jobs = nullptr;                             // oldest first
int started = 0, asleep = 0;
bool forked = false;                                 // a forked process lacks the threads of a team that its parent used

constexpr int SPINS = 2000;  // checks of a job's helpers, a few microseconds, before its caller sleeps

struct Memory {
    void* block;
    char* data;      // in it, aligned
    size_t size;
};
pthread_key_t memory_key;

void free_memory(void* memory) {
    free(((Memory*)memory)->block);
    free(memory);
}

// The calling thread's memory, which it keeps for its next task; null if there is none.
char* scratch(size_t size) {
    Memory* m = (Memory*)pthread_getspecific(memory_key);
    if (!m) {
        m = (Memory*)calloc(1, sizeof(Memory));
        if (!m || pthread_setspecific(memory_key, m)) return nullptr;
    }
    if (!m->data || m->size < size) {
        free(m->block);
        m->block = malloc(size + 64), m->size = 0;
        if (!m->block) return nullptr;
        m->data = (char*)(((uintptr_t)m->block + 63) / 64 * 64), m->size = size;
    }
    return m->data;
}

// Take tasks first ... end, several at once as long as many are left; none when all are taken.
void claim(Running& r, ptrdiff_t& first, ptrdiff_t& end) {
    first = __atomic_load_n(&r.next, __ATOMIC_RELAXED);
    do {
        ptrdiff_t left_over = r.job.count - first, several = r.job.together < left_over ? r.job.together : left_over;
        end = first + (left_over > 8 * (r.most + 1) * several ? several : left_over > 0);
    } while (!__atomic_compare_exchange_n(&r.next, &first, end, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
}

void work(Running& r) {
    char* memory = scratch(r.job.scratch);
    if (!memory) {
        __atomic_store_n(&r.failed, true, __ATOMIC_RELAXED);
        return;
    }
    ptrdiff_t index, end, next, next_end;
    for (claim(r, index, end); index < end; index = next, end = next_end) {
        claim(r, next, next_end);  // one run of tasks ahead, so that what comes next is known
        for (; index < end; ++index)
            r.job.task(r.job.context, index, index + 1 < end ? index + 1 : next < next_end ? next : -1, memory);
    }
}

bool has_tasks(const Running& r) { return __atomic_load_n(&r.next, __ATOMIC_RELAXED) < r.job.count; }

void* help(void*) {
    pthread_mutex_lock(&lock);
    for (;;) {
        Running* r = jobs;
        while (r && (r->helpers >= r->most || !has_tasks(*r))) r = r->later;
        if (!r) {
            ++asleep;
            pthread_cond_wait(&wanted, &lock);
            --asleep;
            continue;
        }
        __atomic_store_n(&r->helpers, r->helpers + 1, __ATOMIC_RELAXED);
        pthread_mutex_unlock(&lock);
        work(*r);
        pthread_mutex_lock(&lock);
        __atomic_store_n(&r->helpers, r->helpers - 1, __ATOMIC_RELEASE);  // the caller may return now, so r is gone
        pthread_cond_broadcast(&left);
    }
    return nullptr;
}

#if !defined(_WIN32)
// A forked process has no helpers; its parent's jobs are not its own.
void before_fork() { pthread_mutex_lock(&lock); }
void after_fork_in_parent() { pthread_mutex_unlock(&lock); }
void after_fork_in_child() {
    jobs = nullptr;
    started = asleep = 0;
    forked = true;
    pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    pthread_cond_t condition = PTHREAD_COND_INITIALIZER;
    memcpy(&lock, &mutex, sizeof mutex);
    memcpy(&wanted, &condition, sizeof condition);
    memcpy(&left, &condition, sizeof condition);
}
#endif

// Start or wake helpers for a job. The lock is held.
void call_helpers(int count) {
    for (; started < count; ++started) {
        pthread_t thread;
        if (pthread_create(&thread, nullptr, help, nullptr)) break;  // the others, or the caller alone, do the work
        pthread_detach(thread);
    }
    for (int i = 0; i < count && i < asleep; ++i) pthread_cond_signal(&wanted);
}

void work_in_team(void* running) { work(*(Running*)running); }

}  // namespace

void start_pool() {
    pthread_key_create(&memory_key, free_memory);
#if !defined(_WIN32)
    pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
#endif
}

bool run(const Job& job, int threads, Team team) {
    Running r;
    r.job = job;
    ptrdiff_t most = job.count - 1 < threads - 1 ? job.count - 1 : threads - 1;
    r.most = (int)(most < 0 ? 0 : most);
    if (r.most && team && !forked) {
        team(work_in_team, &r, (unsigned)threads, 0);  // all of them: a smaller team would end the others for good
        return !__atomic_load_n(&r.failed, __ATOMIC_RELAXED);
    }
    if (r.most) {
        pthread_mutex_lock(&lock);
        Running** last = &jobs;
        while (*last) last = &(*last)->later;
        *last = &r;
        call_helpers(r.most);
        pthread_mutex_unlock(&lock);
    }
    work(r);
    if (r.most) {
        pthread_mutex_lock(&lock);
        Running** at = &jobs;
        while (*at != &r) at = &(*at)->later;
        *at = r.later;
        pthread_mutex_unlock(&lock);
        for (int i = 0; i < SPINS && __atomic_load_n(&r.helpers, __ATOMIC_ACQUIRE); ++i)
#if defined(__x86_64__)
            __builtin_ia32_pause();
#else
            __asm__ volatile("yield");
#endif
        pthread_mutex_lock(&lock);
        while (__atomic_load_n(&r.helpers, __ATOMIC_ACQUIRE)) pthread_cond_wait(&left, &lock);
        pthread_mutex_unlock(&lock);
    }
    return !__atomic_load_n(&r.failed, __ATOMIC_RELAXED);
}

}  // namespace mha
