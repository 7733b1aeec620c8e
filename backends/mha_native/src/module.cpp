// The Python module mha_native._native, by CPython's stable interface of 3.11, which free threads lack (CMake knows):
//
//     plan(kind, batch, heads, key_heads, queries, keys, width, value_width, scale, softcap, low, high, team) -> capsule
//     is_worth_threads(plan) -> bool
//     attend(plan, threads, query, key, value, out, lse, sink, mask, bias, distance, lengths, sequences) -> None
//     attend_vjp(plan, ..., sequences, d_out, d_lse, d_query, d_key, d_value) -> None
//
// An array is an object with the buffer protocol, or (address, kind, shape, strides in numbers). Its shape is compared with
// the plan's before anything is read; axes of length 1, and missing batch axes, broadcast. None stands for no array.
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "attend.h"
#include "pool.h"

using namespace mha;

namespace {

const Level* chosen = nullptr;
constexpr Py_ssize_t LARGEST = (Py_ssize_t)1 << 31;  // an axis, at most: positions fit 32 bits

// The memory of objects that a call holds until it ends.
struct Held {
    Py_buffer buffers[17];
    int count = 0;
    ~Held() {
        while (count) PyBuffer_Release(&buffers[--count]);
    }
    Py_buffer* add(PyObject* x, int flags) {  // null with an error
        return PyObject_GetBuffer(x, &buffers[count], flags | PyBUF_FORMAT) ? nullptr : &buffers[count++];
    }
};

// An array that a call is given: its last three axes, and the two kinds of which it may be.
struct Given {
    const char* name;
    Array* to;
    Py_ssize_t tail[3];
    Kind kinds[2];
    bool optional, written, plain;  // plain: without batch axes
};

bool kind_of(const char* format, Py_ssize_t size, Kind* kind) {
    if (format[0] == '=') ++format;  // may be unaligned
    switch (format[0]) {
        case 'f': *kind = FLOAT32; return size == 4;
        case 'd': *kind = FLOAT64; return size == 8;
        case 'e': *kind = FLOAT16; return size == 2;
        case 'H': *kind = BFLOAT16; return size == 2;  // NumPy has no name for it
        case '?': case 'B': *kind = BYTE; return size == 1;
        case 'l': case 'q': *kind = INTEGER; return size == 8;
    }
    return false;
}

// Compare an axis with the plan's, and keep its step. An array that is written has every axis.
bool fit(const Given& g, Py_ssize_t size, Py_ssize_t expected, Py_ssize_t step, ptrdiff_t* to) {
    if (size != expected && (size != 1 || g.written)) {
        PyErr_Format(PyExc_ValueError, "%s has an axis of length %zd; expected %zd", g.name, size, expected);
        return false;
    }
    *to = size == 1 ? 0 : step;
    return true;
}

// Read an array with axes (batch..., tail[0], tail[1], tail[2]).
bool read_array(PyObject* x, const Given& g, const Problem& p, Held& held) {
    if (x == Py_None && g.optional) return true;
    Py_ssize_t shape[MAX_BATCH_AXES + 3], steps[MAX_BATCH_AXES + 3], ndim, size;
    Array* a = g.to;
    PyObject *sizes = nullptr, *strides = nullptr;
    const char* format;
    Py_buffer* b = nullptr;
    if (PyTuple_Check(x)) {
        unsigned long long address;
        if (!PyArg_ParseTuple(x, "KsO!O!", &address, &format, &PyTuple_Type, &sizes, &PyTuple_Type, &strides)) return false;
        a->data = (char*)(uintptr_t)address;
        ndim = PyTuple_Size(sizes) == PyTuple_Size(strides) ? PyTuple_Size(sizes) : MAX_BATCH_AXES + 4;
        size = format[0] == 'f' ? 4 : format[0] == 'd' || format[0] == 'q' ? 8 : format[0] == '?' ? 1 : 2;
    } else {
        if (!(b = held.add(x, PyBUF_STRIDES | (g.written ? PyBUF_WRITABLE : 0)))) return false;
        a->data = (char*)b->buf, ndim = b->ndim, size = b->itemsize, format = b->format ? b->format : "B";
    }
    bool readable = ndim <= MAX_BATCH_AXES + 3 && kind_of(format, size, &a->kind) && a->data;
    if (!readable || (a->kind != g.kinds[0] && a->kind != g.kinds[1])) {
        PyErr_Format(PyExc_TypeError, "%s has %zd axes of format %s, which the plan does not expect", g.name, ndim, format);
        return false;
    }
    for (int i = 0; i < ndim; ++i) {
        shape[i] = b ? b->shape[i] : PyLong_AsSsize_t(PyTuple_GetItem(sizes, i));
        steps[i] = b ? b->strides[i] : PyLong_AsSsize_t(PyTuple_GetItem(strides, i)) * size;
    }
    if (PyErr_Occurred()) return false;
    int batch_axes = g.plain ? 0 : p.batch_axes;
    if (ndim > batch_axes + 3 || (g.written && ndim < batch_axes + 3)) {
        const char* most = g.written ? "" : "at most ";
        PyErr_Format(PyExc_ValueError, "%s has %zd axes; expected %s%d", g.name, ndim, most, batch_axes + 3);
        return false;
    }
    for (int i = 0; i < ndim; ++i) {
        int from_end = (int)ndim - i, axis = batch_axes - (from_end - 3);
        if (from_end <= 3 ? !fit(g, shape[i], g.tail[3 - from_end], steps[i], &a->step[3 - from_end])
                          : !fit(g, shape[i], p.batch[axis], steps[i], &a->batch[axis]))
            return false;
    }
    return true;
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
    double numbers = (double)size;
    p.num_batch = 1;
    for (int i = 0; i < p.batch_axes; ++i) {
        p.batch[i] = PyLong_AsSsize_t(PyTuple_GetItem(batch, i));
        p.num_batch *= p.batch[i] > 0 && p.num_batch < LARGEST * LARGEST / (p.batch[i] + 1) ? p.batch[i] : 0;
        numbers *= (double)p.batch[i];
    }
    if (PyErr_Occurred()) return nullptr;
    const ptrdiff_t sizes[] = {p.num_batch, p.heads, p.key_heads, p.queries, p.keys, p.width, p.value_width};
    for (ptrdiff_t n : sizes)
        if (n < 1 || n >= LARGEST) return PyErr_Format(PyExc_ValueError, "an axis has length %zd; expected 1 to 2^31 - 1", n);
    numbers *= (double)p.heads * (double)(p.queries > p.keys ? p.queries : p.keys) *
               (double)(p.width > p.value_width ? p.width : p.value_width);
    if (numbers > 0x1p62) return PyErr_Format(PyExc_ValueError, "an array of this shape does not fit in memory");
    if (p.heads % p.key_heads)
        return PyErr_Format(PyExc_ValueError, "%zd heads do not share %zd key heads", p.heads, p.key_heads);
    p.has_band = low != Py_None || high != Py_None;
    p.low = low == Py_None ? -((int64_t)1 << 40) : PyLong_AsLongLong(low);
    p.high = high == Py_None ? (int64_t)1 << 40 : PyLong_AsLongLong(high);
    if (PyErr_Occurred()) return nullptr;
    Problem* kept = (Problem*)malloc(sizeof p);
    if (!kept) return PyErr_NoMemory();
    memcpy(kept, &p, sizeof p);
    return PyCapsule_New(kept, "mha_native.plan", free_plan);
}

// Check host integers: what they index must lie inside the arrays.
bool read_sequences(PyObject* x, Problem& p, Held& held) {
    if (x == Py_None) return true;
    Py_buffer* b = held.add(x, PyBUF_C_CONTIGUOUS);
    if (!b) return false;
    static_assert(sizeof(Sequence) == 4 * sizeof(int64_t), "four integers");
    p.sequences = (const Sequence*)b->buf;
    p.num_sequences = b->ndim == 2 ? b->shape[0] : 0;
    if (b->itemsize != 8 || b->ndim != 2 || b->shape[1] != 4 || !p.num_sequences) {
        PyErr_SetString(PyExc_TypeError, "sequences: expected 64-bit integers (n, 4)");
        return false;
    }
    for (ptrdiff_t i = 0; i < p.num_sequences; ++i) {
        Sequence s = p.sequences[i];
        if (s.query_start < 0 || s.queries < 1 || s.queries > p.queries - s.query_start || s.key_start < 0 || s.keys < 0 ||
            s.keys > p.keys - s.key_start) {
            PyErr_Format(PyExc_ValueError, "sequence %zd lies outside of the arrays", i);
            return false;
        }
    }
    return true;
}

bool read_lengths(PyObject* x, Problem& p, Held& held) {
    if (x == Py_None) return true;
    Py_buffer* b = held.add(x, PyBUF_C_CONTIGUOUS);
    if (!b) return false;
    if (b->itemsize != 8 || b->len != 8 * p.num_batch) {
        PyErr_Format(PyExc_ValueError, "lengths: expected %zd 64-bit integers", p.num_batch);
        return false;
    }
    p.lengths = (const int64_t*)b->buf;
    return true;
}

// attend with 13 arguments, attend_vjp with 18, where out and lse are read.
PyObject* call(PyObject* const* x, Py_ssize_t count, Py_ssize_t expected, bool (*compute)(const Problem&, const Level&)) {
    if (count != expected) return PyErr_Format(PyExc_TypeError, "expected %zd arguments, not %zd", expected, count);
    const Problem* planned = (const Problem*)PyCapsule_GetPointer(x[0], "mha_native.plan");
    if (!planned) return nullptr;
    Problem p = *planned;
    Held held;
    p.num_threads = (int)PyLong_AsLong(x[1]);
    if (PyErr_Occurred()) return nullptr;
    const Kind kind = p.kind, wide = kind == FLOAT64 ? FLOAT64 : FLOAT32;
    const bool forward = count == 13;
    const ptrdiff_t width = padded(kind, p.width), value_width = padded(kind, p.value_width);
    const Given given[] = {
        {"query", &p.query, {p.heads, p.queries, p.width}, {kind, kind}, false, false, false},
        {"key", &p.key, {p.key_heads, p.keys, p.width}, {kind, kind}, false, false, false},
        {"value", &p.value, {p.key_heads, p.keys, p.value_width}, {kind, kind}, false, false, false},
        {"out", &p.out, {p.heads, p.queries, p.value_width}, {kind, kind}, false, forward, false},
        {"lse", &p.lse, {p.heads, p.queries, 1}, {wide, wide}, forward, forward, false},
        {"sink", &p.sink, {p.heads, 1, 1}, {kind, wide}, true, false, true},
        {"mask", &p.mask, {p.heads, p.queries, p.keys}, {BYTE, BYTE}, true, false, false},
        {"bias", &p.bias, {p.heads, p.queries, p.keys}, {kind, wide}, true, false, false},
        {"distance", &p.distance, {p.heads, 1, p.queries + p.keys - 1}, {wide, wide}, true, false, false},
        {"d_out", &p.d_out, {p.heads, p.queries, p.value_width}, {kind, wide}, true, false, false},
        {"d_lse", &p.d_lse, {p.heads, p.queries, 1}, {wide, wide}, true, false, false},
        {"d_query", &p.d_query, {p.heads, p.queries, width}, {wide, wide}, true, true, false},
        {"d_key", &p.d_key, {p.key_heads, p.keys, width}, {wide, wide}, true, true, false},
        {"d_value", &p.d_value, {p.key_heads, p.keys, value_width}, {wide, wide}, true, true, false},
    };
    for (int i = 0; i < 9; ++i)
        if (!read_array(x[2 + i], given[i], p, held)) return nullptr;
    if (!read_lengths(x[11], p, held) || !read_sequences(x[12], p, held)) return nullptr;
    for (Py_ssize_t i = 13; i < count; ++i)
        if (!read_array(x[i], given[i - 4], p, held)) return nullptr;
    p.natural = p.bias.data || p.distance.data || p.sink.data;
    if (forward && p.value_width > 1 && p.out.step[2] != size_of(kind))
        return PyErr_Format(PyExc_ValueError, "out: expected rows without gaps");
    const Array* results[] = {&p.d_query, &p.d_key, &p.d_value};
    for (const Array* a : results)
        if (a->data && a->step[2] != size_of(wide))
            return PyErr_Format(PyExc_ValueError, "gradients: expected rows without gaps");
    if (p.distance.data && (p.distance.step[2] != size_of(wide) && p.queries + p.keys > 2))
        return PyErr_Format(PyExc_ValueError, "distance: expected rows without gaps");
    const bool tiny = p.num_batch * p.heads * p.queries * (double)p.keys < 4096;
    PyThreadState* state = tiny ? nullptr : PyEval_SaveThread();
    const bool done = compute(p, *chosen);
    if (state) PyEval_RestoreThread(state);
    if (!done) return PyErr_NoMemory();
    Py_RETURN_NONE;
}

PyObject* attend(PyObject*, PyObject* const* x, Py_ssize_t count) { return call(x, count, 13, mha::attend); }
PyObject* attend_vjp(PyObject*, PyObject* const* x, Py_ssize_t count) { return call(x, count, 18, mha::attend_vjp); }

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

PyObject* exponentials(PyObject*, PyObject* const* x, Py_ssize_t count) {
    if (count != 2) return PyErr_Format(PyExc_TypeError, "exponentials takes 2 arguments, not %zd", count);
    Held held;
    Py_buffer *from = held.add(x[0], PyBUF_C_CONTIGUOUS), *to = held.add(x[1], PyBUF_C_CONTIGUOUS | PyBUF_WRITABLE);
    if (!from || !to) return nullptr;
    if (from->len != to->len || from->len % 64 || from->format[0] != 'f' || to->format[0] != 'f')
        return PyErr_Format(PyExc_ValueError, "exponentials: expected two arrays of 16 n float32 numbers");
    chosen->exponentials((const float*)from->buf, (float*)to->buf, from->len / 4);
    Py_RETURN_NONE;
}

// Read rows of float32 numbers, (rows, width) or, with a step of 0, (width); None stands for none. The array that is written
// comes first, and says how many there are.
bool read_lines(PyObject* x, const char* name, bool written, Held& held, Lines& l, float** to, ptrdiff_t* step) {
    if (x == Py_None) return true;
    Py_buffer* b = held.add(x, PyBUF_STRIDES | (written ? PyBUF_WRITABLE : 0));
    if (!b) return false;
    Py_ssize_t last = b->ndim - 1;
    if (written && last == 1) l.rows = b->shape[0], l.width = b->shape[1];
    Kind kind;
    bool rows = last == 1, known = kind_of(b->format, b->itemsize, &kind);
    bool fits = known && kind == FLOAT32 && (rows || (last == 0 && !written)) && b->shape[last] == l.width;
    fits = fits && (l.width == 1 || b->strides[last] == 4);
    if (!fits || (rows && (b->shape[0] != l.rows || b->strides[0] % 4))) {
        const char* message = written ? "%s: expected rows of float32 numbers without gaps"
                                      : "%s: expected %zd rows of %zd float32 numbers without gaps";
        PyErr_Format(PyExc_ValueError, message, name, l.rows, l.width);
        return false;
    }
    *to = (float*)b->buf, *step = rows ? b->strides[0] / 4 : 0;
    return true;
}

PyObject* lines(PyObject*, PyObject* const* x, Py_ssize_t count) {
    if (count != 6) return PyErr_Format(PyExc_TypeError, "lines takes 6 arguments, not %zd", count);
    Held held;
    Lines l = {};
    float *from = nullptr, *a = nullptr, *bias = nullptr;
    ptrdiff_t none;
    l.what = (What)PyLong_AsLong(x[0]), l.eps = (float)PyFloat_AsDouble(x[4]);
    if (PyErr_Occurred() || !read_lines(x[5], "y", true, held, l, &l.y, &l.y_step) ||
        !read_lines(x[1], "x", false, held, l, &from, &l.x_step) || !read_lines(x[2], "a", false, held, l, &a, &l.a_step) ||
        !read_lines(x[3], "bias", false, held, l, &bias, &none))
        return nullptr;
    if (!from || !l.y) return PyErr_Format(PyExc_TypeError, "lines: x and y are required");
    l.x = from, l.a = a, l.bias = bias;
    PyThreadState* state = PyEval_SaveThread();
    chosen->lines(l);
    PyEval_RestoreThread(state);
    Py_RETURN_NONE;
}

PyMethodDef methods[] = {
    {"plan", plan, METH_VARARGS, "Return what calls with these shapes and options share."},
    {"attend", (PyCFunction)(void (*)(void))attend, METH_FASTCALL, "Write attention to out, and its log-sum-exp to lse."},
    {"attend_vjp", (PyCFunction)(void (*)(void))attend_vjp, METH_FASTCALL, "Write the gradients of attention."},
    {"is_worth_threads", is_worth_threads, METH_O, "Return whether a call is computed on several threads."},
    {"use_level", use_level, METH_O, "Compute with this level of vector instructions, None: the best; return its name."},
    {"exponentials", (PyCFunction)(void (*)(void))exponentials, METH_FASTCALL, "Write 2^x, as the kernel computes it."},
    {"lines", (PyCFunction)(void (*)(void))lines, METH_FASTCALL, "Write GELU, its gradient, or a norm of rows to y."},
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
