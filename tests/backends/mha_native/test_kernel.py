"""The compiled kernel on NumPy arrays and torch tensors: what conformance does not test of it."""

import numpy as np
import pytest
import torch
from judged_attention import assert_lowest_numbers_are_only_numbers, inputs, normal
from memory_views import VIEWS
from native import LEVELS, chosen, in_process, needs_native
from project import ROOT

import mha_core as mha

pytestmark = [needs_native, pytest.mark.usefixtures("native")]


def by_algebra(*arrays, **options):
    with mha.use_kernel("attention", "algebra"):
        return mha.attention_state(*arrays, **options)


# the choice


def explained(*arrays, **options):
    return str(mha.explain(mha.scaled_dot_product_attention if "gradients" in options else "attention", *arrays, **options))


@pytest.mark.parametrize("array", [np.asarray, torch.from_numpy], ids=["numpy", "torch"])
def test_it_is_chosen_on_both_libraries(rng, array):
    x = array(normal(rng, 2, 4, 6, 8))
    options = {"mask": mha.causal(), "bias": mha.alibi(4)}
    assert chosen(x, x, x, **options).startswith("attention: native (")
    assert "attention_vjp: native (" in explained(x, x, x, gradients=True, **options)


X, DEEP = np.ones((2, 4, 6, 8), np.float32), np.zeros((1,) * 9 + (1, 2, 2), np.float32)
PACKED, SEGMENTS = mha.packed([4, 2]), mha.segments(np.zeros(6, int), np.zeros(6, int))
REFUSED = {
    "does not combine packed with array_mask": ([X] * 3, {"mask": PACKED & mha.array_mask(np.ones((6, 6), dtype=bool))}),
    "does not combine packed sequences, a bias and a query_offset": (
        *([X] * 3, {"mask": PACKED, "bias": mha.alibi(4), "query_offset": 1}),
    ),
    "does not support empty axes": ([X, X[..., :0, :], X[..., :0, :]], {}),
    "does not support more than 8 batch axes": ([DEEP] * 3, {}),
    "computes on the CPU, not on meta": ([torch.zeros(1, 2, 2, device="meta")] * 3, {}),
    "does not handle gradient": ([torch.zeros(1, 2, 2, requires_grad=True)] * 3, {}),
    "does not handle d_bias": ([X] * 3, {"bias": np.ones((4, 6, 6), np.float32), "gradients": True}),
    "does not handle broadcast": ([X, X[0], X[0]], {"gradients": True}),
    "does not handle score_function": ([X] * 3, {"bias": mha.score_function(lambda s, b, h, q, k: s), "gradients": True}),
    "does not combine packed with mask": ([X] * 3, {"mask": PACKED & SEGMENTS}),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_what_it_lacks_it_refuses(reason):
    arrays, options = REFUSED[reason]
    assert f"not native: {reason}" in explained(*arrays, **options)


def test_importing_the_plugin_imports_no_array_library():
    code = "import mha_native, sys; print(sorted({'numpy', 'torch', 'mha_native._native'} & set(sys.modules)))"
    assert in_process(code) == "[]"


def test_the_level_is_chosen_by_the_environment(native):
    code = "from mha_native.level import LEVEL; print(LEVEL)"
    assert in_process(code, MHA_NATIVE_LEVEL="base") == "base"
    assert in_process(code, MHA_NATIVE_LEVEL="") == LEVELS[0]
    with pytest.raises(ValueError, match=rf"this processor has no level avx1024; it has {LEVELS[0]}$"):
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


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
def test_strides_change_no_bit(rng, view, dtype):
    views = [view(normal(rng, 2, 4, 70, 24, dtype=dtype)) for _ in range(3)]
    state, expected = mha.attention_state(*views), mha.attention_state(*map(np.ascontiguousarray, views))
    np.testing.assert_array_equal(state.out, expected.out)
    np.testing.assert_array_equal(state.lse, expected.lse)


def test_tensors_whose_sign_is_not_in_memory_yet(rng):
    x, sink = torch.from_numpy(normal(rng, 1, 4, 6, 8)), torch.from_numpy(normal(rng, 4))
    negative, negative_sink = (torch.complex(y, y).conj().imag for y in (x, sink))
    assert negative.is_neg() and negative_sink.is_neg()
    got = mha.attention_state(negative, negative, negative, bias=negative[..., :6], sink=negative_sink)
    expected = mha.attention_state(-x, -x, -x, bias=-x[..., :6], sink=-sink)
    assert torch.equal(got.out, expected.out) and torch.equal(got.lse, expected.lse)


@pytest.mark.parametrize("queries", [1, 20])
def test_the_lowest_finite_bias_and_sink_are_only_numbers(rng, queries):
    assert_lowest_numbers_are_only_numbers(rng, queries)
    query, key, value = inputs(rng, queries, 70)
    state = mha.attention_state(query, key, value, sink=np.full(2, np.inf, dtype=np.float32))
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


def zeros(*shape, dtype=np.float32):
    return np.zeros(shape, dtype)


def read_only(*shape):
    x = zeros(*shape)
    x.flags.writeable = False
    return x


WRONG = [
    ("attend", {"query": zeros(2, 4, 5, 8)}, ValueError, "query has an axis of length"),
    ("attend", {"key": zeros(2, 2, 8, 8)}, ValueError, "key has an axis of length"),
    ("attend", {"value": zeros(3, 2, 9, 5)}, ValueError, "value has an axis of length"),
    ("attend", {"out": zeros(2, 4, 6, 4)}, ValueError, "out has an axis of length"),
    ("attend", {"sink": zeros(3, 1, 1)}, ValueError, "sink has an axis of length"),
    ("attend", {"out": zeros(1, 4, 6, 5)}, ValueError, "out has an axis of length 1; expected 2"),
    ("attend", {"key": zeros(2, 2, 9, 8, dtype=float)}, TypeError, "which the plan does not expect"),
    ("attend", {"mask": zeros(2, 4, 6, 9)}, TypeError, "which the plan does not expect"),
    ("attend", {"bias": zeros(2, 4, 6, 9, dtype=bool)}, TypeError, "which the plan does not expect"),
    ("attend", {"sink": zeros(4, 1, 1, dtype=np.int64)}, TypeError, "which the plan does not expect"),
    ("attend", {"lengths": zeros(3, dtype=np.int64)}, ValueError, "lengths: expected 2 64-bit integers"),
    ("attend", {"sequences": np.asarray([(0, 3, 0, 3), (3, 4, 3, 4)])}, ValueError, "sequence 1 lies outside of the arrays"),
    ("attend", {"out": read_only(2, 4, 6, 5)}, (BufferError, ValueError), "read-only"),
    ("attend_vjp", {"d_out": zeros(2, 4, 6, 5, dtype=float)}, TypeError, "which the plan does not expect"),
    ("attend_vjp", {"lse": None}, TypeError, "NoneType"),  # it is read
    ("attend_vjp", {"d_query": zeros(2, 4, 6, 8)}, ValueError, "d_query has an axis of length 8; expected 16"),
    ("attend_vjp", {"d_out": zeros(2, 4, 6, 4)}, ValueError, "d_out has an axis of length 4; expected 5"),
    ("attend_vjp", {"d_key": zeros(2, 2, 9, 32)[..., ::2]}, ValueError, "gradients: expected rows without gaps"),
]


def fitting(function):
    """Return the arrays of a call that is accepted, by name."""
    arrays = {"query": zeros(2, 4, 6, 8), "key": zeros(2, 2, 9, 8), "value": zeros(2, 2, 9, 5), "out": zeros(2, 4, 6, 5)}
    arrays |= {
        "lse": zeros(2, 4, 6, 1),
        **dict.fromkeys(("sink", "mask", "bias", "distance", "lengths", "sequences", "tiles", "words")),
    }
    if function == "attend_vjp":
        arrays |= {"d_out": zeros(2, 4, 6, 5), "d_lse": None, "d_query": zeros(2, 4, 6, 16)}
        arrays |= {"d_key": zeros(2, 2, 9, 16), "d_value": zeros(2, 2, 9, 16)}
    return arrays


@pytest.mark.parametrize(("function", "changes", "error", "message"), WRONG)
def test_arrays_that_do_not_fit_the_plan_are_refused(native, function, changes, error, message):
    plan = native.plan("f", (2,), 4, 2, 6, 9, 8, 5, 1.0, 0.0, None, None, 0)
    call, arrays = getattr(native, function), fitting(function)
    call(plan, 1, *arrays.values())
    with pytest.raises(error, match=message):
        call(plan, 1, *(arrays | changes).values())
    with pytest.raises(TypeError, match=f"expected {2 + len(arrays)} arguments, not 15" if len(arrays) > 13 else "not 14"):
        call(plan, 1, *[*arrays.values()][: 13 if len(arrays) > 13 else 12])


def test_results_lie_where_the_arrays_do(rng):
    """Heads that are next to each other in memory stay so, for the projection that follows, or came before."""
    x = normal(rng, 2, 6, 4, 16).swapaxes(1, 2)
    for array in (x, torch.from_numpy(x)):
        with mha.use_kernel("attention_vjp", "native"):
            out, pullback = mha.vjp(mha.scaled_dot_product_attention, array, array, array)
            for y in (mha.scaled_dot_product_attention(array, array, array), out, *pullback(array)):
                assert np.asarray(y).swapaxes(1, 2).flags.c_contiguous


def test_the_source_can_be_read():
    """Attention has at most 2,000 lines of code, besides comments and empty lines, 70 for int8, and 130 for masks as tiles.

    No file is long, and no line. Linear maps of int8 weights have at most 370, with AMX and AArch64's levels; of few rows, 180.
    """
    files = {path.name: path.read_text(encoding="utf-8").splitlines() for path in (ROOT / "backends/mha_native/src").iterdir()}
    others = ("gradient.h", "lines.h", "module_lines.cpp", "ffi.cpp")  # gradients, lines of numbers, and JAX
    code = {name: [x for x in lines if x.strip() and not x.lstrip().startswith("//")] for name, lines in files.items()}
    of_int8 = sum(len(lines) for name, lines in code.items() if "int8" in name)
    of_others = sum(len(lines) for name, lines in code.items() if name in others)
    of_few_rows = sum(len(lines) for name, lines in code.items() if "few_rows" in name)
    assert of_int8 <= 370 and of_few_rows <= 180 and len(code["ffi.cpp"]) <= 150
    assert sum(map(len, code.values())) - of_int8 - of_few_rows - of_others <= 2200
    assert {name: len(lines) for name, lines in files.items() if len(lines) > 350} == {}
    assert [line for lines in files.values() for line in lines if len(line) > 128] == []


# scores that rise along the keys


@pytest.mark.parametrize(("dtype", "low"), [(np.float32, -15), (np.float64, -100)])
def test_lse_is_exact_where_a_late_score_is_the_greatest(dtype, low):
    """Differences from the top of a row are rounded, so lse is wrong if the top stays at the first scores."""
    query, key = np.linspace(1, 1.4, 480).astype(dtype)[None, :, None], np.full((1, 320, 1), low, dtype)
    key[0, -1] = 0.17
    scores = query[0].astype(np.longdouble) * key[0, :, 0].astype(np.longdouble)
    lse = mha.attention_state(query, key, key, scale=1.0).lse
    assert np.abs(lse - np.logaddexp.reduce(scores, axis=-1)).max() <= 2.5 * np.finfo(dtype).eps


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_much_greater_score_in_a_later_block_leaves_nothing_of_the_values_before(dtype):
    query, key, value = np.ones((1, 16, 1), dtype), np.zeros((1, 320, 1), dtype), np.ones((1, 320, 5), dtype)
    key[0, -1], value[0, -1] = 5000, 3
    out = mha.scaled_dot_product_attention(query, key, value, scale=1.0)
    assert (out == 3).all()
