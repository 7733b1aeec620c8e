// The Python module mha_native._native, by CPython's stable interface of 3.11, which free threads lack (CMake knows):
//
//     plan(kind, batch, heads, key_heads, queries, keys, width, value_width, scale, softcap, low, high, team) -> capsule
//     is_worth_threads(plan) -> bool
//     attend(plan, threads, query, key, value, out, lse, sink, mask, bias, distance, lengths, sequences, tiles, words,
//            [key_scale, value_scale]) -> None
//     attend_vjp(plan, ..., words, d_out, d_lse, d_query, d_key, d_value) -> None
//     pack_int8(values, scale) -> capsule; linear_int8(capsule, threads, team, x, b, y) -> None
//     linear_few_rows(kind, threads, team, (rows, inputs, outputs), x, x_step, w, w_step, by_output, b, y, y_step) -> None
//
// An array is an object with the buffer protocol, or (address, kind, shape, strides in numbers). Its shape is compared with
// the plan's before anything is read; axes of length 1, and missing batch axes, broadcast. None stands for no array.
#include "buffers.h"

#include <stdlib.h>

#include "arguments.h"
#include "attend.h"
#include "pool.h"

using namespace mha;

const Level* mha::chosen = nullptr;

namespace {

PyObject* refuse(const Refusal& why) {
    PyErr_SetString(why.of_type ? PyExc_TypeError : PyExc_ValueError, why.text);
    return nullptr;
}

bool read_array(PyObject* x, const Given& g, const Problem& p, Held& held) {
    if (x == Py_None && g.optional) return true;
    View v = {};
    PyObject *sizes = nullptr, *strides = nullptr;
    Py_buffer* b = nullptr;
    if (PyTuple_Check(x)) {
        unsigned long long address;
        if (!PyArg_ParseTuple(x, "KsO!O!", &address, &v.format, &PyTuple_Type, &sizes, &PyTuple_Type, &strides)) return false;
        v.data = (char*)(uintptr_t)address;
        v.ndim = PyTuple_Size(sizes) == PyTuple_Size(strides) ? PyTuple_Size(sizes) : MOST_AXES + 1;
        v.size = v.format[0] == 'f' ? 4 : v.format[0] == 'd' ? 8 : v.format[0] == '?' || v.format[0] == 'b' ? 1 : 2;
    } else {
        if (!(b = held.add(x, PyBUF_STRIDES | (g.written ? PyBUF_WRITABLE : 0)))) return false;
        v.data = (char*)b->buf, v.ndim = b->ndim, v.size = b->itemsize, v.format = b->format ? b->format : "B";
    }
    for (int i = 0; i < v.ndim && v.ndim <= MOST_AXES; ++i) {
        v.shape[i] = b ? b->shape[i] : PyLong_AsSsize_t(PyTuple_GetItem(sizes, i));
        v.steps[i] = b ? b->strides[i] : PyLong_AsSsize_t(PyTuple_GetItem(strides, i)) * v.size;
    }
    Refusal why;
    return !PyErr_Occurred() && (keep(v, g, p, why) || refuse(why));
}

void free_plan(PyObject* capsule) { free(PyCapsule_GetPointer(capsule, "mha_native.plan")); }

PyObject* plan(PyObject*, PyObject* arguments) {
    const char* kind;
    PyObject *batch, *low, *high;
    Problem p = {};
    unsigned long long team;  // the address of GOMP_parallel, or 0
    if (!PyArg_ParseTuple(arguments, "sO!nnnnnnddOOK", &kind, &PyTuple_Type, &batch, &p.heads, &p.key_heads, &p.queries,
                          &p.keys, &p.width, &p.value_width, &p.scale, &p.softcap, &low, &high, &team))
        return nullptr;
    p.team = (void*)(uintptr_t)team;
    Py_ssize_t size = kind[0] == 'f' ? 4 : kind[0] == 'd' ? 8 : 2;
    if (!kind_of(kind, size, &p.kind)) return PyErr_Format(PyExc_ValueError, "kind is %s; expected f, d, e or H", kind);
    p.batch_axes = (int)PyTuple_Size(batch);
    if (p.batch_axes > MAX_BATCH_AXES) return PyErr_Format(PyExc_ValueError, "expected at most %d batch axes", MAX_BATCH_AXES);
    for (int i = 0; i < p.batch_axes; ++i) p.batch[i] = PyLong_AsSsize_t(PyTuple_GetItem(batch, i));
    Refusal why;
    if (PyErr_Occurred() || !check_sizes(p, why)) return PyErr_Occurred() ? nullptr : refuse(why);
    p.has_band = low != Py_None || high != Py_None;
    p.low = low == Py_None ? -((int64_t)1 << 40) : PyLong_AsLongLong(low);
    p.high = high == Py_None ? (int64_t)1 << 40 : PyLong_AsLongLong(high);
    if (PyErr_Occurred()) return nullptr;
    Problem* kept = (Problem*)malloc(sizeof p);
    if (!kept) return PyErr_NoMemory();
    *kept = p;
    return PyCapsule_New(kept, "mha_native.plan", free_plan);
}

bool read_sequences(PyObject* x, Problem& p, Held& held) {
    if (x == Py_None) return true;
    Py_buffer* b = held.add(x, PyBUF_C_CONTIGUOUS);
    if (!b) return false;
    static_assert(sizeof(Sequence) == 4 * sizeof(int64_t), "four integers");
    p.sequences = (const Sequence*)b->buf;
    p.num_sequences = b->ndim == 2 ? b->shape[0] : 0;
    if (b->itemsize != 8 || b->ndim != 2 || b->shape[1] != 4 || !p.num_sequences)
        return PyErr_Format(PyExc_TypeError, "sequences: expected 64-bit integers (n, 4)") != nullptr;
    Refusal why;
    return check_sequences(p, why) || refuse(why);
}

bool read_lengths(PyObject* x, Problem& p, Held& held) {
    if (x == Py_None) return true;
    Py_buffer* b = held.add(x, PyBUF_C_CONTIGUOUS);
    if (!b) return false;
    if (b->itemsize != 8 || b->len != 8 * p.num_batch)
        return PyErr_Format(PyExc_ValueError, "lengths: expected %zd 64-bit integers", p.num_batch) != nullptr;
    p.lengths = (const int64_t*)b->buf;
    return true;
}

// Read the map of a mask's tiles, and their words.
bool read_tiles(PyObject* map, PyObject* words, Problem& p, Held& held) {
    if (map == Py_None) return true;
    const ptrdiff_t queries = (p.queries + TILE - 1) / TILE, keys = (p.keys + TILE - 1) / TILE;
    const Given given = {"tiles", &p.tiles, {p.heads, queries, keys}, {INTEGER, INTEGER}, false, false};
    Py_buffer* b = read_array(map, given, p, held) ? held.add(words, PyBUF_C_CONTIGUOUS) : nullptr;
    if (!b) return false;
    p.words = (const uint64_t*)b->buf;
    Refusal why;
    return check_tiles(p, queries, keys, b->len / (TILE * 8), why) || refuse(why);
}

// attend with 15 arguments, 17 for keys in int8; attend_vjp with 20, where out and lse are read.
PyObject* call(PyObject* const* x, Py_ssize_t count, Py_ssize_t expected, bool (*compute)(const Problem&, const Level&)) {
    const bool forward = expected == 15, int8 = forward && count == 17;
    if (count != expected && !int8) return PyErr_Format(PyExc_TypeError, "expected %zd arguments, not %zd", expected, count);
    const Problem* planned = (const Problem*)PyCapsule_GetPointer(x[0], "mha_native.plan");
    if (!planned) return nullptr;
    Problem p = *planned;
    Held held;
    p.num_threads = (int)PyLong_AsLong(x[1]);
    if (PyErr_Occurred()) return nullptr;
    const Arrays arrays = arrays_of(p, forward, int8);
    for (int i = 0; i < D_OUT; ++i)
        if (!read_array(x[2 + i], arrays.given[i], p, held)) return nullptr;
    if (!read_lengths(x[11], p, held) || !read_sequences(x[12], p, held)) return nullptr;
    if (!read_tiles(x[13], x[14], p, held)) return nullptr;
    for (Py_ssize_t i = 15; i < count; ++i)
        if (!read_array(x[i], arrays.given[int8 ? i - 15 + SCALES : i - 6], p, held)) return nullptr;
    if (int8 && !(p.key_scale.data && p.value_scale.data)) return PyErr_Format(PyExc_TypeError, "scales: expected two arrays");
    p.natural = p.bias.data || p.distance.data || p.sink.data;
    if (forward && p.value_width > 1 && p.out.step[2] != size_of(p.kind))
        return PyErr_Format(PyExc_ValueError, "out: expected rows without gaps");
    const ptrdiff_t wide = p.kind == FLOAT64 ? 8 : 4;
    const Array* results[] = {&p.d_query, &p.d_key, &p.d_value};
    for (const Array* a : results)
        if (a->data && a->step[2] != wide) return PyErr_Format(PyExc_ValueError, "gradients: expected rows without gaps");
    if (p.distance.data && p.distance.step[2] != wide && p.queries + p.keys > 2)
        return PyErr_Format(PyExc_ValueError, "distance: expected rows without gaps");
    const bool tiny = p.num_batch * p.heads * p.queries * (double)p.keys < 4096;
    PyThreadState* state = tiny ? nullptr : PyEval_SaveThread();
    const bool done = compute(p, *chosen);
    if (state) PyEval_RestoreThread(state);
    if (!done) return PyErr_NoMemory();
    Py_RETURN_NONE;
}

PyObject* attend(PyObject*, PyObject* const* x, Py_ssize_t count) { return call(x, count, 15, mha::attend); }
PyObject* attend_vjp(PyObject*, PyObject* const* x, Py_ssize_t count) { return call(x, count, 20, mha::attend_vjp); }

PyObject* is_worth_threads(PyObject*, PyObject* capsule) {
    const Problem* planned = (const Problem*)PyCapsule_GetPointer(capsule, "mha_native.plan");
    return planned ? PyBool_FromLong(mha::is_worth_threads(*planned)) : nullptr;
}

PyObject* use_level(PyObject*, PyObject* name) {
    const char* wanted = name == Py_None ? nullptr : PyUnicode_AsUTF8AndSize(name, nullptr);
    if (PyErr_Occurred()) return nullptr;
    const Level* level = level_named(wanted);
    if (!level)
        return PyErr_Format(PyExc_ValueError, "this processor has no level %s; it has %s", wanted, level_named(nullptr)->name);
    chosen = level;
    return PyUnicode_FromString(level->name);
}

PyObject* xla_handlers(PyObject*, PyObject*) {
    if (!mha::xla_handlers[0]) Py_RETURN_NONE;
    void* const* handlers = mha::xla_handlers;
    return Py_BuildValue("(NN)", PyCapsule_New(handlers[0], nullptr, nullptr), PyCapsule_New(handlers[1], nullptr, nullptr));
}

PyMethodDef methods[] = {
    {"plan", plan, METH_VARARGS, "Return what calls with these shapes and options share."},
    {"attend", (PyCFunction)(void (*)(void))attend, METH_FASTCALL, "Write attention to out, and its log-sum-exp to lse."},
    {"attend_vjp", (PyCFunction)(void (*)(void))attend_vjp, METH_FASTCALL, "Write the gradients of attention."},
    {"is_worth_threads", is_worth_threads, METH_O, "Return whether a call is computed on several threads."},
    {"use_level", use_level, METH_O, "Compute with this level of vector instructions, None: the best; return its name."},
    {"exponentials", (PyCFunction)(void (*)(void))mha::exponentials, METH_FASTCALL, "Write 2^x, as the kernel computes it."},
    {"lines", (PyCFunction)(void (*)(void))mha::lines, METH_FASTCALL, "Write GELU, its gradient, or a norm of rows to y."},
    {"pack_int8", (PyCFunction)(void (*)(void))call_pack_int8, METH_FASTCALL, "Return an int8 weight in another order."},
    {"linear_int8", (PyCFunction)(void (*)(void))call_linear_int8, METH_FASTCALL, "Write x w + b, of packed weights, to y."},
    {"linear_few_rows", call_linear_few_rows, METH_VARARGS, "Write x w + b, of arrays by address, to y; steps are in bytes."},
    {"xla_handlers", xla_handlers, METH_NOARGS, "Return what XLA calls for attend and attend_vjp; None without its headers."},
    {nullptr, nullptr, 0, nullptr}};

PyModuleDef module = {PyModuleDef_HEAD_INIT, "mha_native._native", nullptr, -1, methods, nullptr, nullptr, nullptr, nullptr};

}  // namespace

PyMODINIT_FUNC PyInit__native(void) {
    chosen = level_named("base");  // level.py names another level
    start_pool();
    PyObject* made = PyModule_Create(&module);
#ifdef Py_GIL_DISABLED
    if (made) PyUnstable_Module_SetGIL(made, Py_MOD_GIL_NOT_USED);  // calls share the pool alone, which has a lock
#endif
    return made;
}
