"""Plugins whose memory or whose imports break a promise are found by the conformance suite."""

import pytest
from suite import conform

pytestmark = pytest.mark.full

DENSE = """
import numpy as np
from mha_core.plugin import AttentionState, Backend, Kernel, hookimpl

def attention(p):
    s = p.query @ np.swapaxes(p.key, -1, -2) * np.float32(p.scale)
    s -= s.max(axis=-1, keepdims=True)
    np.exp(s, out=s)
    s /= s.sum(axis=-1, keepdims=True)
    return AttentionState(s @ p.value, None)

@hookimpl
def mha_kernels():
    yield Kernel("numpy", "attention", "dense", 1, "dense_plugin:attention", priority=9, handles=frozenset())
"""


def test_a_dense_kernel_takes_too_much_memory(tmp_path):
    """It takes as little memory as a dense kernel can: one array of scores, changed in place."""
    (tmp_path / "dense_plugin.py").write_text(DENSE)
    done = conform("numpy", "--plugin", "dense_plugin", "--quick", "-k", "test_memory", cwd=tmp_path, path=[tmp_path])
    assert done.returncode == 1, done.stdout
    assert "makes an array as large as the scores" in done.stdout
    assert "1 failed, 1 passed" in done.stdout  # it does not declare masks: the algebra computes that case


EARLY = """
import array_api_strict as xp
import numpy
from mha_core.plugin import Backend, hookimpl

@hookimpl
def mha_backends():
    kind = ("array_api_strict._array_object:Array",)
    convert = {"from_numpy": lambda x, _: xp.asarray(x.copy()), "to_numpy": lambda x: numpy.array(x._array)}
    yield Backend("early", 1, kind, lambda: xp, **convert)
"""


def test_a_plugin_that_imports_its_library_early_is_found(tmp_path):
    (tmp_path / "early_plugin.py").write_text(EARLY)
    done = conform("early", "--plugin", "early_plugin", "-k", "test_imports", cwd=tmp_path, path=[tmp_path])
    assert done.returncode == 1, done.stdout
    assert "import it inside namespace()" in done.stdout
