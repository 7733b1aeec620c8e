"""Rows of docs/field.md about results: extremes, memory, states, weights and gradients."""

import json
import warnings
from contextlib import suppress
from functools import cache, partial

import numpy as np
import pytest
from processes import STRICT, printed, run

import mha_core as mha
from field.peers import ATTEND, heads_behind, jax, jnp, keras, onnx, torch
from field.probes import PROBES, numbers, probe, qkv
from mha_conformance import oracle


def raises(column, *arrays, **options):
    """Return "yes" if the library refuses these arguments, with any of the errors that the libraries raise; else ""."""
    with suppress(TypeError, ValueError, RuntimeError, onnx.shape_inference.InferenceError):
        ATTEND[column](*arrays, **options)
        return ""
    return "yes"


@probe("a query that sees no key")
def _(column, rng):
    (query, key, value), mask = qkv(rng), np.ones((1, 1, 4, 4), dtype=bool)
    mask[..., 1, :] = False
    row = ATTEND[column](query, key, value, mask=mask)[..., 1, :]
    if np.isnan(row).any():
        return "NaN"
    if np.allclose(row, value.mean(axis=-2), atol=1e-6):
        return "mean of values"
    assert (row == 0).all()
    return "0"


def spoilt(column, rng, *, at):
    """Return whether NaN in array ``at``, for a key that no query may see, spreads to the output."""
    arrays, mask = list(qkv(rng)), np.ones((1, 1, 4, 4), dtype=bool)
    arrays[at][..., 3, :] = np.nan
    mask[..., 3] = False
    return "spreads" if np.isnan(ATTEND[column](*arrays, mask=mask)).any() else "stays out"


PROBES["NaN in a key no query may see"] = partial(spoilt, at=1)
PROBES["NaN in a value no query may see"] = partial(spoilt, at=2)


@probe("no keys at all")
def _(column, rng):
    query, key, value = qkv(rng, keys=0)
    try:
        out = ATTEND[column](query, key, value)
    except ValueError:
        return "error"
    assert (out == 0).all()
    return "0"


@probe("float16 scores beyond 65504")
def _(column, rng):
    x = np.full((1, 1, 2, 64), 300, dtype=np.float16)
    with np.errstate(over="ignore", invalid="ignore"):  # the reference evaluator's product overflows, which this row shows
        out = ATTEND[column](x, x, x)
    return "yes" if (out == 300).all() else "NaN"


PROBES["refuses an integer mask"] = lambda column, rng: raises(column, *qkv(rng), mask=np.ones((1, 1, 4, 4), dtype=np.int64))
PROBES["refuses integer queries"] = lambda column, rng: raises(column, *[np.ones((1, 2, 4, 8), dtype=np.int32)] * 3)


def returned(column, expected, functions):
    """Return "yes" once what an argument of the library returns is as expected; "" if it has no such argument."""
    if column not in functions:
        return ""
    np.testing.assert_allclose(functions[column](), expected, atol=1e-5)
    return "yes"


@probe("log-sum-exp")
def _(column, rng):
    arrays = qkv(rng)
    functions = {
        "mha-core": lambda: mha.attention_state(*arrays).lse,
        "jax.nn": lambda: heads_behind(jax.nn.dot_product_attention(*map(heads_behind, arrays), return_residual=True)[1]),
    }
    return returned(column, oracle.attention(*arrays)[1], functions)


@probe("weights")
def _(column, rng):
    query, key, value = qkv(rng)
    if column == "Keras":
        layer, x = keras.layers.MultiHeadAttention(num_heads=2, key_dim=4), torch.from_numpy(query[:, 0])
        assert layer(x, x, return_attention_scores=True)[1].shape == (1, 2, 4, 4)
        return "layer"
    functions = {
        "mha-core": lambda: mha.attention_weights(query, key),
        "ONNX": lambda: ATTEND["ONNX"](query, key, value, weights=True),
    }
    return returned(column, oracle.attention(query, key, value)[2], functions)


# gradients


def of_tensors(feature):
    """Register a function for the cells of all libraries but ONNX, whose attention is an operator of inference, in a graph."""
    return lambda check: probe(feature)(lambda column, rng: "" if column == "ONNX" else check(column, rng))


def on_arrays(column):
    """Return the library's attention on its own arrays: torch's tensors, except for JAX."""
    return {
        "mha-core": lambda: mha.scaled_dot_product_attention,
        "torch SDPA": lambda: torch.nn.functional.scaled_dot_product_attention,
        "jax.nn": lambda: jax.nn.dot_product_attention,
        "Keras": lambda: keras.ops.dot_product_attention,
    }[column]()


def slopes(column, rng, times=1):
    """Return whether the gradient of the sum of squares, taken so many times, is a number other than 0."""

    attend = on_arrays(column)

    def function(x):
        return attend(x, x, x)

    x = numbers(rng, 1, 2, 4, 8)
    if column == "jax.nn":
        for _ in range(times):
            function = jax.grad(lambda x, inner=function: jnp.square(inner(x)).sum())
        return bool(jnp.abs(function(jnp.asarray(x))).sum() > 0)
    x = torch.from_numpy(x).requires_grad_()
    y = function(x)
    for left in reversed(range(times)):
        (y,) = torch.autograd.grad(y.square().sum(), x, create_graph=left > 0)
    return bool(y.abs().sum() > 0)


@of_tensors("gradients")
def _(column, rng):
    assert slopes(column, rng)
    return "yes"


@of_tensors("compiled with its caller, in one graph")
def _(column, rng):
    attend, x = on_arrays(column), numbers(rng, 1, 2, 4, 8)
    if column == "jax.nn":
        np.testing.assert_allclose(jax.jit(lambda x: attend(x, x, x) * 2)(x), attend(x, x, x) * 2, atol=1e-6)
        return "yes"
    torch._dynamo.reset()
    x = torch.from_numpy(x)
    run = torch.compile(lambda x: attend(x, x, x) * 2, fullgraph=True, backend="eager")
    with warnings.catch_warnings(action="ignore" if column == "Keras" else "error"):
        try:
            torch.testing.assert_close(run(x), attend(x, x, x) * 2)
        except torch._dynamo.exc.Unsupported:
            assert column == "Keras"
            return ""
    return "yes"


@of_tensors("under vmap")
def _(column, rng):
    attend, x = on_arrays(column), numbers(rng, 3, 1, 2, 4, 8)
    vmap, x = (jax.vmap, jnp.asarray(x)) if column == "jax.nn" else (torch.func.vmap, torch.from_numpy(x))
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        out = vmap(lambda x: attend(x, x, x))(x)
    np.testing.assert_allclose(np.asarray(out[1]), np.asarray(attend(x[1], x[1], x[1])), atol=1e-6)
    if any("not yet implemented the batching rule" in str(warning.message) for warning in warned):
        return "in a loop"
    return "torch, JAX" if column == "mha-core" else "yes"


ON_REQUEST = {
    "mha-core": lambda: mha.use_kernel("attention", "algebra"),
    "torch SDPA": lambda: torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH),
}


@of_tensors("second derivatives on the CPU")
def _(column, rng):
    if column == "jax.nn":
        assert slopes(column, rng, 2)
        return "yes"
    with pytest.raises(RuntimeError, match="has no second derivative" if column == "mha-core" else "not implemented"):
        slopes(column, rng, 2)
    if column not in ON_REQUEST:
        return ""
    with ON_REQUEST[column]():
        assert slopes(column, rng, 2)
    return "on request"


@probe("dropout of the weights")
def _(column, rng):
    if column == "torch SDPA":
        x = torch.from_numpy(numbers(rng, 1, 2, 4, 8))
        assert (torch.nn.functional.scaled_dot_product_attention(x, x, x, dropout_p=1.0) == 0).all()
        return "yes"
    if column == "Keras":
        layer, x = keras.layers.MultiHeadAttention(2, 4, dropout=0.9, seed=0), torch.from_numpy(numbers(rng, 1, 8, 8))
        assert not torch.allclose(layer(x, x, training=True), layer(x, x, training=False))
        return "layer"
    if column == "mha-core":
        x = qkv(rng)
        drop = mha.weight_dropout(0.9, seed=0)
        assert not np.allclose(mha.scaled_dot_product_attention(*x, weight_dropout=drop), mha.scaled_dot_product_attention(*x))
        return "yes"
    return ""  # no argument for it


# each library in a separate process

NUMPY_ONLY = {
    "mha-core": "import mha_core as mha; out = mha.scaled_dot_product_attention(x, x, x)",
    "Keras": "import keras; out = keras.ops.dot_product_attention(x, x, x)",
    "ONNX": "from onnx.reference.ops.op_attention import _compute_attention as attend; out = attend(x, x, x)[0]",
}
LOADED = "; import sys; assert type(out) is np.ndarray; print(*{'torch', 'jax', 'tensorflow'} & set(sys.modules))"


@probe("runs on bare NumPy")
def _(column, rng):
    if column not in NUMPY_ONLY:
        return ""  # it has its own type of array
    program = f"import numpy as np; x = np.ones((1, 2, 3, 4), dtype=np.float32); {NUMPY_ONLY[column]}{LOADED}"
    return {"": "yes", "jax": "with JAX"}[printed(STRICT, program, KERAS_BACKEND="numpy").strip()]


GROWTH = """
import json, sys
import numpy as np
from field.peers import ATTEND, heads_behind, jax, jnp, keras, onnx, torch
from mha_conformance.probes.peak_memory import peak, reset_peak, trim

attend, n = ATTEND[sys.argv[1]], 4096
x = np.sin(np.arange(n * 16.0)).reshape(1, 1, n, 16).astype(np.float32)
mask = (np.arange(n)[:, None] + np.arange(n)) % 3 != 0
growth = {}
for name, options in {"plain": {}, "mask": {"mask": mask[None, None]}}.items():
    grown = []
    for _ in range(2):
        trim()
        if not reset_peak():
            sys.exit("this system cannot reset the peak memory of a process")
        before = peak()
        attend(x, x, x, **options)
        grown.append(peak() - before)
    growth[name] = min(grown)
print(json.dumps(growth))
"""


@cache
def growth(column):
    """Return how many bytes a process grows in a call with 4096 x 4096 scores: 64 MiB in float32; the mask takes 16 MiB."""
    done = run(STRICT, GROWTH, column)
    if "cannot reset the peak" in done.stderr:
        pytest.skip(done.stderr)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


PROBES["memory O(L + S)"] = lambda column, rng: "yes" if growth(column)["plain"] < 2**25 else ""
PROBES["memory O(L + S) with an array mask"] = lambda column, rng: "yes" if growth(column)["mask"] < 2**25 else ""

__all__ = ["PROBES"]  # which now has these rows too
