"""The tiles of AMX, emulated on processors without them and under sanitizers: int8 maps have the bits of the algebra, and
attention in bfloat16 conforms.
"""

import sys

import pytest
from native import LEVELS, needs_native
from sanitized_builds import needs_sanitizers, with_emulated_amx
from suite import SUITE

pytestmark = [
    needs_native,
    needs_sanitizers,
    pytest.mark.full,
    pytest.mark.rotating("emulated"),  # the build takes minutes
    pytest.mark.skipif("avx512_bf16" not in LEVELS, reason="no AVX512_BF16, the level that tiles are emulated at"),
]

INT8_MAPS = """
import itertools
import numpy as np, mha_core as mha
from mha_native.level import native

print(native.use_level("avx512_bf16"))
rng, judged = np.random.default_rng(0), 0
normal = lambda *shape: rng.normal(size=shape).astype(np.float32)
for inputs, outputs in itertools.product((1, 63, 64, 65, 130, 384), (1, 16, 31, 33, 64)):
    w, b = mha.quantize_weight(normal(inputs, outputs)), normal(outputs)
    for rows in (1, 5, 6, 7, 16, 17, 22, 100):
        x = normal(rows, inputs)
        with mha.use_kernel("linear_int8", "algebra"):
            expected = mha.linear(x, w, b)
        with mha.use_kernel("linear_int8", "native"):
            judged += np.array_equal(mha.linear(x, w, b), expected)
print(judged)
"""


def test_emulated_tiles_of_amx_give_the_bits_of_int8_maps(tmp_path):
    assert with_emulated_amx([sys.executable, "-c", INT8_MAPS], tmp_path, status=0).stdout.split() == ["avx512_bf16", "240"]


def test_emulated_tiles_of_amx_attend_in_bfloat16(tmp_path):
    options = ["--backend", "torch", "--dtype", "bfloat16", "--quick", "--part", "0.2", "-k", "native and covering"]
    command = [*SUITE, "-q", "-s", "-p", "no:cacheprovider", *options]
    done = with_emulated_amx(command, tmp_path, MHA_NATIVE_LEVEL="avx512_bf16", status=0)
    assert "attention by native" in done.stdout
