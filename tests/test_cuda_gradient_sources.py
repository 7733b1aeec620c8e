"""The CUDA sources of mha_cupy's gradients compile for three generations of GPUs without spilling registers."""

import numpy as np
import pytest

import mha_cupy.launch
import mha_cupy.products
import nvrtc
from cuda_on_host import plugin
from cuda_ops import DTYPES
from mha_core.algebra.structure import Structure
from mha_core.dispatch.backend import load
from mha_core.plugin import ArrayBias, AttentionProblem, AttentionState
from mha_cupy import activations, linear_vjp, norms_vjp, rotary, updates
from mha_cupy.attention import blocks_vjp, flash_vjp
from test_cuda_sources import ARCHES, LENGTHS, each_dtype

SOURCES = {"activations_vjp.cu", "adamw.cu", "columns.cu", "norms_vjp.cu", "rotary.cu", "rows.cu", "softmax.cu"}
ARRAYS = {"query", "key", "value"}


@pytest.fixture
def launches(monkeypatch):
    """Launches that were not run; nor are products."""
    plugin.stand_in(monkeypatch.setattr)
    monkeypatch.setattr(mha_cupy.products, "product", lambda *arrays, **options: None)
    found = []
    for module in (mha_cupy.launch, *plugin.PIECES):
        monkeypatch.setattr(module, "run", found.append)
    return found


def compute_pieces(kind):
    """Call each kernel of a piece with arrays of this dtype."""
    for length in LENGTHS:
        x, weight = np.zeros((2, length), dtype=kind), np.zeros(length, dtype=kind)
        norms_vjp.layer_norm_vjp(x, weight, weight, x, wanted={"x", "weight", "bias"}, eps=1e-5)
    norms_vjp.rms_norm_vjp(x, weight, x, wanted={"x", "weight"}, eps=1e-5)
    for features in (64, 6):
        x, w = np.zeros((2, features), dtype=kind), np.zeros((features, 8), dtype=kind)
        for approximate in ("none", "tanh"):
            activations.gelu_vjp(x, x, wanted={"x"}, approximate=approximate)
        activations.relu_vjp(x, x, wanted={"x"})
        activations.silu_vjp(x, x, wanted={"x"})
        table = np.zeros((2, features // 2), dtype=kind)
        for interleaved in (False, True):
            rotary.rotary_vjp(x, table, table, x, wanted={"x"}, interleaved=interleaved)
        linear_vjp.linear_vjp(x, w, w[0], np.zeros((2, 8), kind), wanted={"x", "w", "b"})
        linear_vjp.embedding_vjp(x, np.zeros(2, np.int64), num_rows=3)
        m = np.zeros((2, features), dtype=np.float64 if kind == np.float64 else np.float32)
        numbers = {"learning_rate": 0.1, "beta_1": 0.9, "beta_2": 0.99, "eps": 1e-8, "weight_decay": 0.1, "step": 1}
        updates.adamw(x, x, m, m.copy(), **numbers)


def compute_attention(function, kind, dim, value_dim, *, rows=200, cols=500, bias=None, softcap=None):
    """Call a kernel of attention_vjp without a bias, or with an array bias of the dtype ``bias``."""
    xp, wide = load("numpy").xp, np.float64 if kind == np.float64 else np.float32
    query, key, value = (np.zeros((1, 1, *shape), dtype=kind) for shape in ((rows, dim), (cols, dim), (cols, value_dim)))
    out, lse = np.zeros((1, 1, rows, value_dim), dtype=kind), np.zeros((1, 1, rows), dtype=wide)
    term = None if bias is None else ArrayBias(np.zeros((rows, cols), dtype=bias))
    p = AttentionProblem(xp, query, key, value, Structure(range(cols)), 1.0, bias=term, softcap=softcap)
    function(p, AttentionState(out, lse), out, lse, ARRAYS)


@each_dtype
@pytest.mark.parametrize("arch", ARCHES)
def test_sources_compile_without_spilling_registers(launches, arch, dtype):
    kind = DTYPES[dtype]
    compute_pieces(kind)
    compute_attention(blocks_vjp.attention_vjp, kind, 8, 8, bias=kind)
    compute_attention(blocks_vjp.attention_vjp, kind, 8, 8, cols=1)
    assert {launch.source for launch in launches} == SOURCES
    nvrtc.assert_compiled(launches, arch)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("arch", ARCHES)
def test_the_fused_kernel_of_attention_compiles_without_spilling_registers(launches, arch, dtype):
    kind = DTYPES[dtype]
    for dim, value_dim in ((64, 64), (128, 128), (127, 65)):
        for bias in (None, np.float32):
            compute_attention(flash_vjp.attention_vjp, kind, dim, value_dim, bias=bias)
    compute_attention(flash_vjp.attention_vjp, kind, 128, 128, rows=1, cols=16, bias=kind, softcap=3.0)
    assert {launch.source for launch in launches} == {"rows.cu", "flash_vjp.cu"}
    nvrtc.assert_compiled(launches, arch)
