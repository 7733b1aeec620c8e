"""The compiled kernel on NumPy arrays and torch tensors: what conformance does not test of it."""

import ctypes
import math

import numpy as np
import pytest
import torch

import mha_core as mha
from conftest import ROOT
from native import chosen, in_process, needs_native, normal

pytestmark = [needs_native, pytest.mark.usefixtures("native")]


def by_algebra(*arrays, **options):
    with mha.use_kernel("attention", "algebra"):
        return mha.attention_state(*arrays, **options)


# the choice


@pytest.mark.parametrize("array", [np.asarray, torch.from_numpy], ids=["numpy", "torch"])
def test_it_computes_attention_on_both_libraries(rng, array):
    x = array(normal(rng, 2, 4, 6, 8))
    assert chosen(x, x, x, mask=mha.causal(), bias=mha.alibi(4)).startswith("attention: native (")


def test_what_it_lacks_it_refuses(rng):
    x = normal(rng, 1, 4, 6, 8)
    told = str(mha.explain("attention", x, x, x, mask=mha.packed([4, 2]) & mha.array_mask(np.ones((6, 6), dtype=bool))))
    assert "not native: does not combine packed with array_mask" in told
    told = str(mha.explain("attention", x, x, x, mask=mha.packed([4, 2]), bias=mha.alibi(4), query_offset=1))
    assert "not native: does not combine packed sequences, a bias and a query_offset" in told
    assert "not native: does not support empty axes" in str(mha.explain("attention", x, x[..., :0, :], x[..., :0, :]))
    deep = np.zeros((1,) * 9 + (1, 2, 2), dtype=np.float32)
    assert "not native: does not support more than 8 batch axes" in str(mha.explain("attention", deep, deep, deep))
    there = torch.zeros(1, 2, 2, device="meta")
    assert "not native: computes on the CPU, not on meta" in str(mha.explain("attention", there, there, there))
    wanted = torch.zeros(1, 2, 2, requires_grad=True)
    assert "not native: does not handle gradient" in str(mha.explain("attention", wanted, wanted, wanted))


def test_importing_the_plugin_imports_no_array_library():
    code = "import mha_native, sys; print(sorted({'numpy', 'torch', 'mha_native._native'} & set(sys.modules)))"
    assert in_process(code) == "[]"


def test_the_level_is_chosen_by_the_environment(native):
    code = "from mha_native.level import LEVEL; print(LEVEL)"
    assert in_process(code, MHA_NATIVE_LEVEL="base") == "base"
    assert in_process(code, MHA_NATIVE_LEVEL="") in ("base", "avx2", "avx512", "avx512_bf16", "avx512_amx")
    with pytest.raises(
        ValueError, match=r"this processor has no level avx1024; it has (base|avx2|avx512|avx512_bf16|avx512_amx)$"
    ):
        native.use_level("avx1024")


# numbers


def test_the_exponential_is_within_its_bound(native):
    """2^x at every 1009th float from -125 to 8: within 1.3 units in the last place, and 1 at 0."""
    bits = np.concatenate([np.arange(0, 0x41000000, 1009), np.arange(0x80000000, 0xC2FA0000, 1009)]).astype(np.uint32)
    x = np.resize(bits, -(-len(bits) // 16) * 16).view(np.float32)
    y = np.empty_like(x)
    native.exponentials(x, y)
    exact = np.exp2(x.astype(np.float64))
    assert np.max(np.abs(y - exact) / np.spacing(exact.astype(np.float32))) < 1.3
    edges = np.asarray([0, -0.0, -1, -125, -125.01, -1e30, -np.inf, np.nan] * 2, dtype=np.float32)
    y = np.empty_like(edges)
    native.exponentials(edges, y)
    np.testing.assert_array_equal(y[:8], np.asarray([1, 1, 0.5, 2.0**-125, 0, 0, 0, np.nan], dtype=np.float32))
    odd = np.full(16, np.nan, dtype=np.float32)
    odd.view(np.uint32)[:] |= 0x1FF  # bits that would reach the exponent
    native.exponentials(odd, odd)
    assert np.isnan(odd).all()


@pytest.mark.parametrize("queries", [1, 20, 100])
def test_values_near_the_largest_number_do_not_overflow(rng, queries):
    query, key = normal(rng, 1, queries, 16), normal(rng, 1, 300, 16)
    value = (rng.uniform(0.5, 1, size=(1, 300, 16)) * 3e38).astype(np.float32)
    out = mha.scaled_dot_product_attention(query, key, value)
    assert np.isfinite(out).all()
    exact = by_algebra(*(x.astype(np.float64) for x in (query, key, value))).out
    np.testing.assert_allclose(out, exact, rtol=1e-5)


@pytest.mark.parametrize("kind", [np.float32, np.float64, np.float16])
def test_arrays_in_any_layout(rng, kind):
    """Steps, reversed axes, broadcast axes, and numbers at addresses that are no multiple of their size."""
    plain = [normal(rng, 2, 4, 70, 24, dtype=kind) for _ in range(3)]

    def unaligned(x):
        memory = np.empty(x.nbytes + 1, dtype=np.uint8)[1:]
        view = memory.view(kind).reshape(x.shape)
        view[...] = x
        return view

    layouts = {
        "reversed": lambda x: np.ascontiguousarray(x[..., ::-1])[..., ::-1],
        "every second row": lambda x: np.repeat(x, 2, axis=-2)[..., ::2, :],
        "columns first": lambda x: np.ascontiguousarray(x.swapaxes(-1, -2)).swapaxes(-1, -2),
        "heads inside": lambda x: np.ascontiguousarray(x.swapaxes(-2, -3)).swapaxes(-2, -3),
        "unaligned": unaligned,
    }
    expected = mha.attention_state(*plain)
    for name, layout in layouts.items():
        got = mha.attention_state(*map(layout, plain))
        np.testing.assert_array_equal(got.out, expected.out, err_msg=name)
        np.testing.assert_array_equal(got.lse, expected.lse, err_msg=name)
    expanded = [np.broadcast_to(x[:, :1], x.shape) for x in plain]
    got = mha.attention_state(*expanded)
    np.testing.assert_array_equal(got.out, mha.attention_state(*map(np.ascontiguousarray, expanded)).out)


def test_tensors_whose_sign_is_not_in_memory_yet(rng):
    x = torch.from_numpy(normal(rng, 1, 6, 8))
    there = torch.complex(x, x).conj().imag
    assert there.is_neg()
    got = mha.scaled_dot_product_attention(there, there, there, bias=there[..., :6])
    expected = mha.scaled_dot_product_attention(-x, -x, -x, bias=-x[..., :6])
    assert torch.equal(got, expected)


@pytest.mark.parametrize("queries", [1, 20])
def test_the_lowest_finite_bias_and_sink_are_only_numbers(rng, queries):
    """Transformers adds the lowest number of the dtype where a mask is False: a row of it has equal weights (promise 3)."""
    lowest = np.finfo(np.float32).min
    query, key, value = normal(rng, 1, queries, 8), normal(rng, 1, 70, 8), normal(rng, 1, 70, 8)
    state = mha.attention_state(query, key, value, bias=np.full((queries, 70), lowest))
    np.testing.assert_allclose(state.out, np.broadcast_to(value.mean(axis=-2), state.out.shape), atol=1e-5)
    assert (state.lse == lowest).all()
    state = mha.attention_state(query, key, value, sink=np.asarray([lowest]), mask=mha.prefix(0))
    assert (state.out == 0).all() and (state.lse == lowest).all()
    state = mha.attention_state(query, key, value, sink=np.asarray([np.inf], dtype=np.float32))
    assert np.isnan(state.out).all() and np.isnan(state.lse).all()


@pytest.mark.parametrize("queries", [1, 20])
def test_a_bias_of_minus_infinity_hides_any_score(rng, queries):
    query, key, value = normal(rng, 1, queries, 8), normal(rng, 1, 70, 8), normal(rng, 1, 70, 8)
    bias = np.zeros((queries, 70), dtype=np.float32)
    bias[:, 7] = -np.inf
    expected = mha.attention_state(query, key, value, bias=bias)
    key[0, 7] = np.nan
    state = mha.attention_state(query, key, value, bias=bias)
    np.testing.assert_array_equal(state.out, expected.out)
    np.testing.assert_array_equal(state.lse, expected.lse)


def test_results_are_on_the_device_of_the_tensors(rng):
    x = torch.from_numpy(normal(rng, 2, 6, 8))
    with torch.device("meta"):
        state = mha.attention_state(x, x, x[..., :5])
    assert state.out.device.type == state.lse.device.type == "cpu"


def test_a_sink_whose_sign_is_not_in_memory_yet(rng):
    x = torch.from_numpy(normal(rng, 4, 6, 8))
    sink = torch.complex(x[:, 0, 0], x[:, 0, 1]).conj().imag
    assert sink.is_neg()
    got, expected = (mha.attention_state(x, x, x, sink=each) for each in (sink, sink.resolve_neg()))
    assert torch.equal(got.out, expected.out) and torch.equal(got.lse, expected.lse)


def test_a_tracer_records_torchs_own_operations(rng):
    """It cannot record what the compiled module writes to memory."""
    from torch.fx.experimental.proxy_tensor import make_fx

    x, y = (torch.from_numpy(normal(rng, 2, 4, 6, 8)) for _ in range(2))

    def attend(x):
        return mha.scaled_dot_product_attention(x, x, x, mask=mha.causal())

    torch.testing.assert_close(make_fx(attend)(x)(y), attend(y))
    compiled = torch.compile(attend, fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        torch.testing.assert_close(compiled(y), attend(y))


# what the compiled module refuses, before it reads anything


def test_sizes_that_overflow_are_refused(native):
    def plan(*sizes, batch=(1,)):
        return native.plan("f", batch, *sizes, 1.0, 0.0, None, None, 0)

    with pytest.raises(ValueError, match=r"an axis has length 2147483648; expected 1 to 2\^31 - 1"):
        plan(1, 1, 2**31, 1, 1, 1)
    with pytest.raises(ValueError, match="an array of this shape does not fit in memory"):
        plan(2**30, 2**30, 2**30, 1, 2**30, 1)
    with pytest.raises(ValueError, match="an axis has length"):
        plan(1, 1, 1, 1, 1, 1, batch=(2**40, 2**40))
    with pytest.raises(ValueError, match="3 heads do not share 2 key heads"):
        plan(3, 2, 1, 1, 1, 1)


def test_arrays_that_do_not_fit_the_plan_are_refused(native):
    plan = native.plan("f", (2,), 4, 2, 6, 9, 8, 5, 1.0, 0.0, None, None, 0)
    fitting = {
        "query": np.zeros((2, 4, 6, 8), np.float32),
        "key": np.zeros((2, 2, 9, 8), np.float32),
        "value": np.zeros((2, 2, 9, 5), np.float32),
        "out": np.zeros((2, 4, 6, 5), np.float32),
        "lse": np.zeros((2, 4, 6, 1), np.float32),
        **dict.fromkeys(("sink", "mask", "bias", "distance", "lengths", "sequences")),
    }

    def attend(**changes):
        native.attend(plan, 1, *(fitting | changes).values())

    attend()
    short = {"query": (2, 4, 5, 8), "key": (2, 2, 8, 8), "value": (3, 2, 9, 5), "out": (2, 4, 6, 4), "sink": (3, 1, 1)}
    for name, shape in short.items():
        with pytest.raises(ValueError, match=f"{name} has an axis of length"):
            attend(**{name: np.zeros(shape, np.float32)})
    for name, wrong in {
        "key": np.zeros((2, 2, 9, 8)),
        "mask": np.zeros((2, 4, 6, 9), np.float32),
        "bias": np.zeros((2, 4, 6, 9), bool),
        "sink": np.zeros((4, 1, 1), np.int64),
    }.items():
        with pytest.raises(TypeError, match="which the plan does not expect"):
            attend(**{name: wrong})
    with pytest.raises(ValueError, match="out has an axis of length 1; expected 2"):
        attend(out=np.zeros((1, 4, 6, 5), np.float32))
    with pytest.raises(ValueError, match="lengths: expected 2 64-bit integers"):
        attend(lengths=np.zeros(3, np.int64))
    with pytest.raises(ValueError, match="sequence 1 lies outside of the arrays"):
        attend(sequences=np.asarray([(0, 3, 0, 3), (3, 4, 3, 4)]))
    read_only = np.zeros((2, 4, 6, 5), np.float32)
    read_only.flags.writeable = False
    with pytest.raises((BufferError, ValueError), match="read-only"):
        attend(out=read_only)


def test_results_lie_where_the_query_does(rng):
    """Heads that are next to each other in memory stay so, for the projection that follows."""
    x = normal(rng, 2, 6, 4, 8).swapaxes(1, 2)
    assert mha.scaled_dot_product_attention(x, x, x).swapaxes(1, 2).flags.c_contiguous
    y = torch.from_numpy(x)
    assert mha.scaled_dot_product_attention(y, y, y).transpose(1, 2).is_contiguous()


def test_it_allocates_nothing_of_the_size_of_the_scores(rng):
    assert ctypes.sizeof(ctypes.c_void_p) == 8
    code = """
import numpy as np, mha_core as mha, resource
x = np.ones((1, 1, 20000, 8), dtype=np.float32)
mha.scaled_dot_product_attention(x[:, :, :100], x[:, :, :100], x[:, :, :100])
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
mha.scaled_dot_product_attention(x, x, x, mask=mha.causal(), bias=mha.alibi(1))
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
    grown = int(in_process(code))  # KiB; the scores would take 1.6 GB
    assert grown < 8192, grown
    assert math.isfinite(grown)


def test_the_source_can_be_read():
    """Attention alone has at most 2,000 lines of code, besides comments and empty lines; no file is long, and no line."""
    files = {path.name: path.read_text(encoding="utf-8").splitlines() for path in (ROOT / "backends/mha_native/src").iterdir()}
    others = ("gradient.h", "lines.h")
    code = {name: [x for x in lines if x.strip() and not x.lstrip().startswith("//")] for name, lines in files.items()}
    assert sum(len(lines) for name, lines in code.items() if name not in others) <= 2000
    assert {name: len(lines) for name, lines in files.items() if len(lines) > 350} == {}
    assert [line for lines in files.values() for line in lines if len(line) > 128] == []
