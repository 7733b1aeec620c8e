// Functions of Python on rows of numbers: GELU, its gradient and norms, and 2^x as attention computes it.
//
//     lines(what, x, a, bias, eps, y) -> None
//     exponentials(x, y) -> None
#include "buffers.h"

#include "arguments.h"
#include "attend.h"

namespace mha {

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

}  // namespace mha
