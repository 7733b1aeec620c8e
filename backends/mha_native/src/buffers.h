// The memory of Python's objects, and what files beside module.cpp define of the module.
#pragma once
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "problem.h"

namespace mha {

// The memory of objects that a call holds until it ends.
struct Held {
    Py_buffer buffers[17];
    int count = 0;
    ~Held() { while (count) PyBuffer_Release(&buffers[--count]); }
    Py_buffer* add(PyObject* x, int flags) {  // null with an error
        return PyObject_GetBuffer(x, &buffers[count], flags | PyBUF_FORMAT) ? nullptr : &buffers[count++];
    }
};

// Read rows of float32 numbers, (rows, width) or, with a step of 0, (width); None stands for none. The array that is written
// comes first, and says how many there are.
bool read_lines(PyObject* x, const char* name, bool written, Held& held, Lines& l, float** to, ptrdiff_t* step);

PyObject* exponentials(PyObject*, PyObject* const* x, Py_ssize_t count);
PyObject* lines(PyObject*, PyObject* const* x, Py_ssize_t count);
PyObject* call_pack_int8(PyObject*, PyObject* const* x, Py_ssize_t count);
PyObject* call_linear_int8(PyObject*, PyObject* const* x, Py_ssize_t count);
PyObject* call_linear_few_rows(PyObject*, PyObject* arguments);

}  // namespace mha
