"""Registered plugins: their backends exist until they are unregistered, and a broken plugin leaves no trace."""

import re
from dataclasses import replace

import numpy as np
import pluggy
import pytest

import mha_core as mha
from mha_core.plugin import Kernel, hookimpl, register, unregister
from sample_kernels import Plugin, a_backend


def names():
    return [backend.name for backend in mha.backends()]


def test_a_registered_backend_computes_and_is_gone_after_unregister():
    plugin = Plugin(backends=[a_backend()])
    register(plugin)
    try:
        assert "sample" in names()
        assert mha.sinusoidal_positions(2, 4, backend="sample").shape == (2, 4)
    finally:
        unregister(plugin)
    assert "sample" not in names()
    with pytest.raises(mha.UnknownBackend):
        mha.sinusoidal_positions(2, 4, backend="sample")
    with pytest.raises(ValueError, match="not registered"):
        unregister(plugin)


class Raises:
    @hookimpl
    def mha_backends(self):
        yield a_backend()
        raise RuntimeError("out of luck")


class NoHook:
    def mha_backends(self):
        """Not marked with @hookimpl."""


class UnknownHook:
    @hookimpl
    def mha_backend(self):
        """A letter is missing."""


A_KERNEL = Kernel(backend="numpy", op="relu", name="sample", api=1, load="nowhere:relu")


def malformed(argument, name):
    """A plugin with a kernel whose function has a malformed name, and the error that is raised for it."""
    message = f"{argument} of kernel 'sample' for relu on numpy is {name!r}; expected \"module:function\""
    return Plugin([replace(A_KERNEL, **{argument: name})]), ValueError, re.escape(message)


BROKEN = {
    "raises": (Raises(), RuntimeError, "out of luck"),
    "no hook": (NoHook(), TypeError, "no hook.*@hookimpl"),
    "unknown hook": (UnknownHook(), pluggy.PluginValidationError, "mha_backend"),
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
    "load without a module": malformed("load", "relu"),
    "load is a function": malformed("load", len),
    "no load": malformed("load", None),
    "prepare without a function": malformed("prepare", "nowhere:"),
    "supports without a module": malformed("supports", ":supports"),
    "supports without a function": malformed("supports", "nowhere.supports"),
    "supports of two": malformed("supports", "nowhere:supports:too"),
    "supports of no name": malformed("supports", True),
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
