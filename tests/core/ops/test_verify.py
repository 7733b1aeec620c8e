"""verify: kernels are compared with the algebra."""

import contextlib
import re

import numpy as np
import pytest
from refusals import refusals
from sample_kernels import a_kernel

import mha_core as mha
from mha_core.algebra import attention as algebra
from mha_core.plugin import AttentionState

X = np.random.default_rng(0).normal(size=(2, 3, 5, 4)).astype(np.float32)


def right(op, *arguments, **options):
    with mha.use_kernel(op, "algebra"):
        return getattr(mha, op)(*arguments, **options)


def nan_in_one_place(p):
    out, lse = algebra.attention_state(p)
    out[0, 1, 2, 3] = np.nan
    return AttentionState(out, lse)


def of_state(change):
    """Return an attention kernel that changes the right out and lse."""
    return lambda p: AttentionState(*change(*algebra.attention_state(p)))


def in_half(x):
    return None if x is None else x.astype(np.float16)


FAULTS = {
    "scale_off_by_a_percent": (
        "attention",
        lambda p: algebra.attention_state(p.with_arrays(p.query * np.float32(1.01), p.key, p.value)),
    ),
    "lse_in_base_2": ("attention", of_state(lambda out, lse: (out, lse / np.float32(np.log(2))))),
    "heads_in_reverse": (
        "attention",
        lambda p: algebra.attention_state(p.with_arrays(p.query, p.key, p.value[:, ::-1])),
    ),
    "nan_in_one_place": ("attention", nan_in_one_place),
    "double_precision": ("attention", of_state(lambda out, lse: (out.astype(np.float64), lse))),
    "one_row_short": ("attention", of_state(lambda out, lse: (out[..., :-1, :], lse))),
    "nothing_at_all": ("attention", lambda p: None),
    "the_tanh_form": ("gelu", lambda x, *, approximate: right("gelu", x, approximate="tanh")),
    "no_bias": ("layer_norm", lambda x, weight, bias, *, eps: right("layer_norm", x, weight, None, eps=eps)),
    "half_precision": ("linear", lambda *arrays: right("linear", *map(in_half, arrays)).astype(np.float32)),
    "eps_forgotten": ("rms_norm", lambda x, weight, *, eps: right("rms_norm", x, weight, eps=0.0)),
    "pairs_the_other_way": ("rotary", lambda *arrays, interleaved: right("rotary", *arrays, interleaved=not interleaved)),
    "activation_forgotten": ("feed_forward", lambda x, w_1, b_1, w_2, b_2, *, activation: (x @ w_1 + b_1) @ w_2 + b_2),
}
"""Kernels with a fault, by name."""
globals().update({name: kernel for name, (_, kernel) in FAULTS.items()})  # a kernel is found in its module by its name
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


@pytest.mark.parametrize("name", FAULTS)
def test_a_wrong_kernel_is_reported_with_all_that_reproduces_it(installed, name):
    op, _ = FAULTS[name]
    installed(a_kernel(op, name=name, load=f"{__name__}:{name}"))
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
    installed(a_kernel("gelu", name="wrong", load=f"{__name__}:the_tanh_form"))
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


NO_KEY = mha.key_lengths(0)
BLIND_ROW = np.arange(5)[:, None] > np.zeros(5)


@pytest.mark.parametrize("mask", [mha.causal(), mha.packed([2, 3]), NO_KEY, BLIND_ROW], ids=lambda mask: type(mask).__name__)
def test_what_is_masked_is_compared_without_a_warning(mask):
    """The rounding bound meets scores of minus infinity; a warning would be an error here."""
    for attend in (mha.attention_state, mha.scaled_dot_product_attention):
        with mha.verify() as done:
            attend(X, X, X, mask=mask)
        assert sum(done.checked.values()) == done.calls and (done.calls or mask is NO_KEY)


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
        failures = []
        with mha.verify(sample=0.3, seed=5):
            for number in range(40):
                try:
                    mha.gelu(X)
                except mha.KernelDivergence as error:
                    failures.append((number, f"kernel call {number + 1} under verify(sample=0.3, seed=5)" in str(error)))
        return failures

    failures = failing()
    assert 4 < len(failures) < 20
    assert all(is_named for _, is_named in failures)
    assert failing() == failures


def spoilt(x, **options):
    """Relu, with ``SPOILT[-1]`` wherever the input is not finite."""
    y = np.maximum(x, 0)
    y[~np.isfinite(x)] = SPOILT[-1]
    return y


SPOILT = [0.0]


@pytest.mark.parametrize("given", [np.inf, np.nan])
@pytest.mark.parametrize("made", [0.0, np.inf, np.nan])
def test_infinities_and_nan_must_be_where_the_algebra_has_them(installed, given, made):
    installed(a_kernel("relu", load=f"{__name__}:spoilt"))
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


def verified(**settings):
    return lambda: mha.verify(**settings).__enter__()


test_bad_settings_are_refused = refusals(
    {
        ValueError: {
            "sample is 1.5; expected a share in [0, 1]": verified(sample=1.5),
            "seed is -1": verified(seed=-1),
        },
        TypeError: {"sample is str": verified(sample="all")},
    }
)
