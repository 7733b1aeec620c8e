"""The library: a subclass of NumPy's array. This module is its namespace: NumPy's functions, with results of the subclass."""

import sys

import numpy

from .states import states, trace


class SubArray(numpy.ndarray):
    """An array of NumPy that stays an array where NumPy returns a number."""

    __array_priority__ = 1.0

    def __array_wrap__(self, array, context=None, return_scalar=False):
        return array.view(SubArray)

    def __getitem__(self, key):
        return ours(super().__getitem__(key))

    def __array_namespace__(self, *, api_version=None):
        return sys.modules[__name__]


def ours(x):
    """The arrays and numbers of NumPy as ``SubArray``, also in a list or tuple; anything else as it is."""
    if type(x) in (list, tuple):
        return type(x)(map(ours, x))
    return numpy.asarray(x).view(SubArray) if isinstance(x, numpy.ndarray | numpy.generic) else x


def __getattr__(name):
    """A function of NumPy, kept here once it was asked for; NumPy's dtypes and constants as they are."""
    if name.startswith("_"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(numpy, name)
    if not callable(found) or isinstance(found, type):
        return found

    def call(*arguments, **options):
        if "traced" in states.get():
            trace.append(name)
        return ours(found(*arguments, **options))

    return globals().setdefault(name, call)


def matmul(x, y):
    """x (..., n, k) times y (..., k, m); in the state "coarse" rounded to half precision."""
    product = numpy.matmul(x, y)
    return ours(product.astype("float16").astype(product.dtype) if "coarse" in states.get() else product)


# fields of the backend


def from_numpy(array, device):
    return ours(numpy.asarray(array))


def to_numpy(x):
    return numpy.asarray(x)


def is_floating(dtype):
    return numpy.dtype(dtype).kind == "f"


def refuses(x):
    return None if x.dtype.isnative else f"has dtype {x.dtype.str}, whose bytes are swapped: write .astype({x.dtype.name!r})"


def version(x):
    return hash(x.tobytes())
