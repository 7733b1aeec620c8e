"""An array type of its own, and its array-API namespace: NumPy's functions between an unwrapping and a wrapping."""

import operator

import numpy


class FrozenArray:
    """A NumPy array inside a class that NumPy does not know."""

    __array_ufunc__ = None  # a NumPy array on the left must not swallow it
    __hash__ = None
    device = "cpu"

    def __init__(self, data):
        self.data = data

    @property
    def shape(self):
        return self.data.shape

    @property
    def ndim(self):
        return self.data.ndim

    @property
    def size(self):
        return self.data.size

    @property
    def dtype(self):
        return self.data.dtype

    def __repr__(self):
        return f"FrozenArray({self.data!r})"

    def __array_namespace__(self, *, api_version=None):
        return namespace

    def __dlpack__(self, **options):
        return self.data.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.data.__dlpack_device__()

    def __getitem__(self, key):
        return wrap(self.data[unwrap(key)])

    def __bool__(self):
        return bool(self.data)

    def __int__(self):
        return int(self.data)

    def __float__(self):
        return float(self.data)

    def __index__(self):
        return operator.index(self.data)


def unwrap(x):
    if isinstance(x, FrozenArray):
        return x.data
    return type(x)(unwrap(item) for item in x) if type(x) in (list, tuple) else x


def wrap(x):
    """NumPy's scalars become arrays without axes; the arrays in a list or tuple are wrapped one by one."""
    if isinstance(x, numpy.ndarray | numpy.generic):
        return FrozenArray(numpy.asarray(x))
    return type(x)(wrap(item) for item in x) if type(x) in (list, tuple) else x


def wrapped(function):
    def call(*arguments, **options):
        return wrap(function(*map(unwrap, arguments), **{name: unwrap(x) for name, x in options.items()}))

    return call


def operators(function):
    """The methods ``x @ y`` and, for y on the left of something else, ``y @ x``."""
    function = wrapped(function)
    return (lambda self, *other: function(self, *other)), (lambda self, other: function(other, self))


for name in ["add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and", "or", "xor"]:
    forward, backward = operators(getattr(operator, f"__{name}__"))
    setattr(FrozenArray, f"__{name}__", forward)
    setattr(FrozenArray, f"__r{name}__", backward)
for name in ["eq", "ne", "lt", "le", "gt", "ge", "neg", "pos", "abs", "invert"]:
    setattr(FrozenArray, f"__{name}__", operators(getattr(operator, f"__{name}__"))[0])


class Namespace:
    """NumPy's functions by their names; its dtypes and constants as they are."""

    __name__ = "mha_frozen_v1.arrays.namespace"

    def __getattr__(self, name):
        found = getattr(numpy, name)
        return wrapped(found) if callable(found) and not isinstance(found, type) else found


namespace = Namespace()
