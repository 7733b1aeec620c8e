"""The CUDA sources of mha_cupy compile for three generations of GPUs without spilling registers. Nothing here runs them."""

import re

import numpy as np
import nvrtc
import pytest
from cuda_kernels import DTYPES, each_dtype
from cuda_on_host import SOURCES, plugin

import mha_cupy.launch
import mha_cupy.products
from mha_core.algebra.structure import Structure
from mha_core.dispatch.backend import load
from mha_core.plugin import ArrayBias, AttentionProblem, AttentionState
from mha_cupy import activations, linear_vjp, norms, norms_vjp, rotary, updates
from mha_cupy.attention import blocks, blocks_vjp, flash, flash_vjp

ARCHES = ["sm_80", "sm_90", "sm_100"]
LENGTHS = [32, 8192, 16384, 20000, 8191]  # of rows: one warp, several packs per thread, too long for registers, unaligned
ARRAYS = {"query", "key", "value"}


@pytest.fixture
def launches(monkeypatch):
    """Launches that were not run; nor are products."""
    recorded = []
    monkeypatch.setattr(mha_cupy.products, "product", lambda *arrays, **options: None)
    for module in (mha_cupy.launch, *plugin.PIECES):
        monkeypatch.setattr(module, "run", recorded.append)
    return recorded


def compute_pieces(kind):
    """Call each kernel of a piece with arrays of this dtype."""
    for length in LENGTHS:
        x, weight = np.zeros((2, length), dtype=kind), np.zeros(length, dtype=kind)
        norms.layer_norm(x, None, None, eps=1e-5)
        norms_vjp.layer_norm_vjp(x, weight, weight, x, wanted={"x", "weight", "bias"}, eps=1e-5)
    norms.rms_norm(x, None, eps=1e-5)
    norms_vjp.rms_norm_vjp(x, weight, x, wanted={"x", "weight"}, eps=1e-5)
    for features in (64, 6):
        x, w = np.zeros((2, features), dtype=kind), np.zeros((features, 8), dtype=kind)
        activations.in_place("identity", x)
        for approximate in ("none", "tanh"):
            activations.gelu(x, approximate=approximate)
            activations.gelu_vjp(x, x, wanted={"x"}, approximate=approximate)
        for name in ("relu", "silu"):
            getattr(activations, name)(x)
            getattr(activations, f"{name}_vjp")(x, x, wanted={"x"})
        table = np.zeros((2, features // 2), dtype=kind)
        for interleaved in (False, True):
            rotary.rotary(x, table, table, interleaved=interleaved)
            rotary.rotary_vjp(x, table, table, x, wanted={"x"}, interleaved=interleaved)
        linear_vjp.linear_vjp(x, w, w[0], np.zeros((2, 8), kind), wanted={"x", "w", "b"})
        linear_vjp.embedding_vjp(x, np.zeros(2, np.int64), num_rows=3)
        m = np.zeros((2, features), dtype=np.float64 if kind == np.float64 else np.float32)
        numbers = {"learning_rate": 0.1, "beta_1": 0.9, "beta_2": 0.99, "eps": 1e-8, "weight_decay": 0.1, "step": 1}
        updates.adamw(x, x, m, m.copy(), **numbers)


def compute_attention(module, kind, dim, value_dim, *, rows=200, cols=500, bias=None, softcap=None):
    """Call an attention kernel, or one of its gradients, without a bias or with an array bias of the dtype ``bias``."""
    xp, wide = load("numpy").xp, np.float64 if kind == np.float64 else np.float32
    query, key, value = (np.zeros((1, 1, *shape), dtype=kind) for shape in ((rows, dim), (cols, dim), (cols, value_dim)))
    term = None if bias is None else ArrayBias(np.zeros((rows, cols), dtype=bias))
    p = AttentionProblem(xp, query, key, value, Structure(range(cols)), 1.0, bias=term, softcap=softcap)
    if hasattr(module, "attention"):
        module.attention(p)
    else:
        out, lse = np.zeros((1, 1, rows, value_dim), dtype=kind), np.zeros((1, 1, rows), dtype=wide)
        module.attention_vjp(p, AttentionState(out, lse), out, lse, ARRAYS)


@each_dtype
@pytest.mark.parametrize("arch", ARCHES)
def test_sources_compile_without_spilling_registers(launches, monkeypatch, arch, dtype):
    kind, is_half = DTYPES[dtype], dtype in ("float16", "bfloat16")
    compute_pieces(kind)
    for cols in (1, 128, 600, 8192 if dtype == "float64" else 16384):
        compute_attention(blocks, kind, 8, 8, rows=2, cols=cols, bias=kind)
    compute_attention(blocks_vjp, kind, 8, 8, bias=kind)
    compute_attention(blocks_vjp, kind, 8, 8, cols=1)
    if is_half:
        compute_attention(flash, kind, 128, 128, rows=1)
        assert {launch.kernel for launch in launches[-2:]} == {"flash", "combine"}
        monkeypatch.setattr(flash, "multiprocessors", lambda: 0)  # keys are not split
        for bias in (None, np.float32):
            for dim, value_dim in ((64, 64), (128, 128)):
                compute_attention(flash, kind, dim, value_dim, bias=bias)
            for dim, value_dim in ((64, 64), (128, 128), (127, 65)):
                compute_attention(flash_vjp, kind, dim, value_dim, bias=bias)
        compute_attention(flash, kind, 192, 128)
        for dim, value_dim, rows in ((256, 128, 200), (256, 256, 200), (127, 65, 1), (127, 65, 200)):
            compute_attention(flash, kind, dim, value_dim, rows=rows, bias=kind)
        compute_attention(flash_vjp, kind, 128, 128, rows=1, cols=16, bias=kind, softcap=3.0)
    every = {path.name for path in SOURCES.glob("*.cu")}
    assert {launch.source for launch in launches} == (every if is_half else every - {"flash.cu", "flash_vjp.cu"})
    nvrtc.assert_compiled(launches, arch)


@each_dtype
def test_aligned_arrays_are_read_and_written_16_bytes_at_a_time(launches, dtype):
    x, table = np.zeros((2, 64), dtype=DTYPES[dtype]), np.zeros((2, 32), dtype=DTYPES[dtype])
    norms.layer_norm(x, None, None, eps=1e-5)
    activations.gelu(x, approximate="none")
    rotary.rotary(x, table, table, interleaved=True)
    for launch in launches:
        _, ptx = nvrtc.compiled(launch.source, launch.defines, "sm_90")
        widths = re.findall(r"(?:ld|st)\.global(?:\.nc)?(?:\.v(\d))?\.[a-z](\d+)", ptx)
        assert widths and {int(count or 1) * int(bits) for count, bits in widths} == {128}, launch.source


@each_dtype
def test_misaligned_arrays_are_read_and_written_in_smaller_accesses(dtype):
    kind = DTYPES[dtype]
    size = np.dtype(kind).itemsize
    x, out = np.zeros((4, 64), dtype=kind), np.zeros((4, 64), dtype=kind)

    def packed(x, out):
        launch = activations.activation("relu", x, out)
        return next(int(define[5:]) for define in launch.defines if define.startswith("PACK="))

    assert packed(x, out) == 16 // size
    assert packed(x[:, 1:], out[:, 1:].copy()) == 1, "rows of odd length begin at any element"
    assert packed(x[:, 2:], out[:, 2:].copy()) == min(2, 16 // size)
    assert packed(x.reshape(-1)[1:193].reshape(3, 64), out[:3]) == 1, "the array is not aligned"
    assert packed(np.zeros((4, 65), dtype=kind)[:, :64], out) == 1, "the stride between rows is odd"


def test_a_source_that_does_not_compile_shows_the_compiler_log():
    with pytest.raises(AssertionError, match='identifier "nothing" is undefined'):
        nvrtc.compiled("activations.cu", ("DTYPE=float", "WIDE=float", "ACTIVATION=nothing", "PACK=4"), "sm_90")
