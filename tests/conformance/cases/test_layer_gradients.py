"""Gradients of layers of a covering design: a kernel made of the algebra is right, and wrong ones are found."""

import numpy as np
import pytest
from sample_kernels import registered

import mha_core as mha
from mha_conformance.cases.layer_gradients import gradients_of
from mha_conformance.cases.layer_problem import plain_layer_problem
from mha_conformance.find import find
from mha_conformance.judge.designed import judge_design
from mha_conformance.judge.held import judge_of
from mha_core.plugin import Kernel, hookimpl
from mha_core.shared import ALGEBRA, FEATURES

OP = "encoder_layer_vjp"
chosen = {"fault": None}


def kernel(layer, x, *, wanted, **options):
    """Return the result of the algebra and its pullback, with the chosen fault."""
    with mha.use_kernel(OP, ALGEBRA):
        out, pull = mha.vjp(layer, x, wrt=lambda name: name in wanted, **options)
    fault, calls = chosen["fault"] or (lambda gradients, d, pull, calls, wanted: gradients), []

    def named(d_out):
        pulled = pull(d_out)
        of_layer, of_x = pulled
        bias = pulled.options.get("bias")
        options = pulled.options | ({} if bias is None else {"bias": getattr(bias, "table", bias)})
        return {"x": of_x, **options, **({} if of_layer is None else of_layer.arrays())}

    def pullback(d_out):
        calls.append(d_out)
        return fault(named(d_out), d_out, named, calls, wanted)

    return out, pullback


class Plugin:
    name = "gradients of layers"

    @hookimpl
    def mha_kernels(self):
        return [Kernel("numpy", OP, "under test", 1, f"{__name__}:kernel", handles=FEATURES[OP], opt_in=True)]


def changed(name, change):
    """Return a fault in the gradient of one weight, where it is wanted."""
    return lambda gradients, *call: gradients | ({name: change(gradients[name], *call)} if name in gradients else {})


def only_rows(d, before):
    """Return d_out with zeros in the rows from ``before`` on."""
    kept = np.zeros_like(d)
    kept[..., :before, :] = d[..., :before, :]
    return kept


FAULTS = {
    "the second pullback is of the first gradient": lambda gradients, d, pull, calls, wanted: pull(calls[0]),
    "rows beyond 16 add nothing to the gradient of w_2": changed(
        "feed_forward.w_2", lambda g, d, pull, *_: pull(only_rows(d, 16))["feed_forward.w_2"]
    ),
    "hidden features beyond 200 have no gradient": changed(
        "feed_forward.w_1", lambda g, *_: np.where(np.arange(g.shape[1]) < 200, g, 0)
    ),
    "the gradient of b_2 is that of one row": changed(
        "feed_forward.b_2", lambda g, d, *_: d.reshape(-1, d.shape[-1])[0].copy()
    ),
    "the gradient of b_k is not 0": changed("attention.b_k", lambda g, *_: g + 1),
    "biases beside frozen matrices have twice their gradient": changed(
        "attention.b_v", lambda g, d, pull, calls, wanted: g if "attention.w_v" in wanted else 2 * g
    ),
    "the gradient of x is rounded to float16": changed("x", lambda g, *_: g.astype(np.float16).astype(g.dtype)),
}


def judged(fault):
    chosen["fault"] = fault
    backend = find("numpy", None, ["float32"], quick=True)
    with registered(Plugin()):
        return judge_design(judge_of(backend, "float32", np.random.default_rng(0)), OP, "under test", FEATURES[OP])


def test_a_right_kernel_computes_every_problem():
    verdict = judged(None)
    assert verdict.computed > 40 and verdict.refused.keys() == {"does not handle recorded"}  # a bias or a sink


@pytest.mark.parametrize("fault", FAULTS)
def test_a_wrong_kernel_is_found(fault):
    with pytest.raises(AssertionError, match=r"within|other bits"):
        judged(FAULTS[fault])


def test_every_gradient_that_is_wanted_has_an_exact_value():
    rng = np.random.default_rng(1)
    problem = gradients_of(plain_layer_problem("encoder_layer", rng, bias="whole", sink="small"), rng)
    problem.floats["bias"][..., 0] = -np.inf
    exact = problem.exact(problem.floats)
    assert {name.removeprefix("layers_vjp d_") for name in exact} == {*problem.differentiated, "out"} >= {"bias", "sink"}
    d_bias = exact["layers_vjp d_bias"]
    assert d_bias.shape == problem.floats["bias"].shape and (d_bias[..., 0] == 0).all() and (d_bias[..., 1:] != 0).all()
