"""The CUDA sources of mha_cupy compile for three generations of GPUs without spilling registers. Nothing here runs them."""

import re

import numpy as np
import pytest

import nvrtc
from cuda_ops import DTYPES
from mha_core.algebra.structure import Structure
from mha_core.dispatch.backend import load
from mha_core.plugin import ArrayBias, AttentionProblem
from mha_cupy.activations import activation
from mha_cupy.attention import blocks, flash, flash_config
from mha_cupy.attention.mask_and_bias import MaskAndBias
from mha_cupy.attention.partition import Block
from mha_cupy.norms import norm
from mha_cupy.rotary import rotation

ARCHES = ["sm_80", "sm_90", "sm_100"]
LENGTHS = [32, 8192, 16384, 20000, 8191]  # of rows: one warp, several packs per thread, too long for registers, unaligned
ACTIVATIONS = ["identity", "relu", "gelu", "gelu_tanh", "silu"]
each_dtype = pytest.mark.parametrize("dtype", DTYPES)


def launches(dtype):
    """Yield launches that use every source, with the defines for arrays of this dtype."""
    for length in LENGTHS:
        x, out = (np.zeros((2, length), dtype=DTYPES[dtype]) for _ in range(2))
        yield norm(x, None, None, out, eps=1e-5)
    yield norm(x, None, None, out, eps=1e-5, centred=False)
    for features in (64, 6):
        x, out = (np.zeros((2, features), dtype=DTYPES[dtype]) for _ in range(2))
        table = np.zeros((2, features // 2), dtype=DTYPES[dtype])
        yield from (activation(name, x, out) for name in ACTIVATIONS)
        yield from (rotation(x, table, table, out, interleaved=interleaved) for interleaved in (False, True))
    yield from (softmax(dtype, num_keys) for num_keys in (1, 128, 600, 8192 if dtype == "float64" else 16384))
    if dtype in ("float16", "bfloat16"):
        for dim, value_dim in ((64, 64), (128, 128)):
            yield from (flash_launch(dtype, 200, dim, value_dim, bias=bias) for bias in (None, np.float32))
        yield flash_launch(dtype, 200, 192, 128, bias=None)
        yield from (flash_launch(dtype, 200, 256, value_dim, bias=dtype) for value_dim in (128, 256))
        yield from (flash_launch(dtype, rows, 127, 65, bias=dtype) for rows in (1, 200))
        yield flash_launch(dtype, 1, 128, 128, bias=None, splits=2)


def softmax(dtype, num_keys):
    """Return the softmax launch of the kernel ``blocks``, with a bias in the query's dtype."""
    kind = np.dtype(DTYPES[dtype])
    xp = load("numpy").xp
    bias = np.zeros((2, num_keys), dtype=kind)
    query, key = np.zeros((1, 2, 8), dtype=kind), np.zeros((1, num_keys, 8), dtype=kind)
    p = AttentionProblem(xp, query, key, key, Structure(range(num_keys)), 1.0, bias=ArrayBias(bias))
    scores = np.zeros((1, 1, 1, 2, num_keys), dtype=p.compute_dtype)
    block = Block(range(1), range(1), range(2), (range(num_keys),))
    return blocks._softmax(MaskAndBias(p, ()), block, range(num_keys), scores, scores.astype(kind), None)


def flash_launch(dtype, num_rows, dim, value_dim, *, bias, splits=1):
    """Return the launch of the kernel ``flash``. bias: its dtype, or None."""
    kind, xp = DTYPES[dtype], load("numpy").xp
    query, key = np.zeros((1, 1, num_rows, dim), dtype=kind), np.zeros((1, 1, 500, dim), dtype=kind)
    value, out = np.zeros((1, 1, 500, value_dim), dtype=kind), np.zeros((splits, 1, 1, 1, num_rows, value_dim), dtype=kind)
    bias = None if bias is None else ArrayBias(np.zeros((num_rows, 500), dtype=DTYPES.get(bias, bias)))
    p = AttentionProblem(xp, query, key, value, Structure(range(500)), 1.0, bias=bias)
    modifiers = MaskAndBias(p, (), takes_spans=True)
    block = flash_config.thread_block(dim, value_dim, num_rows, plain=modifiers.is_plain)
    out = out if splits == 1 else out.astype(np.float32)
    return flash._flash(modifiers, block, query[:, :, None], key, value, out, None, None)


@each_dtype
@pytest.mark.parametrize("arch", ARCHES)
def test_sources_compile_without_spilling_registers(arch, dtype):
    nvrtc.assert_compiled(launches(dtype), arch)


@each_dtype
def test_aligned_arrays_are_read_and_written_16_bytes_at_a_time(dtype):
    x, out = (np.zeros((2, 64), dtype=DTYPES[dtype]) for _ in range(2))
    table = np.zeros((2, 32), dtype=DTYPES[dtype])
    found = [norm(x, None, None, out, eps=1e-5), activation("gelu", x, out), rotation(x, table, table, out, interleaved=True)]
    for launch in found:
        _, ptx = nvrtc.compiled(launch.source, launch.defines, "sm_90")
        widths = re.findall(r"(?:ld|st)\.global(?:\.nc)?(?:\.v(\d))?\.[a-z](\d+)", ptx)
        assert widths and {int(count or 1) * int(bits) for count, bits in widths} == {128}, launch.source


@each_dtype
def test_misaligned_arrays_are_read_and_written_in_smaller_accesses(dtype):
    kind = DTYPES[dtype]
    size = np.dtype(kind).itemsize
    x, out = np.zeros((4, 64), dtype=kind), np.zeros((4, 64), dtype=kind)

    def packed(x, out):
        return next(int(define[5:]) for define in activation("relu", x, out).defines if define.startswith("PACK="))

    assert packed(x, out) == 16 // size
    assert packed(x[:, 1:], out[:, 1:].copy()) == 1, "rows of odd length begin at any element"
    assert packed(x[:, 2:], out[:, 2:].copy()) == min(2, 16 // size)
    assert packed(x.reshape(-1)[1:193].reshape(3, 64), out[:3]) == 1, "the array is not aligned"
    assert packed(np.zeros((4, 65), dtype=kind)[:, :64], out) == 1, "the stride between rows is odd"


def test_a_source_that_does_not_compile_shows_the_compiler_log():
    with pytest.raises(AssertionError, match='identifier "nothing" is undefined'):
        nvrtc.compiled("activations.cu", ("DTYPE=float", "WIDE=float", "ACTIVATION=nothing", "PACK=4"), "sm_90")
