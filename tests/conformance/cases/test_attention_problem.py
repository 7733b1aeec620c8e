"""The call of a problem of attention."""

import sys
import types

import numpy as np
import pytest

from mha_conformance.cases.attention_problem import AttentionProblem
from mha_core.plugin import Kernel, hookimpl, register, unregister


@hookimpl
def mha_kernels():
    yield Kernel("numpy", "attention", "pair", 1, "returns_a_pair:attention", 1000, handles=frozenset({"lse"}))


def test_a_kernel_that_returns_no_state_is_told_what_to_return(monkeypatch):
    plugin = types.SimpleNamespace(mha_kernels=mha_kernels)
    module = types.SimpleNamespace(attention=lambda p: (p.query, p.query[..., 0]))
    monkeypatch.setitem(sys.modules, "returns_a_pair", module)
    x = np.ones((1, 2, 3))
    problem = types.SimpleNamespace(row={"lse": True}, settings=types.SimpleNamespace(make=lambda arrays: {}))
    register(plugin)
    try:
        with pytest.raises(TypeError, match=r"returned tuple; expected AttentionState\(out, lse\)"):
            AttentionProblem.call(problem, {"query": x, "key": x, "value": x})
    finally:
        unregister(plugin)
