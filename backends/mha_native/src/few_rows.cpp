// Linear maps of few rows on several threads, each of which takes some outputs, and the function of the Python module.
#include "attend.h"
#include "buffers.h"
#include "pool.h"

namespace mha {
namespace {

constexpr ptrdiff_t COLUMNS = 64;       // outputs of a task are a multiple of it
constexpr ptrdiff_t TASKS = 4;          // for each thread, at least, so that no thread waits long for another
constexpr double SERIAL = 1 << 18;      // bytes of a weight, below which waking other threads takes longer

struct Tasks {
    const FewRowsMap& m;
    ptrdiff_t outputs;  // of a task
};

void compute(void* context, ptrdiff_t index, ptrdiff_t, char* scratch) {
    const Tasks& tasks = *(const Tasks*)context;
    const ptrdiff_t first = index * tasks.outputs, left = tasks.m.outputs - first;
    chosen->few_rows.block(tasks.m, first, first + (left < tasks.outputs ? left : tasks.outputs), scratch);
}

}  // namespace

bool linear_few_rows(const FewRowsMap& m, int threads, void* team) {
    if ((double)m.inputs * m.outputs * (m.half ? 2 : 4) < SERIAL) threads = 1;
    const ptrdiff_t count = threads == 1 ? 1 : TASKS * threads, columns = (m.outputs + count - 1) / count;
    const Tasks tasks = {m, (columns + COLUMNS - 1) / COLUMNS * COLUMNS};
    const ptrdiff_t made = (m.outputs + tasks.outputs - 1) / tasks.outputs;
    return run({compute, (void*)&tasks, made, 1, chosen->few_rows.scratch(m)}, threads, (Team)team);
}

PyObject* call_linear_few_rows(PyObject*, PyObject* arguments) {
    const char* kind;
    int threads, by_output;
    unsigned long long team, x, w, b, y;  // addresses; team and b may be 0
    FewRowsMap m = {};
    if (!PyArg_ParseTuple(arguments, "siK(nnn)KnKnpKKn", &kind, &threads, &team, &m.rows, &m.inputs, &m.outputs, &x, &m.x_step,
                          &w, &m.w_step, &by_output, &b, &y, &m.y_step))
        return nullptr;
    m.half = kind[0] == 'H', m.by_output = by_output;
    m.x = (const char*)(uintptr_t)x, m.w = (const char*)(uintptr_t)w;
    m.b = (const char*)(uintptr_t)b, m.y = (char*)(uintptr_t)y;
    PyThreadState* state = PyEval_SaveThread();
    const bool done = linear_few_rows(m, threads, (void*)(uintptr_t)team);
    PyEval_RestoreThread(state);
    if (!done) return PyErr_NoMemory();
    Py_RETURN_NONE;
}

}  // namespace mha
