// The Python module mha_native._native, by the stable interface of CPython 3.11: one binary for all later versions.
//
//     plan(kind, batch, heads, key_heads, queries, keys, width, value_width, scale, softcap, low, high, team) -> capsule
//     is_worth_threads(plan) -> bool
//     attend(plan, threads, query, key, value, out, lse, sink, mask, bias, distance, lengths, sequences) -> None
//
// An array is an object with the buffer protocol, or (address, kind, shape, strides in numbers). Its shape is compared with
// the plan's before anything is read; axes of length 1, and missing batch axes, broadcast. None stands for no array.
#ifndef Py_LIMITED_API  // CMake defines it
#define Py_LIMITED_API 0x030B0000
#endif
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

// What a call holds until it ends.
struct Held {
    Py_buffer buffers[12];
    int count = 0;
    ~Held() {
        while (count) PyBuffer_Release(&buffers[--count]);
    }
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
bool fit(const char* name, Py_ssize_t size, Py_ssize_t expected, Py_ssize_t step, bool whole, ptrdiff_t* to) {
    if (size != expected && (size != 1 || whole)) {
        PyErr_Format(PyExc_ValueError, "%s has an axis of length %zd; expected %zd", name, size, expected);
        return false;
    }
    *to = size == 1 ? 0 : step;
    return true;
}

// Read an array with axes (batch..., tail[0], tail[1], tail[2]), or without batch axes if ``plain``.
bool read_array(PyObject* x, const char* name, const Problem& p, const Py_ssize_t (&tail)[3], bool plain, int flags,
                Held& held, Array* a) {
    if (x == Py_None) return true;
    Py_ssize_t shape[MAX_BATCH_AXES + 3], steps[MAX_BATCH_AXES + 3];
    int ndim;
    if (PyTuple_Check(x)) {
        PyObject *sizes, *strides;
        unsigned long long address;
        const char* format;
        if (!PyArg_ParseTuple(x, "KsO!O!", &address, &format, &PyTuple_Type, &sizes, &PyTuple_Type, &strides)) return false;
        a->data = (char*)(uintptr_t)address;
        ndim = (int)PyTuple_Size(sizes);
        Py_ssize_t size = format[0] == 'f' ? 4 : format[0] == 'd' || format[0] == 'q' ? 8 : format[0] == '?' ? 1 : 2;
        if (ndim > MAX_BATCH_AXES + 3 || PyTuple_Size(strides) != ndim || !kind_of(format, size, &a->kind)) {
            PyErr_Format(PyExc_TypeError, "%s: expected (address, kind, shape, strides)", name);
            return false;
        }
        for (int i = 0; i < ndim; ++i) {
            shape[i] = PyLong_AsSsize_t(PyTuple_GetItem(sizes, i));
            steps[i] = PyLong_AsSsize_t(PyTuple_GetItem(strides, i)) * size;
        }
        if (PyErr_Occurred()) return false;
    } else {
        Py_buffer* b = &held.buffers[held.count];
        if (PyObject_GetBuffer(x, b, flags)) return false;
        ++held.count;
        ndim = b->ndim;
        if (ndim > MAX_BATCH_AXES + 3 || !kind_of(b->format ? b->format : "B", b->itemsize, &a->kind)) {
            PyErr_Format(PyExc_TypeError, "%s has %d axes of format %s, which the kernel does not read", name, ndim, b->format);
            return false;
        }
        a->data = (char*)b->buf;
        for (int i = 0; i < ndim; ++i) shape[i] = b->shape[i], steps[i] = b->strides[i];
    }
    int batch_axes = plain ? 0 : p.batch_axes;
    bool whole = flags & PyBUF_WRITABLE;
    if (ndim > batch_axes + 3 || (whole && ndim < batch_axes + 3)) {
        PyErr_Format(PyExc_ValueError, "%s has %d axes; expected %s%d", name, ndim, whole ? "" : "at most ", batch_axes + 3);
        return false;
    }
    for (int i = 0; i < ndim; ++i) {
        int from_end = ndim - i, axis = batch_axes - (from_end - 3);
        if (from_end <= 3 ? !fit(name, shape[i], tail[3 - from_end], steps[i], whole, &a->step[3 - from_end])
                          : !fit(name, shape[i], p.batch[axis], steps[i], whole, &a->batch[axis]))
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
    Py_buffer* b = &held.buffers[held.count];
    if (PyObject_GetBuffer(x, b, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT)) return false;
    ++held.count;
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
    Py_buffer* b = &held.buffers[held.count];
    if (PyObject_GetBuffer(x, b, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT)) return false;
    ++held.count;
    if (b->itemsize != 8 || b->len != 8 * p.num_batch) {
        PyErr_Format(PyExc_ValueError, "lengths: expected %zd 64-bit integers", p.num_batch);
        return false;
    }
    p.lengths = (const int64_t*)b->buf;
    return true;
}

PyObject* attend(PyObject*, PyObject* const* x, Py_ssize_t count) {
    if (count != 13) return PyErr_Format(PyExc_TypeError, "attend takes 13 arguments, not %zd", count);
    const Problem* planned = (const Problem*)PyCapsule_GetPointer(x[0], "mha_native.plan");
    if (!planned) return nullptr;
    Problem p = *planned;
    Held held;
    p.num_threads = (int)PyLong_AsLong(x[1]);
    if (PyErr_Occurred()) return nullptr;
    const int reads = PyBUF_STRIDES | PyBUF_FORMAT, writes = reads | PyBUF_WRITABLE;
    const Py_ssize_t queries[3] = {p.heads, p.queries, p.width}, keys[3] = {p.key_heads, p.keys, p.width};
    const Py_ssize_t values[3] = {p.key_heads, p.keys, p.value_width}, results[3] = {p.heads, p.queries, p.value_width};
    const Py_ssize_t numbers[3] = {p.heads, p.queries, 1}, sinks[3] = {p.heads, 1, 1}, pairs[3] = {p.heads, p.queries, p.keys};
    const Py_ssize_t distances[3] = {p.heads, 1, p.queries + p.keys - 1};
    if (!read_array(x[2], "query", p, queries, false, reads, held, &p.query) ||
        !read_array(x[3], "key", p, keys, false, reads, held, &p.key) ||
        !read_array(x[4], "value", p, values, false, reads, held, &p.value) ||
        !read_array(x[5], "out", p, results, false, writes, held, &p.out) ||
        !read_array(x[6], "lse", p, numbers, false, writes, held, &p.lse) ||
        !read_array(x[7], "sink", p, sinks, true, reads, held, &p.sink) ||
        !read_array(x[8], "mask", p, pairs, false, reads, held, &p.mask) ||
        !read_array(x[9], "bias", p, pairs, false, reads, held, &p.bias) ||
        !read_array(x[10], "distance", p, distances, false, reads, held, &p.distance) || !read_lengths(x[11], p, held) ||
        !read_sequences(x[12], p, held))
        return nullptr;
    Kind wide = p.kind == FLOAT64 ? FLOAT64 : FLOAT32;
    bool right = p.query.kind == p.kind && p.key.kind == p.kind && p.value.kind == p.kind && p.out.kind == p.kind &&
                 (!p.mask.data || p.mask.kind == BYTE) && (!p.bias.data || p.bias.kind == p.kind || p.bias.kind == wide) &&
                 (!p.sink.data || p.sink.kind == p.kind || p.sink.kind == wide) && (!p.lse.data || p.lse.kind == wide) &&
                 (!p.distance.data || p.distance.kind == wide) && p.query.data &&
                 p.key.data && p.value.data && p.out.data;
    if (!right) return PyErr_Format(PyExc_TypeError, "attend: an array is missing, or of another kind than the plan's");
    p.natural = p.bias.data || p.distance.data || p.sink.data;
    ptrdiff_t size = size_of(p.kind);
    if (p.value_width > 1 && p.out.step[2] != size) return PyErr_Format(PyExc_ValueError, "out: expected rows without gaps");
    if (p.distance.data && (p.distance.step[2] != size_of(wide) && p.queries + p.keys > 2))
        return PyErr_Format(PyExc_ValueError, "distance: expected rows without gaps");
    bool done;
    if (p.num_batch * p.heads * p.queries * (double)p.keys < 4096) {
        done = mha::attend(p, *chosen);
    } else {
        PyThreadState* state = PyEval_SaveThread();
        done = mha::attend(p, *chosen);
        PyEval_RestoreThread(state);
    }
    if (!done) return PyErr_NoMemory();
    Py_RETURN_NONE;
}

PyObject* is_worth_threads(PyObject*, PyObject* capsule) {
    const Problem* planned = (const Problem*)PyCapsule_GetPointer(capsule, "mha_native.plan");
    return planned ? PyBool_FromLong(mha::is_worth_threads(*planned)) : nullptr;
}

PyObject* use_level(PyObject*, PyObject* name) {
    const char* wanted = name == Py_None ? nullptr : PyUnicode_AsUTF8AndSize(name, nullptr);
    if (PyErr_Occurred()) return nullptr;
    const Level* found = level_named(wanted);
    if (!found)
        return PyErr_Format(PyExc_ValueError, "this processor has no level %s; it has %s", wanted, level_named(nullptr)->name);
    chosen = found;
    return PyUnicode_FromString(found->name);
}

PyObject* exponentials(PyObject*, PyObject* const* x, Py_ssize_t count) {
    Py_buffer from, to;
    if (count != 2) return PyErr_Format(PyExc_TypeError, "exponentials takes 2 arguments, not %zd", count);
    if (PyObject_GetBuffer(x[0], &from, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT)) return nullptr;
    if (PyObject_GetBuffer(x[1], &to, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT | PyBUF_WRITABLE)) {
        PyBuffer_Release(&from);
        return nullptr;
    }
    bool right = from.len == to.len && from.len % 64 == 0 && from.format[0] == 'f' && to.format[0] == 'f';
    if (right) chosen->exponentials((const float*)from.buf, (float*)to.buf, from.len / 4);
    PyBuffer_Release(&from);
    PyBuffer_Release(&to);
    if (!right) return PyErr_Format(PyExc_ValueError, "exponentials: expected two arrays of 16 n float32 numbers");
    Py_RETURN_NONE;
}

PyMethodDef methods[] = {
    {"plan", plan, METH_VARARGS, "Return what calls with these shapes and options share."},
    {"attend", (PyCFunction)(void (*)(void))attend, METH_FASTCALL, "Write attention to out, and its log-sum-exp to lse."},
    {"is_worth_threads", is_worth_threads, METH_O, "Return whether a call is computed on several threads."},
    {"use_level", use_level, METH_O, "Compute with this level of vector instructions, None: the best; return its name."},
    {"exponentials", (PyCFunction)(void (*)(void))exponentials, METH_FASTCALL, "Write 2^x, as the kernel computes it."},
    {nullptr, nullptr, 0, nullptr},
};

PyModuleDef module = {PyModuleDef_HEAD_INIT, "mha_native._native", nullptr, -1, methods, nullptr, nullptr, nullptr, nullptr};

}  // namespace

PyMODINIT_FUNC PyInit__native(void) {
    chosen = level_named(nullptr);
    start_pool();
    return PyModule_Create(&module);
}
