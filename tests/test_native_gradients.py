"""The compiled gradients of attention: what conformance does not test of them."""

import numpy as np
import pytest
import torch

import mha_core as mha
from native import needs_native, normal

pytestmark = [needs_native, pytest.mark.usefixtures("native")]
ARGUMENTS = ("query", "key", "value")


def told(*arrays, **options):
    return str(mha.explain(mha.scaled_dot_product_attention, *arrays, gradients=True, **options))


def gradients(kernel, arrays, d_out, wrt=None, **options):
    """Return the gradients of query, key and value by a kernel."""
    with mha.use_kernel("attention_vjp", kernel):
        _, pullback = mha.vjp(mha.scaled_dot_product_attention, *arrays, wrt=wrt, **options)
        return pullback(d_out)


@pytest.mark.parametrize("array", [np.asarray, torch.from_numpy], ids=["numpy", "torch"])
def test_it_is_chosen_on_both_libraries(rng, array):
    x = array(normal(rng, 2, 4, 6, 8))
    assert "attention_vjp: native (" in told(x, x, x, mask=mha.causal(), bias=mha.alibi(4))


def test_what_it_lacks_it_refuses(rng):
    x = normal(rng, 2, 4, 6, 8)
    assert "not native: does not handle d_bias" in told(x, x, x, bias=normal(rng, 4, 6, 6))
    assert "not native: does not handle broadcast" in told(x, x[0], x[0])
    assert "not native: does not handle mask" in told(x, x, x, mask=mha.segments(np.zeros(6, int), np.zeros(6, int)))


LONG = {
    "one head, so keys are cut into parts": ((1, 1, 130, 24), 1500, {}),
    "parts with a window": ((1, 2, 1500, 16), 1500, {"mask": mha.window(300, 40)}),
    "parts with lengths": ((2, 1, 90, 16), 1200, {"mask": mha.key_lengths(np.asarray([1000, 0]))}),
    "packed": ((1, 2, 700, 16), 700, {"mask": mha.packed([300, 1, 0, 399]) & mha.causal()}),
    "few queries of grouped heads": ((1, 6, 5, 16), 600, {"softcap": 3.0}),
    "a bias that is not wanted": ((1, 2, 100, 16), 100, {"bias": mha.alibi(2)}),
}


@pytest.mark.parametrize("name", LONG)
def test_long_problems_equal_the_algebra_in_float64(rng, name):
    shape, keys, options = LONG[name]
    heads = 2 if "grouped" in name else shape[1]
    query, d_out = normal(rng, *shape, dtype=float), normal(rng, *shape, dtype=float)
    key, value = (normal(rng, shape[0], heads, keys, shape[3], dtype=float) for _ in range(2))
    found, expected = (gradients(kernel, (query, key, value), d_out, **options) for kernel in ("native", "algebra"))
    for x, y in zip(found, expected, strict=True):
        np.testing.assert_allclose(x, y, rtol=0, atol=1e-13)


@pytest.mark.parametrize("array", [np.asarray, torch.from_numpy], ids=["numpy", "torch"])
def test_any_number_of_threads_gives_the_same_bits(rng, array):
    arrays, d_out = [array(normal(rng, 1, 3, 1100, 24)) for _ in range(3)], array(normal(rng, 1, 3, 1100, 24))
    found = []
    before = torch.get_num_threads()
    try:
        for threads in (1, 2, 3, 2):
            mha.set_num_threads(threads)
            torch.set_num_threads(threads)
            found.append([np.asarray(x).tobytes() for x in gradients("native", arrays, d_out, mask=mha.causal())])
    finally:
        mha.set_num_threads(None)
        torch.set_num_threads(before)
    assert all(each == found[0] for each in found)


@pytest.mark.parametrize("wanted", [("query",), ("key",), ("value",), ("query", "value"), ("key", "value")])
def test_some_gradients_are_the_same_as_beside_the_others(rng, wanted):
    arrays, d_out = [normal(rng, 2, 2, 70, 20) for _ in range(3)], normal(rng, 2, 2, 70, 20)
    every = dict(zip(ARGUMENTS, gradients("native", arrays, d_out), strict=True))
    some = dict(zip(ARGUMENTS, gradients("native", arrays, d_out, wrt=lambda name: name in wanted), strict=True))
    for name in ARGUMENTS:
        assert (some[name] is None) == (name not in wanted)
        assert some[name] is None or np.array_equal(some[name], every[name])


def test_gradients_lie_where_the_arrays_do(rng):
    """Heads that are next to each other in memory stay so, for the projection before."""
    x = normal(rng, 2, 6, 4, 16).swapaxes(1, 2)
    assert all(d.swapaxes(1, 2).flags.c_contiguous for d in gradients("native", (x, x, x), x))
    y = torch.from_numpy(x)
    assert all(d.transpose(1, 2).is_contiguous() for d in gradients("native", (y, y, y), y))


def test_torch_s_autograd_uses_it_and_can_be_differentiated_again(rng):
    arrays = [torch.from_numpy(normal(rng, 1, 2, 9, 8, dtype=float)).requires_grad_() for _ in range(3)]
    with mha.use_kernel("attention_vjp", "native"):  # refuses a call that it cannot compute
        mha.scaled_dot_product_attention(*arrays, softcap=2.0).sum().backward()
    given = [x.grad.clone() for x in arrays]
    expected = gradients("algebra", [x.detach() for x in arrays], torch.ones(1, 2, 9, 8, dtype=torch.float64), softcap=2.0)
    for x, y in zip(given, expected, strict=True):
        torch.testing.assert_close(x, y, rtol=0, atol=1e-13)
    attention = lambda *x: mha.scaled_dot_product_attention(*x, softcap=2.0)  # noqa: E731
    assert torch.autograd.gradgradcheck(attention, arrays)


@pytest.mark.parametrize("dtype", [np.float16, "bfloat16"])
def test_half_precision_is_summed_in_float32(rng, dtype):
    import ml_dtypes  # noqa: F401  # NumPy knows bfloat16 then

    wide = [normal(rng, 1, 2, 300, 16) for _ in range(4)]
    half = [x.astype(dtype) for x in wide]
    found = gradients("native", half[:3], half[3])
    expected = gradients("algebra", [x.astype(np.float64) for x in half[:3]], half[3].astype(np.float64))
    unit = 2.0**-11 if dtype is np.float16 else 2.0**-8
    for x, y in zip(found, expected, strict=True):
        assert x.dtype == half[0].dtype
        assert np.abs(x.astype(np.float64) - y).max() <= 4 * unit * np.abs(y).max()


def test_wrong_arrays_are_refused(native):
    query, lse = np.zeros((2, 3, 4), np.float32)[None], np.zeros((1, 2, 3, 1), np.float32)
    wide = np.zeros((1, 2, 3, 16), np.float32)
    plan = native.plan("f", (1,), 2, 2, 3, 3, 4, 4, 1.0, 0.0, None, None, 0)

    def call(**changes):
        given = dict.fromkeys(("query", "key", "value", "out"), query) | {"lse": lse}
        given |= dict.fromkeys(("sink", "mask", "bias", "distance", "lengths", "sequences"))
        given |= {"d_out": query, "d_lse": None, "d_query": wide, "d_key": wide.copy(), "d_value": wide.copy()}
        native.attend_vjp(plan, 1, *(given | changes).values())

    call()
    with pytest.raises(TypeError, match="which the plan does not expect"):
        call(d_out=query.astype(np.float64))
    with pytest.raises(TypeError, match="NoneType"):
        call(lse=None)  # it is read
    with pytest.raises(ValueError, match="d_query has an axis of length 4; expected 16"):
        call(d_query=query)
    with pytest.raises(ValueError, match="d_out has an axis of length 5; expected 4"):
        call(d_out=np.zeros((1, 2, 3, 5), np.float32))
    with pytest.raises(ValueError, match="gradients: expected rows without gaps"):
        call(d_key=np.zeros((1, 2, 3, 32), np.float32)[..., ::2])
    with pytest.raises(TypeError, match="expected 18 arguments, not 13"):
        native.attend_vjp(plan, 1, *[query] * 11)
