"""verify: kernels are compared with the algebra."""

import contextlib
import re

import numpy as np
import pytest

import mha_core as mha
from mha_core.plugin import AttentionState
from sample_kernels import a_kernel

X = np.random.default_rng(0).normal(size=(2, 3, 5, 4)).astype(np.float32)
FAULTS = {}


def fault(op):
    """Register a kernel with a fault for this operation."""

    def add(function):
        FAULTS[function.__name__] = (op, function)
        return function

    return add


def right(op, *arguments, **options):
    with mha.use_kernel(op, "algebra"):
        return getattr(mha, op)(*arguments, **options)


def right_state(problem):
    from mha_core.algebra.attention import attention_state

    return attention_state(problem)


@fault("attention")
def scale_off_by_a_percent(p):
    return right_state(p.with_arrays(p.query * np.float32(1.01), p.key, p.value))


@fault("attention")
def lse_in_base_2(p):
    out, lse = right_state(p)
    return AttentionState(out, lse / np.float32(np.log(2)))


@fault("attention")
def heads_in_reverse(p):
    return right_state(p.with_arrays(p.query, p.key, p.value[:, ::-1]))


@fault("attention")
def nan_in_one_place(p):
    out, lse = right_state(p)
    out[0, 1, 2, 3] = np.nan
    return AttentionState(out, lse)


@fault("attention")
def double_precision(p):
    out, lse = right_state(p)
    return AttentionState(out.astype(np.float64), lse)


@fault("attention")
def one_row_short(p):
    out, lse = right_state(p)
    return AttentionState(out[..., :-1, :], lse)


@fault("gelu")
def the_tanh_form(x, *, approximate):
    return right("gelu", x, approximate="tanh")


@fault("layer_norm")
def no_bias(x, weight, bias, *, eps):
    return right("layer_norm", x, weight, None, eps=eps)


@fault("linear")
def half_precision(x, w, b):
    return right("linear", x.astype(np.float16), w.astype(np.float16), None if b is None else b.astype(np.float16)).astype(
        np.float32
    )


@fault("rms_norm")
def eps_forgotten(x, weight, *, eps):
    return right("rms_norm", x, weight, eps=0.0)


@fault("rotary")
def pairs_the_other_way(x, cos, sin, *, interleaved):
    return right("rotary", x, cos, sin, interleaved=not interleaved)


@fault("feed_forward")
def activation_forgotten(x, w_1, b_1, w_2, b_2, *, activation):
    return (x @ w_1 + b_1) @ w_2 + b_2


@fault("attention")
def nothing_at_all(p):
    return None


for name, (_, function) in FAULTS.items():
    globals()[name] = function
PERCENT = np.full((2, 3, 5, 2), 0.6, dtype=np.float32)
W, B = np.full((4, 4), 0.3, dtype=np.float32), np.full(4, 0.2, dtype=np.float32)
CALLS = {
    "attention": lambda: mha.attention_state(X, X, X),
    "gelu": lambda: mha.gelu(X),
    "layer_norm": lambda: mha.layer_norm(X, B, B),
    "linear": lambda: mha.linear(X, X[0, 0, :4], B),
    "rms_norm": lambda: mha.rms_norm(X / 50, B, eps=1e-3),
    "rotary": lambda: mha.rotary(X, PERCENT, PERCENT, interleaved=True),
    "feed_forward": lambda: mha.feed_forward(X, W, B, W, -B),
}


@pytest.mark.parametrize("mask", [mha.causal(), mha.packed([2, 3]), mha.key_lengths(0)], ids=["causal", "packed", "no key"])
def test_masked_scores_do_not_warn(mask):
    """The rounding bound meets scores of minus infinity; a warning would be an error here."""
    with mha.verify():
        mha.attention_state(X, X, X, mask=mask)


@pytest.mark.parametrize("name", FAULTS)
def test_a_wrong_kernel_is_reported_with_all_that_reproduces_it(installed, name):
    op, _ = FAULTS[name]
    installed(a_kernel(op, name=name, load=f"test_verify:{name}"))
    CALLS[op]()
    with (
        mha.verify(seed=7),
        pytest.raises(mha.KernelDivergence, match=rf"kernel '{name}' for {op} on numpy ") as error,
    ):
        CALLS[op]()
    message = str(error.value)
    assert "kernel call 1 under verify(sample=1.0, seed=7)" in message
    assert re.search(r"arrays    \w+ \(2, 3, 5, 4\).*float32 on cpu", message)
    assert error.value.call.op == op
    assert isinstance(error.value, AssertionError)
    first = next(iter(error.value.arguments.values()))
    assert first.shape == (2, 3, 5, 4)
    assert error.value.expected is not None
    assert error.value.actual is not None or name == "nothing_at_all"


def test_the_place_and_both_numbers_are_reported(installed):
    installed(a_kernel("gelu", name="wrong", load="test_verify:the_tanh_form"))
    x = np.asarray([[0.0, 0.0, 2.0]], dtype=np.float32)
    with (
        mha.verify(),
        pytest.raises(mha.KernelDivergence, match=r"\[0, 2\] is 1\.954597\d+; expected 1\.954499\d+, give"),
    ):
        mha.gelu(x)


@pytest.mark.parametrize("op", CALLS)
def test_a_right_kernel_passes_and_its_own_result_is_returned(installed, op):
    expected = CALLS[op]()
    with mha.verify() as done:
        actual = CALLS[op]()
    for a, e in zip(*(x if isinstance(x, tuple) else (x,) for x in (actual, expected)), strict=True):
        np.testing.assert_array_equal(a, e)
    assert sum(done.checked.values()) == done.calls


@pytest.mark.parametrize("mask", [mha.causal(), np.arange(5)[:, None] > np.zeros(5)])  # the latter with a row that sees no key
def test_what_is_masked_is_compared_without_a_warning(mask):
    with mha.verify() as done:
        mha.scaled_dot_product_attention(X, X, X, mask=mask)
    assert done.checked


def test_without_verify_nothing_is_compared(installed):
    installed(a_kernel("gelu"))
    mha.gelu(X)
    with mha.verify(sample=0.0) as done:
        mha.gelu(X)
    assert (done.calls, dict(done.checked)) == (1, {})
    with mha.verify(), pytest.raises(mha.KernelDivergence):
        mha.gelu(X)
    mha.gelu(X)


def test_a_seed_samples_the_same_calls_again(installed):
    installed(a_kernel("gelu"))  # returns its argument

    def failing():
        found = []
        with mha.verify(sample=0.3, seed=5):
            for number in range(40):
                try:
                    mha.gelu(X)
                except mha.KernelDivergence as error:
                    found.append((number, f"kernel call {number + 1} under verify(sample=0.3, seed=5)" in str(error)))
        return found

    found = failing()
    assert 4 < len(found) < 20
    assert all(told for _, told in found)
    assert failing() == found


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"sample": 1.5}, ValueError, r"sample is 1\.5; expected a share in \[0, 1\]"),
        ({"sample": "all"}, TypeError, "sample is str"),
        ({"seed": -1}, ValueError, "seed is -1"),
    ],
)
def test_bad_settings_are_refused(options, error, message):
    with pytest.raises(error, match=message), mha.verify(**options):
        pass


def test_nan_and_infinity_are_compared_as_such(installed):
    x = np.asarray([np.inf, -np.inf, np.nan, 1.0], dtype=np.float32)
    with mha.verify() as done:
        mha.gelu(x)
    assert done.checked == {("gelu", "tiles"): 1}


def spoilt(x, **options):
    """Relu, with ``SPOILT[-1]`` wherever the input is not finite."""
    y = np.maximum(x, 0)
    y[~np.isfinite(x)] = SPOILT[-1]
    return y


SPOILT = [0.0]


@pytest.mark.parametrize("given", [np.inf, np.nan])
@pytest.mark.parametrize("made", [0.0, np.inf, np.nan])
def test_infinities_and_nan_must_be_where_the_algebra_has_them(installed, given, made):
    installed(a_kernel("relu", load="test_verify:spoilt"))
    SPOILT.append(made)
    x = np.asarray([1.0, -2.0, given])
    right = (made == given) or (np.isnan(made) and np.isnan(given))
    with mha.verify(), contextlib.nullcontext() if right else pytest.raises(mha.KernelDivergence, match=r"\[2\] is"):
        mha.relu(x)


def test_a_finite_answer_over_an_infinite_value_is_found(installed):
    installed(a_kernel(name="sample", load="sample_kernels:attention"))
    value = np.ones((1, 3, 2))
    value[0, 1, 0] = np.inf
    with mha.verify(), pytest.raises(mha.KernelDivergence):
        mha.scaled_dot_product_attention(np.ones((1, 3, 2)), np.ones((1, 3, 2)), value)


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("gain", [1.0, 3.0, 6.0])
def test_rounding_amplified_by_large_weights_is_not_a_divergence(rng, norm_first, gain):
    layer = mha.EncoderLayer.init(d_model=64, num_heads=4, d_ff=128, norm_first=norm_first, seed=1, backend="torch")
    layer = layer.map(lambda w: w * gain)
    x = layer.norm_1.weight.new_tensor(rng.normal(size=(40, 64)))
    with mha.verify() as done:
        layer(x)
    assert ("encoder_layer", "functional") in done.checked


def test_calls_on_all_threads_of_a_backend_are_verified():
    x = np.linspace(-3, 3, 101, dtype=np.float32)
    with mha.verify() as done:
        backend = mha.dispatch.backend.load("numpy")
        list(backend.parallel(lambda _: mha.gelu(x), range(20)))
    assert done.checked == {("gelu", "tiles"): 20}
