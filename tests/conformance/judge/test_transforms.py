"""The judge of gradients, forward gradients and vmap: right ones pass, wrong ones do not, on torch and JAX."""

import needs
import numpy as np
import pytest

from mha_conformance.find import find
from mha_conformance.judge import transforms
from mha_conformance.judge.held import judge_of
from mha_conformance.judge.transforms import judge_transform
from mha_core.dispatch.context import ALGEBRA
from mha_core.dispatch.contract import FEATURES

TRANSFORMS = ("gradient", "forward_gradient", "vmap")
pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.script.:DeprecationWarning")  # torch.func.jvp's own
OPERATIONS = pytest.mark.parametrize("op", ["attention", "linear", "layer_norm", "gelu", "encoder_layer"])
SOME = {"attention": {"causal", "bias", "lse"}, "encoder_layer": FEATURES["encoder_layer"] - {"mask", "bias"}}
"""Features of the problems: fewer than all, for speed."""


@pytest.fixture(autouse=True)
def few_problems(monkeypatch):
    monkeypatch.setattr(transforms, "PROBLEMS", 6)


def judged(backend, transform, apply, op):
    """Judge the algebra; return how many problems it computed."""
    judge = judge_of(backend, backend.dtype, np.random.default_rng(0))
    return judge_transform(judge, transform, apply, op, ALGEBRA, SOME.get(op, FEATURES[op])).computed


def of_torch(transform, dtype):
    backend = find("torch", None, [dtype])
    return backend, backend.loaded.record.transforms[transform]


@needs.installed("torch")
@OPERATIONS
@pytest.mark.parametrize("transform", TRANSFORMS)
def test_the_algebra_on_torch_is_right(transform, op):
    backend, apply = of_torch(transform, "float64")
    assert judged(backend, transform, apply, op)


@pytest.mark.full
@needs.installed("mha_jax", "jax")
@pytest.mark.parametrize("op", ["linear", "layer_norm", "gelu"])
@pytest.mark.parametrize("transform", TRANSFORMS)
def test_the_algebra_on_jax_is_right(transform, op):
    """JAX's plugin is kept short, so its transforms stand here."""
    import jax

    apply = {
        "gradient": lambda function, arrays, towards: jax.vjp(function, *arrays)[1](tuple(towards)),
        "forward_gradient": lambda function, arrays, tangents: jax.jvp(function, tuple(arrays), tuple(tangents))[1],
        "vmap": lambda function, arrays: jax.vmap(function)(*arrays),
    }[transform]
    assert judged(find("jax", None, ["float32"]), transform, apply, op)


@needs.installed("torch")
@OPERATIONS
@pytest.mark.parametrize("transform", TRANSFORMS)
def test_an_error_of_a_thousandth_is_found(transform, op):
    backend, apply = of_torch(transform, "float32")

    def wrong(*arguments):
        first, *others = apply(*arguments)
        return [first * 0.999, *others]

    with pytest.raises(AssertionError, match=r"the derivative along|within"):
        judged(backend, transform, wrong, op)


@needs.installed("torch")
def test_a_gradient_where_nothing_depends_on_the_array_is_found(monkeypatch):
    """A gradient of 1e-300 for keys that no query sees is far below the bound, but not 0."""
    monkeypatch.setattr(transforms, "PROBLEMS", 60)  # the first have no such key
    backend, apply = of_torch("gradient", "float64")
    with pytest.raises(AssertionError, match="is not 0 where nothing depends on it"):
        judged(backend, "gradient", lambda *arguments: [x + 1e-300 for x in apply(*arguments)], "attention")
