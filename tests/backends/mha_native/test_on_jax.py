"""The compiled kernel on JAX arrays: when it is chosen, the bits of the kernel on NumPy arrays, and gradients by JAX."""

import ctypes
from functools import partial
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import needs
import numpy as np
import pytest
from jax_gradients import assert_same_bits, by, close, loss_inputs, loss_of
from judged_attention import normal
from native import in_process, needs_native
from option_pairs import NAMES, arguments
from together import for_each

import mha_core as mha
from mha_core.plugin import Call

pytestmark = [needs_native, needs.installed("mha_jax", "jax"), pytest.mark.usefixtures("native")]
REFUSED = (
    "mask",
    "bias_term",
    "another window",
    "chunks",
    "prefix",
    "not causal",
    "segments",
    "mask_function",
    "score_function",
)
"""Options for which the kernel on NumPy arrays is not chosen, or that core reduces to others."""
OPTIONS = {
    **{name: (name,) for name in NAMES if name not in REFUSED},
    "causal, alibi, sink, grouped_query": ("causal", "alibi", "sink", "grouped_query"),
    "window, key_lengths, bias, value_dim": ("window", "key_lengths", "bias", "value_dim"),
    "array_mask, softcap, relative_bias": ("array_mask", "softcap", "relative_bias"),
    "packed, causal, softcap": ("packed", "causal", "softcap"),
}
native = partial(by, "native")
WRT = ("query", "key", "value", "sink")


def there(x):
    return jnp.asarray(x)


def traced(function, arrays, make_options):
    """Return ``function(*arrays, **options)`` under jit, where every array, also of the options, is an argument."""
    made = []
    make_options(lambda x: made.append(there(x)) or made[-1])

    @jax.jit
    def compute(arrays, made):
        rest = iter(made)
        return function(*arrays, **make_options(lambda x: next(rest)))

    return compute([*map(there, arrays)], made)


def drawn(names, rng):
    arrays = [x.astype(np.float32) for x in arguments(names, rng, np.asarray)[0]]
    floats = lambda x: x.astype(np.float32) if x.dtype.kind == "f" else x  # noqa: E731
    return arrays, lambda make: arguments(names, np.random.default_rng(0), lambda x: make(floats(np.asarray(x))))[1]


# the choice


def test_it_is_chosen_for_jax_arrays_and_for_their_gradients():
    x = jnp.ones((2, 4, 6, 8))
    said = str(mha.explain(mha.scaled_dot_product_attention, x, x, x, mask=mha.causal(), bias=mha.alibi(4)))
    assert "attention: native (jax" in said
    program = str(jax.make_jaxpr(jax.grad(lambda x: mha.scaled_dot_product_attention(x, x, x).sum()))(x))
    assert program.count("target_name=mha_native.attend\n") == program.count("target_name=mha_native.attend_vjp\n") == 1


DEEP = np.zeros((1,) * 9 + (1, 2, 2), np.float32)
X = np.ones((2, 4, 6, 8), np.float32)
SEGMENTS = {"mask": mha.segments(np.zeros(6, int), np.zeros(6, int))}
REASONS = {
    "does not support empty axes": ([X, X[..., :0, :], X[..., :0, :]], {}),
    "does not support more than 8 batch axes": ([DEEP] * 3, {}),
    "does not handle mask": ([X] * 3, {"mask": mha.causal() | mha.prefix(2)}),
    "does not combine packed with array_mask": ([X] * 3, {"mask": mha.packed([4, 2]) & mha.array_mask(jnp.ones((6, 6), bool))}),
}


@pytest.mark.parametrize("reason", REASONS)
def test_what_it_lacks_it_refuses(reason):
    arrays, options = REASONS[reason]
    assert f"not native: {reason}" in str(mha.explain("attention", *map(there, arrays), **options))


def test_it_refuses_other_devices_dtypes_and_a_module_without_headers(monkeypatch):
    from mha_native import on_jax, xla

    def reason(dtype="float32", **device):
        shapes = tuple((name, (1, 1, 2, 2)) for name in ("query", "key", "value"))
        return on_jax.supports(Call("attention", shapes, np.dtype(dtype), type("Device", (), device)() if device else None))

    assert reason() is None and reason(platform="cpu") is None
    assert reason(platform="gpu") == "computes on the CPU, not on gpu"
    assert reason(dtype="int8") == "does not support int8"
    assert reason(device_set={1, 2}) == "computes on one device, not on 2: shard the call by jax.shard_map"
    monkeypatch.setattr(xla, "reason_against", xla.reason_against.__wrapped__)
    without_version = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(lambda frame: None)
    handler = jax.ffi.pycapsule(ctypes.cast(without_version, ctypes.c_void_p).value)
    monkeypatch.setattr(xla, "native", SimpleNamespace(xla_handlers=lambda: (handler, handler)))
    assert reason().startswith("is refused by XLA, so install mha-native from its source with the jaxlib of this JAX: INVALID_")
    monkeypatch.setattr(xla, "native", SimpleNamespace(xla_handlers=lambda: None))
    assert reason() == "was compiled without the headers of XLA: install jaxlib, then mha-native from its source"


def test_a_demanded_kernel_for_gradients_is_asked_in_each_eager_call(rng):
    x = there(normal(rng, 1, 2, 70, 16))
    gradient = jax.grad(lambda x: (mha.scaled_dot_product_attention(x, x, x) ** 2).sum())
    first = gradient(x)
    with mha.use_kernel("attention_vjp", "algebra"):
        second = gradient(x)
    assert not np.array_equal(first, second)
    close(first, second, 2e-4)
    with mha.use_kernel("attention_vjp", "native"), pytest.raises(mha.KernelUnsupported, match="does not handle d_bias"):
        jax.grad(lambda bias: mha.scaled_dot_product_attention(x, x, x, bias=bias).sum())(jnp.zeros((2, 70, 70)))


def test_a_second_call_compiles_nothing(rng):
    from mha_native import on_jax

    def gradient(x, n):
        return jax.grad(lambda x: mha.scaled_dot_product_attention(x, x, x, mask=mha.key_lengths(n)).sum())(x)

    x = there(normal(rng, 1, 4, 60, 4))
    gradient(x, jnp.asarray([60]))
    before = on_jax._attend._cache_size(), on_jax._attend_vjp._cache_size()
    gradient(x + 1, jnp.asarray([7]))
    assert (on_jax._attend._cache_size(), on_jax._attend_vjp._cache_size()) == before


# the bits of the kernel on NumPy arrays


def test_every_option_gives_the_bits_of_numpy_inside_and_outside_of_jit(rng):
    def check(names):
        arrays, options = drawn(names, rng)
        expected = native(mha.attention_state)(*arrays, **options(np.asarray))
        eager = native(mha.attention_state)(*map(there, arrays), **options(there))
        for state in (traced(native(mha.attention_state), arrays, options), eager):
            assert_same_bits(state.out, expected.out)
            assert_same_bits(state.lse, expected.lse)

    for_each(OPTIONS, check)


def test_gradients_of_every_option_have_the_bits_of_numpy(rng):
    """Those of a sink, which is summed by the array library, are close."""

    def check(names):
        arrays, options = drawn(names, rng)

        def gradients(*arrays, **options):
            state, pullback = mha.vjp(mha.attention_state, *arrays, wrt=WRT.__contains__, **options)
            result = pullback(mha.AttentionState(state.out, state.lse))
            return [*result, *(result.options[name] for name in ("sink",) if name in options)]

        expected = native(gradients)(*arrays, **options(np.asarray))
        actual = traced(native(gradients), arrays, options)
        for x, y in zip(actual[:3], expected[:3], strict=True):
            assert_same_bits(x, y)
        for x, y in zip(actual[3:], expected[3:], strict=True):
            close(x, y)

    for_each({label: names for label, names in OPTIONS.items() if "broadcast" not in names}, check)


SHAPES = {
    "tiles": ((2, 4, 130, 64), (2, 4, 130, 64), 64),
    "odd sizes": ((3, 2, 61, 20), (3, 2, 77, 20), 33),
    "decoding, keys in parts": ((1, 8, 1, 64), (1, 2, 3000, 64), 64),
    "few queries": ((1, 1, 5, 16), (1, 1, 1300, 16), 16),
}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("shape", SHAPES)
def test_shapes_and_dtypes_give_the_bits_of_numpy(rng, shape, dtype):
    import ml_dtypes  # noqa: F401  # NumPy knows bfloat16 then

    queries, keys, width = SHAPES[shape]
    arrays = [
        normal(rng, *queries).astype(dtype),
        normal(rng, *keys).astype(dtype),
        normal(rng, *keys[:-1], width).astype(dtype),
    ]
    d_out = normal(rng, *queries[:-1], width).astype(dtype)

    def everything(query, key, value, d_out):
        out, pullback = mha.vjp(mha.scaled_dot_product_attention, query, key, value)
        return [out, *pullback(d_out)]

    expected = native(everything)(*arrays, d_out)
    for x, y in zip(jax.jit(native(everything))(*map(there, (*arrays, d_out))), expected, strict=True):
        assert_same_bits(x, y)
    out, pull = jax.vjp(jax.jit(native(mha.scaled_dot_product_attention)), *map(there, arrays))
    for x, y in zip([out, *pull(there(d_out))], expected, strict=True):
        assert_same_bits(x, y)


FLOAT64 = """
import jax, jax.numpy as jnp, numpy as np, mha_core as mha
rng = np.random.default_rng(0)
arrays = [rng.normal(size=(2, 4, 70, 24)) for _ in range(3)]
lengths = np.asarray([70, 9])
def everything(lengths, *arrays):
    state, pullback = mha.vjp(mha.attention_state, *arrays, mask=mha.key_lengths(lengths) & mha.causal())
    return [*state, *pullback(mha.AttentionState(state.out, None))]
with mha.use_kernel("attention", "native"), mha.use_kernel("attention_vjp", "native"):
    expected = everything(lengths, *arrays)
    actual = jax.jit(everything)(jnp.asarray(lengths), *map(jnp.asarray, arrays))
print([str(x.dtype) == "float64" and np.array_equal(x, y) for x, y in zip(actual, expected, strict=True)])
"""


def test_float64_gives_the_bits_of_numpy():
    assert in_process(FLOAT64, JAX_ENABLE_X64="1") == str([True] * 5)


# gradients

ARGUMENTS = (0, 1, 2, 3)


def test_gradients_by_grad_equal_those_of_the_algebra(rng):
    given = loss_inputs(rng, 3)
    given = (*given[:3], given[3][0])
    mask = mha.causal() & mha.key_lengths(jnp.asarray([6, 2, 0]))
    value, expected = jax.jit(jax.value_and_grad(partial(loss_of, "algebra", mask=mask), ARGUMENTS))(*given)
    for function in (partial(loss_of, "native", mask=mask), jax.jit(partial(loss_of, "native", mask=mask))):
        got, gradients = jax.value_and_grad(function, ARGUMENTS)(*given)
        close(got, value)
        for x, y in zip(gradients, expected, strict=True):
            close(x, y, 1e-4)


@pytest.mark.parametrize("wanted", [(0,), (2,), (1, 3)])
def test_some_gradients_are_the_same_as_beside_the_others(rng, wanted):
    given = loss_inputs(rng)
    every = jax.grad(partial(loss_of, "native"), ARGUMENTS)(*given)
    for at, x in zip(wanted, jax.grad(partial(loss_of, "native"), wanted)(*given), strict=True):
        assert_same_bits(x, every[at])


def test_gradients_of_biases_are_computed_by_another_kernel(rng):
    query, key, value, _ = loss_inputs(rng)
    bias, table = there(normal(rng, 2, 6, 6)), there(normal(rng, 8, 2))

    def loss(kernel, bias, table):
        relative = mha.relative_bias(table, bidirectional=True, max_distance=5)
        with mha.use_kernel("attention", kernel):
            states = [mha.attention_state(query, key, value, bias=b) for b in (bias, relative)]
        return sum(jnp.sum(jnp.sin(out)) + jnp.sum(lse) for out, lse in states)

    native, algebra = (jax.jit(jax.grad(partial(loss, kernel), (0, 1)))(bias, table) for kernel in ("native", "algebra"))
    for x, y in zip(native, algebra, strict=True):
        close(x, y)


def test_gradients_of_gradients(rng):
    """The gradient of a squared gradient; that of the kernel's gradients is another kernel's, or the algebra's."""
    given = loss_inputs(rng)

    def squared(kernel, *arrays):
        return sum(jnp.sum(x**2) for x in jax.grad(partial(loss_of, kernel, mask=mha.causal()), ARGUMENTS)(*arrays))

    expected = jax.jit(jax.grad(partial(squared, "algebra"), ARGUMENTS))(*given)

    def by_native(*arrays):  # only the choice of kernel for attention is demanded: native's gradients have none themselves
        def loss(*arrays):
            with mha.use_kernel("attention", "native"):
                out, lse = mha.attention_state(*arrays[:3], mask=mha.causal(), sink=arrays[3], softcap=3.0)
            return jnp.sum(jnp.sin(out)) + jnp.sum(jnp.cos(lse))

        return sum(jnp.sum(x**2) for x in jax.grad(loss, ARGUMENTS)(*arrays))

    for x, y in zip(jax.jit(jax.grad(by_native, ARGUMENTS))(*given), expected, strict=True):
        close(x, y, 1e-3)


def test_the_algebra_has_forward_mode():
    x = jnp.ones((1, 3, 4))
    with pytest.raises(TypeError, match="custom_vjp"):
        jax.jvp(mha.scaled_dot_product_attention, (x, x, x), (x, x, x))
    with mha.use_kernel("attention", "algebra"):
        jax.jvp(mha.scaled_dot_product_attention, (x, x, x), (x, x, x))


def test_a_mask_whose_arrays_no_pair_needs(rng):
    """All of its tiles attend, so attention is computed without it; its array is none of the call's."""
    x = jnp.asarray(normal(rng, 1, 2, 130, 8))
    keep = mha.mask_function(lambda batch, head, query, key, keep: keep[key], [jnp.ones(130, dtype=bool)])
    mask = mha.block_mask(keep, 130, 130)
    assert mha.explain(mha.scaled_dot_product_attention, x, x, x, mask=mask).kernel == "native"
    expected = mha.scaled_dot_product_attention(x, x, x)
    for _ in range(2):
        np.testing.assert_array_equal(mha.scaled_dot_product_attention(x, x, x, mask=mask), expected)
