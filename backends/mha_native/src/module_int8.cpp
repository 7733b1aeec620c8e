// The functions of the Python module for linear maps of int8 weights.
#include <stdlib.h>
#include <string.h>

#include "attend.h"
#include "buffers.h"

namespace mha {
namespace {

constexpr const char* CAPSULE = "mha_native.int8";

void free_weight(PyObject* capsule) { free(PyCapsule_GetPointer(capsule, CAPSULE)); }

bool is_of(const Py_buffer* b, char kind, int ndim) {
    const char* format = b->format ? b->format : "B";
    return b->ndim == ndim && format[format[0] == '='] == kind;  // =: may be unaligned
}

}  // namespace

PyObject* call_pack_int8(PyObject*, PyObject* const* x, Py_ssize_t count) {
    if (count != 2) return PyErr_Format(PyExc_TypeError, "pack_int8 takes 2 arguments, not %zd", count);
    Held held;
    Py_buffer* values = held.add(x[0], PyBUF_C_CONTIGUOUS);
    Py_buffer* scale = values ? held.add(x[1], PyBUF_C_CONTIGUOUS) : nullptr;
    if (!scale) return nullptr;
    bool fits = is_of(values, 'b', 2) && is_of(scale, 'f', 1) && scale->shape[0] == values->shape[1];
    if (!fits || values->shape[0] < 1 || values->shape[1] < 1)
        return PyErr_Format(PyExc_ValueError, "expected int8 numbers (n, m) and float32 numbers (m,)");
    const ptrdiff_t inputs = values->shape[0], outputs = values->shape[1], columns = chosen->int8.columns;
    const size_t panels = chosen->int8.bytes(inputs, outputs);
    const size_t scales = (outputs + columns - 1) / columns * columns * sizeof(float);
    char* block = (char*)malloc(sizeof(Int8Weight) + 64 + panels + scales);
    if (!block) return PyErr_NoMemory();
    char* memory = (char*)(((uintptr_t)block + sizeof(Int8Weight) + 63) / 64 * 64);
    Int8Weight* w = (Int8Weight*)block;
    *w = {chosen, inputs, outputs, memory, (float*)(memory + panels)};
    chosen->int8.pack((const int8_t*)values->buf, inputs, outputs, w->panels);
    memset(w->scale, 0, scales);
    memcpy(w->scale, scale->buf, outputs * sizeof(float));
    PyObject* capsule = PyCapsule_New(w, CAPSULE, free_weight);
    if (!capsule) free(block);
    return capsule;
}

PyObject* call_linear_int8(PyObject*, PyObject* const* x, Py_ssize_t count) {
    if (count != 6) return PyErr_Format(PyExc_TypeError, "linear_int8 takes 6 arguments, not %zd", count);
    Int8Map m = {};
    m.w = (const Int8Weight*)PyCapsule_GetPointer(x[0], CAPSULE);
    if (!m.w) return nullptr;
    const int threads = (int)PyLong_AsLong(x[1]);
    void* team = PyLong_AsVoidPtr(x[2]);
    if (PyErr_Occurred()) return nullptr;
    Held held;
    Lines in = {}, out = {};
    float *from = nullptr, *b = nullptr;
    ptrdiff_t none;
    out.width = m.w->outputs;
    if (!read_lines(x[5], "y", true, held, out, &m.y, &m.y_step)) return nullptr;
    if (!m.y || out.width != m.w->outputs)
        return PyErr_Format(PyExc_ValueError, "y has %zd columns; expected %zd", out.width, m.w->outputs);
    in.rows = out.rows, in.width = m.w->inputs;
    if (!read_lines(x[3], "x", false, held, in, &from, &m.x_step) || !read_lines(x[4], "b", false, held, out, &b, &none))
        return nullptr;
    if (!from) return PyErr_Format(PyExc_TypeError, "linear_int8: x is required");
    m.x = from, m.b = b, m.rows = out.rows;
    PyThreadState* state = PyEval_SaveThread();
    const bool done = linear_int8(m, threads, team);
    PyEval_RestoreThread(state);
    if (!done) return PyErr_NoMemory();
    Py_RETURN_NONE;
}

}  // namespace mha
