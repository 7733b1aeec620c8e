"""Registered plugins: their backends exist until they are unregistered, and a broken plugin leaves no trace."""

import re
from dataclasses import replace

import numpy as np
import pytest
from sample_kernels import Plugin, a_backend, a_kernel, registered

import mha_core as mha
from mha_core.plugin import Kernel, hookimpl, register, unregister


def names():
    return [backend.name for backend in mha.backends()]


def test_a_registered_backend_computes_and_is_gone_after_unregister():
    plugin = Plugin(backends=[a_backend()])
    with registered(plugin):
        assert "sample" in names()
        assert mha.sinusoidal_positions(2, 4, backend="sample").shape == (2, 4)
    assert "sample" not in names()
    with pytest.raises(mha.UnknownBackend):
        mha.sinusoidal_positions(2, 4, backend="sample")
    with pytest.raises(ValueError, match="not registered"):
        unregister(plugin)


def test_what_is_never_used_is_listed_with_the_reason():
    with registered(Plugin([a_kernel(backend="nowhere"), a_kernel("attend")])), registered(Plugin()):
        reasons = [row.reason for row in mha.backends() if row.state == "idle"]
    assert reasons[0] == "it extends backend 'nowhere', which no installed plugin provides"
    assert reasons[1].startswith("kernel 'sample' is for 'attend'; expected one of attention, ")
    assert reasons[2] == "its hooks yield neither a backend, a kernel nor an engine"


class NoException(BaseException):
    """As some libraries raise to stop a process."""


class Raises:
    def __init__(self, error):
        self.error = error

    @hookimpl
    def mha_backends(self):
        yield a_backend()
        raise self.error


class NoHook:
    def mha_backends(self):
        """Not marked with @hookimpl."""


class OtherNames:
    """pluggy lets a function have another name than its hook, and lets a hook be unknown."""

    @hookimpl(specname="mha_backends")
    def ours(self):
        return [a_backend("renamed")]

    @hookimpl(optionalhook=True)
    def mha_of_a_later_version(self):
        return []


def test_a_hook_may_have_another_name_or_belong_to_a_later_version():
    with registered(OtherNames()):
        assert "renamed" in names()


class UnknownHook:
    @hookimpl
    def mha_backend(self):
        """A letter is missing."""


A_KERNEL = Kernel(backend="numpy", op="relu", name="sample", api=1, load="nowhere:relu")


def malformed(argument, name):
    """A plugin with a kernel whose function has a malformed name, and the error that is raised for it."""
    message = f"{argument} of kernel 'sample' for relu on numpy is {name!r}; expected \"module:function\""
    return Plugin([replace(A_KERNEL, **{argument: name})]), ValueError, re.escape(message)


def mistyped(record, field, value, expected):
    """A plugin with a record that has a field of another type, and the error that is raised for it."""
    message = f"{field} of .*{record.name if field != 'name' else 'None'}.* is {re.escape(repr(value))}; expected {expected}"
    changed = replace(record, **{field: value})
    return Plugin([changed]) if isinstance(record, Kernel) else Plugin(backends=[changed]), TypeError, message


BROKEN = {
    "raises": (Raises(RuntimeError("out of luck")), RuntimeError, "out of luck"),
    "no hook": (NoHook(), TypeError, "no hook.*@hookimpl"),
    "unknown hook": (UnknownHook(), TypeError, "marks mha_backend with @hookimpl, but there is no such hook.*mha_backends"),
    "rubbish": (Plugin(backends=[a_backend(), "rubbish"]), TypeError, "'rubbish'.*expected a Backend"),
    "kernel as backend": (Plugin(backends=[A_KERNEL]), TypeError, "expected a Backend"),
    "backend as kernel": (Plugin([A_KERNEL, a_backend()]), TypeError, "expected a Kernel"),
    "api of backend": (
        Plugin(backends=[a_backend(), a_backend("other", api=99)]),
        mha.PluginApiMismatch,
        "'other'.*api 99.*api 1",
    ),
    "api of kernel": (Plugin([Kernel("numpy", "relu", "k", 2, "m:f")], [a_backend()]), mha.PluginApiMismatch, "'k'.*api 2"),
    "name taken": (Plugin(backends=[a_backend(), a_backend("numpy")]), ValueError, "'numpy' is already registered by mha-core"),
    "name twice": (Plugin(backends=[a_backend(), a_backend()]), ValueError, "'sample'"),
    "name of a kernel taken": (
        *(Plugin([replace(A_KERNEL, op="gelu", name="tiles")]), ValueError),
        "a kernel named 'tiles' for gelu on numpy is already registered by mha-core ",
    ),
    "name of the algebra": (
        *(Plugin([replace(A_KERNEL, name="algebra")]), ValueError),
        "a kernel for relu is named 'algebra', which is reserved for the algebra",
    ),
    "load without a module": malformed("load", "relu"),
    "load is a function": mistyped(A_KERNEL, "load", len, "str"),
    "prepare without a function": malformed("prepare", "nowhere:"),
    "supports without a module": malformed("supports", ":supports"),
    "supports without a function": malformed("supports", "nowhere.supports"),
    "supports of two": malformed("supports", "nowhere:supports:too"),
    "supports of no name": mistyped(A_KERNEL, "supports", True, "str or a function or None"),
    "priority in words": mistyped(A_KERNEL, "priority", "high", "int"),
    "priority of yes": mistyped(A_KERNEL, "priority", True, "int"),
    "no name": mistyped(A_KERNEL, "name", None, "str"),
    "empty name": (Plugin([replace(A_KERNEL, name="")]), ValueError, "name of kernel '' for relu on numpy is empty"),
    "features in a list": mistyped(A_KERNEL, "handles", ["lse"], "a frozenset, each item str"),
    "one feature": mistyped(A_KERNEL, "handles", "lse", "a frozenset, each item str"),
    "features by number": mistyped(A_KERNEL, "handles", frozenset({1}), "a frozenset, each item str"),
    "source as text": mistyped(A_KERNEL, "source", "__global__ void f()", "a function or None"),
    "types as text": mistyped(a_backend(), "types", "numpy:ndarray", "a tuple, each item str or a function"),
    "namespace by name": mistyped(a_backend(), "namespace", "numpy", "a function"),
    "exits": (Raises(SystemExit(3)), SystemExit, "3"),
    "raises no Exception": (Raises(NoException("not even an Exception")), NoException, "not even an Exception"),
}


@pytest.mark.parametrize(("plugin", "error", "message"), BROKEN.values(), ids=BROKEN)
def test_a_broken_plugin_is_refused_and_leaves_no_trace(plugin, error, message):
    before = mha.backends()
    try:
        with pytest.raises(error, match=message):
            register(plugin)
        assert mha.backends() == before
    finally:
        if mha.backends() != before:
            unregister(plugin)
    np.testing.assert_array_equal(mha.relu(np.asarray([-2.0, 3.0])), [0.0, 3.0])
    assert isinstance(mha.sinusoidal_positions(2, 4), np.ndarray)
