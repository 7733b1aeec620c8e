"""A fault that would make a whole run fail is found before the run, and the message names the cause and the remedy."""

import types
from dataclasses import replace

import array_api_strict
import numpy as np
import pytest

import mha_core as mha
from mha_conformance import test_memory, test_namespace
from mha_conformance.backend import CannotJudge
from mha_conformance.find import NEEDED, find
from mha_conformance.judge.layouts import laid_out
from mha_core.algebra.arrays import device_name
from mha_core.dispatch.registry import register
from mha_core.ops.explain import explain
from mha_core.plugin import Backend, hookimpl


class Array:
    """An array of a library of its own: a NumPy array inside."""

    def __init__(self, x):
        self.x = x

    def __getattr__(self, name):
        return getattr(self.x, name)

    def __getitem__(self, at):
        return Array(self.x[at])


class Lazy(Array):
    def __dlpack_device__(self):
        raise NotImplementedError("not computed yet")


class Homeless(Array):
    def __getattr__(self, name):
        if name in ("device", "__dlpack_device__"):
            raise AttributeError(name)
        return getattr(self.x, name)


def namespace(kind, without=()):
    """Return NumPy as the namespace of these arrays."""

    def wrapped(function):
        def call(*arguments, device=None, **options):
            result = function(*(x.x if isinstance(x, Array) else x for x in arguments), **options)
            return kind(result) if isinstance(result, np.ndarray) else result

        return call

    module = types.ModuleType("mylibrary")
    for name in {*NEEDED.split(), "float64", "float16"} - set(without):
        found = getattr(np, name)
        setattr(module, name, found if isinstance(found, type) else wrapped(found))
    if "bits of iinfo" in without:
        module.iinfo = lambda dtype: None
    return module


def backend(kind=Array, *, types=None, without=(), **fields):
    conversions = {"from_numpy": lambda x, device: kind(x), "to_numpy": lambda x: x.x} | fields
    named = (f"{kind.__module__}:{kind.__qualname__}",) if types is None else types
    return Backend("mine", 1, named, lambda: namespace(kind, without), **conversions)


def raises(value):
    raise OSError(value)


FAULTS = {
    "a function is missing": (
        backend(without=("asarray", "take")),
        "the namespace of backend 'mine', mylibrary, has 55 of 57 names that attention needs; add asarray, take",
    ),
    "a limit of a dtype is missing": (
        backend(without=("bits of iinfo",)),
        "has 56 of 57 names that attention needs; add iinfo(int64).bits",
    ),
    "types names another class": (
        backend(types=("mylibrary:Array",)),
        f"its arrays are {__name__}:Array, which belong to no backend: write types=('{__name__}:Array',)",
    ),
    "from_numpy returns what it gets": (
        backend(from_numpy=lambda x, device: x),
        "from_numpy of backend 'mine' returns numpy:ndarray, an array of backend 'numpy': convert it to yours",
    ),
    "from_numpy raises": (
        backend(from_numpy=lambda x, device: raises("no room")),
        (
            "backend 'mine' cannot convert an array from NumPy: OSError: no room; its from_numpy is called with a NumPy array "
            "and a device, which is None for the default one"
        ),
    ),
    "to_numpy raises": (
        backend(to_numpy=lambda x: raises("stuck")),
        "backend 'mine' cannot convert an array to NumPy: OSError: stuck; the field to_numpy of its Backend can say how",
    ),
    "numbers change on the way": (
        backend(to_numpy=lambda x: x.x + 1),
        "converts array([1.5], dtype=float32) to its library, and returns array([2.5], dtype=float32) from there",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_of_the_backend_is_named(fault, installed):
    record, message = FAULTS[fault]
    installed(backends=[record])
    with pytest.raises(CannotJudge) as raised:
        find("mine", None, None)
    assert message in str(raised.value)


def test_the_needed_names_are_those_whose_answers_are_compared():
    tried = {name for name in test_namespace.FUNCTIONS if hasattr(array_api_strict, name)}
    others = {"finfo", "float32", "iinfo", "isdtype", "uint32"}  # compared by the other tests of that module
    assert set(NEEDED.split()) == tried | others


def test_memory_that_a_library_does_not_tell_is_not_judged(installed):
    installed(backends=[backend(Lazy)])
    found = find("mine", None, ["float32"])
    assert found.on_host == "__dlpack_device__ of its arrays raises NotImplementedError: not computed yet"
    with pytest.raises(pytest.skip.Exception, match="is not known: __dlpack_device__ of its arrays raises"):
        test_memory.measured.__wrapped__(found)


class Copied(Array):
    """An array whose parts are copies, and its transpose: libraries without strides have such."""

    def __getitem__(self, at):
        return type(self)(self.x[at].copy())

    @property
    def transposed(self):
        return type(self)(self.x.T.copy())

    def __dlpack__(self, **options):
        return self.x.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.x.__dlpack_device__()


class NoStrides(Copied):
    def __dlpack__(self, **options):
        if not self.x.flags.c_contiguous:
            raise BufferError("this library exports no strides")
        return super().__dlpack__(**options)

    def __getitem__(self, at):
        return type(self)(self.x[at])


@pytest.mark.parametrize(("kind", "views"), [(Copied, False), (NoStrides, True), (Lazy, True)])
def test_layouts_in_memory_are_made_where_a_library_has_views(kind, views, installed):
    record = backend(kind)
    space = record.namespace()
    space.matrix_transpose = lambda x: x.transposed
    installed(backends=[replace(record, namespace=lambda: space)])
    mine = find("mine", None, ["float32"])
    x = mine.array(np.ones((3, 4)))
    assert mine.has_views is views and (views or laid_out(mine, x, "flipped") is x)
    assert find("numpy", None, ["float32"]).has_views


def test_a_library_without_devices_has_no_device_named_none(installed):
    installed(backends=[backend(Homeless)])
    found = find("mine", None, ["float32"])
    assert found.on_host == "its arrays have no __dlpack_device__"
    told = explain("gelu", found.array(np.zeros(2)))
    assert told.device == "" and str(told).splitlines()[0] == "gelu: algebra (mine, float32)"


def test_a_device_without_a_name_is_not_named():
    """Python's own text of an object has its address."""
    assert device_name(types.SimpleNamespace(device=object())) == ""
    assert device_name(types.SimpleNamespace(device="cpu")) == "cpu"


def test_an_array_that_belongs_to_its_thread_is_computed_when_it_is_made(installed):
    computed = []
    installed(backends=[backend(to_numpy=lambda x: computed.append(x) or x.x, thread_bound=True)])
    found = find("mine", None, ["float32"])
    computed.clear()
    made = found.array(np.arange(2))
    assert len(computed) == 1 and computed[0] is made


class Misspelt:
    @hookimpl
    def mha_backend(self):
        return []


def test_a_misspelt_hook_is_named_with_the_right_one():
    with pytest.raises(TypeError, match=r"marks mha_backend with @hookimpl, but there is no such hook; .*'mha_backends'\?"):
        register(Misspelt(), "mine")


def test_a_broken_plugin_is_named_where_its_backend_is_missed(monkeypatch):
    from mha_core.dispatch.registry import registry

    before = list(registry().plugins)
    monkeypatch.setattr(registry(), "plugins", before)
    registry().add_module(Misspelt(), "my-plugin")
    with pytest.raises(mha.UnknownBackend, match=r"is named 'mine'; .*; the plugin my-plugin is broken: my-plugin marks"):
        mha.set_default_backend("mine")


def test_a_right_backend_is_found(installed):
    installed(backends=[backend()])
    assert find("mine", None, None).dtypes == ("float32", "float64", "float16")
