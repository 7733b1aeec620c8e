"""Kernels that record their arguments and return what the algebra never would, calls for them, and plugins that yield them."""

from contextlib import contextmanager

import numpy as np

import mha_core as mha
from mha_conformance.cases import features
from mha_core.plugin import AttentionState, Backend, Kernel, hookimpl, register, unregister

BATCH, HEADS, LENGTH, WIDTH = 2, 4, 6, 8
ANSWER = 7.0
received = []
"""(op, arguments, options) of each call of a kernel, in order; tests clear it."""


def given():
    """Return the problem that the last called kernel received."""
    return received[-1][1][0]


def attention(problem):
    received.append(("attention", (problem,), {}))
    return _attention(problem, ANSWER)


def other_attention(problem):
    received.append(("other_attention", (problem,), {}))
    return _attention(problem, -ANSWER)


def prepare(problem):
    """Return a function of the arrays whose result differs from that of ``attention``; None for problems with a sink."""
    received.append(("prepare", (problem,), {}))
    if problem.sink is not None:
        return None
    xp, rows, dtype, device = problem.xp, problem.rows_shape, problem.compute_dtype, problem.device

    def prepared(*arrays):
        received.append(("prepared", arrays, {}))
        out = xp.full((*rows, arrays[2].shape[-1]), 2 * ANSWER, dtype=arrays[0].dtype, device=device)
        return AttentionState(out, xp.zeros(rows, dtype=dtype, device=device))

    return prepared


def supports(call):
    received.append(("supports", (call,), {}))
    return "it is Monday"


def _attention(problem, answer):
    xp, query, rows = problem.xp, problem.query, problem.rows_shape
    out = xp.full((*rows, problem.value.shape[-1]), answer, dtype=query.dtype, device=query.device)
    return AttentionState(out, xp.zeros(rows, dtype=problem.compute_dtype, device=query.device))


def _first_argument(op):
    def kernel(*arguments, **options):
        received.append((op, arguments, options))
        return arguments[0]

    return kernel


for _op in ("gelu", "linear", "linear_int8", "layer_norm", "rms_norm", "relu", "silu", "rotary"):
    globals()[_op] = _first_argument(_op)  # a kernel is found in its module by its name


FEATURES = [name for name in features.FEATURES if name not in ("lse", "int8")]
"""The features of attention that a call may use."""


def a_call(rng, *names, **changes):
    """Return the arguments of an attention call that uses these features and no others, apart from ``changes``."""
    problem = features.problem_with(names, rng, LENGTH, WIDTH)
    arrays = {"query": problem.query, "key": problem.key, "value": problem.value}
    return {**arrays, **problem.options(np.asarray), **changes}


A, W, B, TABLE = np.ones((2, 3)), np.eye(3), np.zeros(3), np.ones((2, 1))
INT8 = mha.quantize_weight(W)
OPERATIONS = {
    "gelu": (lambda: mha.gelu(A), [A], {"approximate": "none"}),
    "gelu tanh": (lambda: mha.gelu(A, approximate="tanh"), [A], {"approximate": "tanh"}),
    "linear": (lambda: mha.linear(A, W, B), [A, W, B], {}),
    "linear without b": (lambda: mha.linear(A, w=W), [A, W, None], {}),
    "linear_int8": (lambda: mha.linear(A, INT8, B), [A, INT8, B], {}),
    "layer_norm": (lambda: mha.layer_norm(A, bias=B, eps=0.5), [A, None, B], {"eps": 0.5}),
    "rms_norm": (lambda: mha.rms_norm(A, B), [A, B], {"eps": 1e-5}),
    "relu": (lambda: mha.relu(A), [A], {}),
    "silu": (lambda: mha.silu(A), [A], {}),
    "rotary": (lambda: mha.rotary(A, TABLE, TABLE, interleaved=True), [A, TABLE, TABLE], {"interleaved": True}),
}
"""A call of each operation, and the arguments and options that its kernel must receive."""
DIFFERENTIABLE = {name: call for name, call in OPERATIONS.items() if name != "linear_int8"}
"""Those that have gradients."""


class Plugin:
    """A plugin in memory: an object whose hooks yield these records."""

    def __init__(self, kernels=(), backends=()):
        self.kernels, self.backends = kernels, backends

    @hookimpl
    def mha_backends(self):
        yield from self.backends

    @hookimpl
    def mha_kernels(self):
        yield from self.kernels


@contextmanager
def registered(plugin, name=""):
    """Register a plugin until the block ends, by its name or that of its class."""
    register(plugin, name)
    try:
        yield plugin
    finally:
        unregister(plugin)


def a_kernel(op="attention", **changes):
    """Return a kernel with a higher priority than any other, which declares every feature."""
    settings = {"backend": "numpy", "name": "sample", "api": 1, "load": f"sample_kernels:{op}", "priority": 100}
    return Kernel(
        **{**settings, "op": op, "handles": frozenset(FEATURES) | {"lse"} if op == "attention" else frozenset(), **changes}
    )


def a_backend(name="sample", **changes):
    """Return a backend with NumPy's functions under another name, for a type of array that does not exist."""
    return Backend(**{"name": name, "api": 1, "types": ("nowhere:Array",), "namespace": lambda: np, **changes})
