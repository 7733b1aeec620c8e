"""The compiled kernel in bfloat16: by AMX, by AVX512_BF16, whose numbers lie in pairs, and converted to float32."""

import ctypes
import mmap
import sys

import numpy as np
import pytest
import torch
from native import LEVELS, chosen, in_process, needs_native

import mha_core as mha
from mha_conformance.oracle.tolerance import assert_within, exact_attention

pytestmark = [needs_native, pytest.mark.usefixtures("level")]
needs_amx = pytest.mark.skipif(LEVELS[0] != "avx512_amx", reason="the processor has no AMX")


def rounded(x):
    """Return the numbers as a tensor in bfloat16, and in float64."""
    x = torch.from_numpy(x).to(torch.bfloat16)
    return x, x.double().numpy()


def assert_right(query, key, value, options=None, **exact):
    (query, q), (key, k), (value, v) = map(rounded, (query, key, value))
    assert chosen(query, key, value, **(options or {})).startswith("attention: native (")
    got = mha.attention_state(query, key, value, **(options or {}))
    expected = exact_attention(q, k, v, dtype="bfloat16", rounds_weights=True, **exact)
    assert_within("out", got.out.double().numpy(), expected.out, expected.out_bound)
    assert_within("lse", got.lse.double().numpy(), expected.lse, expected.lse_bound)


@pytest.mark.parametrize("keys", [1, 2, 7, 16, 129, 131])
@pytest.mark.parametrize(("width", "value_width"), [(1, 1), (2, 3), (31, 33), (64, 64)])
def test_odd_numbers_of_keys_and_features_have_no_partner(rng, keys, width, value_width):
    query, key = rng.normal(size=(2, 50, width)), rng.normal(size=(2, keys, width))
    assert_right(query, key, rng.normal(size=(2, keys, value_width)))


@pytest.mark.parametrize("step", [1, 2, 3])
def test_rows_may_lie_anywhere(rng, step):
    """A row may begin at an odd number, and its numbers may lie apart."""
    whole = torch.from_numpy(rng.normal(size=(3, 2, 60, 40 * step + 1))).to(torch.bfloat16)
    query, key, value = whole[..., 1::step]
    dense = mha.scaled_dot_product_attention(query.contiguous(), key.contiguous(), value.contiguous())
    assert torch.equal(mha.scaled_dot_product_attention(query, key, value), dense)


def test_the_maximum_may_move_within_a_block_of_keys(rng):
    """Scores rise by far more than its step: pairs of weights that are known are scaled."""
    key = np.linspace(0, 20, 120)[:, None] * np.ones(8) + rng.normal(size=(120, 8)) / 8
    assert_right(np.ones((1, 48, 8)) * 2, key[None], rng.normal(size=(1, 120, 8)) + 3)


def test_a_weight_is_rounded_once_though_the_maximum_moves(rng):
    """In base 2 the scores are 0, then 31 for one key, where the maximum stays, then 32 for another, to which it moves."""
    key, value = np.zeros((1, 24, 2)), np.zeros((1, 24, 64))
    value[:, 8] = rng.uniform(0.77, 0.8, size=64)
    for _ in range(100):
        # numbers just above a power of two are rounded worst; the second feature is what bfloat16 drops from the first
        for at, score in ((8, rng.uniform(31.0, 31.06)), (16, rng.uniform(32.01, 32.1))):
            coarse = round(8 * score * np.log(2)) / 8
            key[:, at] = coarse, score * np.log(2) - coarse
        assert_right(np.ones((1, 16, 2)), key, value, {"scale": 1.0}, scale=1.0)


def test_hidden_keys_do_not_spoil_their_partners(rng):
    """The second key of a pair may be hidden, and hold anything."""
    query, key, value = (rng.normal(size=(1, 40, 16)) for _ in range(3))
    key[:, 33:], value[:, 33:] = np.nan, np.inf
    options = {"mask": mha.key_lengths(33)}
    q, k, v = (torch.from_numpy(x).to(torch.bfloat16) for x in (query, key, value))
    got = mha.scaled_dot_product_attention(q, k, v, **options)
    assert torch.equal(got, mha.scaled_dot_product_attention(q, k[:, :33], v[:, :33]))


def test_every_feature_in_one_call(rng):
    """Softcap, sink, bias, a mask and a negative scale are applied to keys that fill neither a tile nor a block."""
    query, key, value = (rng.normal(size=(2, n, 40)) for n in (70, 150, 150))
    bias, seen, sink = rng.normal(size=(2, 70, 150)), rng.random((70, 150)) < 0.7, rng.normal(size=2)
    options = {"bias": torch.from_numpy(bias).float(), "mask": mha.array_mask(torch.from_numpy(seen))}
    options |= {"softcap": 3.0, "scale": -0.4, "sink": torch.from_numpy(sink).float()}
    exact = {"bias": bias.astype(np.float32), "allowed": seen, "softcap": 3.0, "scale": -0.4, "sink": sink.astype(np.float32)}
    assert_right(query, key, value, options, **exact)


@pytest.mark.parametrize("queries", [16, 177, 400])
def test_a_band_cuts_keys_anywhere(rng, queries):
    query, key, value = (rng.normal(size=(1, n, 32)) for n in (queries, 300, 300))
    distance = np.arange(300) - np.arange(queries)[:, None]
    options = {"mask": mha.window(70, 3), "query_offset": 0}
    assert_right(query, key, value, options, allowed=(distance >= -70) & (distance <= 3))


@pytest.mark.skipif(sys.platform != "linux", reason="memory is protected by Linux's mprotect")
@pytest.mark.parametrize("width", [32, 40, 64, 80])
def test_nothing_is_read_beyond_the_arrays(rng, width):
    """Queries, keys and values end where memory cannot be read."""
    arrays = [torch.from_numpy(rng.normal(size=(1, n, width))).to(torch.bfloat16) for n in (50, 45, 45)]
    expected = mha.scaled_dot_product_attention(*arrays)
    guarded = [at_the_end_of_memory(x) for x in arrays]
    assert torch.equal(mha.scaled_dot_product_attention(*[x for x, _ in guarded]), expected)


def at_the_end_of_memory(x):
    """Return a copy that ends where memory cannot be read, and that memory."""
    size, page = x.numel() * 2, mmap.PAGESIZE
    memory = mmap.mmap(-1, -(-size // page) * page + page)
    end = len(memory) - page
    whole = torch.frombuffer(memory, dtype=torch.bfloat16)
    copy = whole[(end - size) // 2 : end // 2].view(x.shape).copy_(x)
    protect = ctypes.CDLL(None, use_errno=True).mprotect
    assert protect(ctypes.c_void_p(whole.data_ptr() + end), ctypes.c_size_t(page), 0) == 0
    return copy, memory


REFUSED = """
import ctypes
class Stack(ctypes.Structure):
    _fields_ = [("memory", ctypes.c_void_p), ("flags", ctypes.c_int), ("size", ctypes.c_size_t)]
memory = ctypes.create_string_buffer(4096)
stack = Stack(ctypes.addressof(memory), 0, len(memory))
assert ctypes.CDLL(None).sigaltstack(ctypes.byref(stack), None) == 0
from mha_native.level import LEVEL
print(LEVEL)
"""


@needs_amx
def test_where_the_system_refuses_amx_the_next_level_serves():
    """Linux refuses it where a thread handles signals on a stack too small to hold the tiles."""
    assert in_process(REFUSED) == "avx512_bf16"
    code = "from mha_native.level import native; native.use_level('avx512_amx'); print(native.use_level(None))"
    assert in_process(code, MHA_NATIVE_LEVEL="avx2") == "avx512_amx"
