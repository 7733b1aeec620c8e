"""The judge of gradients: its oracles equal complex-step derivatives, and it finds planted faults."""

from itertools import chain, islice, pairwise
from types import SimpleNamespace

import numpy as np
import pytest
from complex_step import along, assert_derivatives
from sample_kernels import registered
from whole_gradients import WholeGradients
from wrong_gradients import FAULTS, NAME, GradientPlugin

from mha_conformance.cases.attention_gradients import attention_gradient_problem, axes_of_gradients, plain_row
from mha_conformance.find import find
from mha_conformance.judge.designed import design_of, drawn
from mha_conformance.judge.held import judge_of
from mha_conformance.oracle import attention
from mha_conformance.oracle.attention_gradients import attention_gradients, gradient_bounds
from mha_core.dispatch.contract import FEATURES

pytestmark = pytest.mark.full

OP = "attention_vjp"
PAIRS = 300
"""Problems enough for every pair of the design."""


class Scalar:
    """The sum of the results times what is given, as a function of the arrays of an attention problem."""

    def __init__(self, problem):
        self.problem = problem

    def __call__(self, arrays):
        p = self.problem
        options = p.settings.oracle({name: x.real for name, x in arrays.items()}, "float64")
        if "bias" in p.floats:
            options["bias"] = np.where(
                arrays["bias"].real > -np.inf, np.where(np.isfinite(arrays["bias"]), arrays["bias"], 0), 0
            )
        if "table" in p.floats:
            options["bias"] = p.settings.whole_bias(arrays, "float64")
        if p.settings.score is not None:
            options["score"] = p.settings.score(arrays)
        options |= {"sink": arrays.get("sink")}
        out, lse, _ = attention(*(arrays[name] for name in ("query", "key", "value")), **options)
        lse = np.where(np.isfinite(lse), lse, 0)  # of rows that see no key
        given = arrays.get("d_out", 0), arrays.get("d_lse", 0)
        return (out * given[0]).sum() + (lse * given[1]).sum()


def problems(count, seed, **more):
    """Yield small problems of the covering design, with every option."""
    rng = np.random.default_rng(seed)
    more = {"room": ("small",), "values": (1.0,), "wanted": ("query, key, value",), "state": ("its own",), **more}
    design = design_of(OP, FEATURES[OP], "float64", rng, more=more)
    for row in islice(chain(design, design.random(rng)), count):
        yield drawn(OP, row, np.random.default_rng(rng.integers(2**32)), rng)


def exact(problem):
    expected = problem.expected(problem.floats, "float64", rounds_weights=False)
    names = {"d_bias": "table" if "table" in problem.floats else "bias"}
    return {names.get(name, name.removeprefix("d_")): both for name, both in expected.items()}


def test_the_gradients_of_attention_equal_complex_step_derivatives():
    """For every pair of options that can be given together, half of the problems with both d_out and d_lse."""
    rng = np.random.default_rng(1)
    for problem in problems(400, 0, d_bias=(True,), d_sink=(True,)):
        gradients, bounds = ({name: both[at] for name, both in exact(problem).items()} for at in (0, 1))
        assert_derivatives(Scalar(problem), problem.floats, gradients, rng, bounds)


@pytest.mark.parametrize("towards", ["out", "lse", "both"])
@pytest.mark.parametrize("bias", ["none", "keys", "batch", "relative", "relative of one side"])
def test_every_element_equals_its_complex_step_derivative(bias, towards):
    """With all other options at once, offsets by element of the batch, and keys that the batch shares."""
    rng = np.random.default_rng(2)
    given = {"softcap": 0.5, "sink": "small", "scale": -0.7, "array": "heads", "batch": "keys shared", "queries": 3, "keys": 4}
    row = plain_row(FEATURES[OP], bias=bias, towards=towards, offset="array", head_dim=3, value_dim=2, **given)
    problem = attention_gradient_problem(row, rng, rng)
    value = Scalar(problem)
    for name, (gradient, _) in exact(problem).items():
        for at in np.ndindex(*gradient.shape):
            direction = np.zeros(gradient.shape)
            direction[at] = 1
            expected = along(value, problem.floats, name, direction)
            assert abs(gradient[at] - expected) <= 1e-13 * (1 + abs(expected)), (name, at)


def test_a_query_without_keys_and_a_key_without_queries_have_bounds_of_zero():
    rng = np.random.default_rng(4)
    q, k, v, d = (rng.normal(size=(1, 4, 3)) for _ in range(4))
    allowed = np.ones((4, 4), dtype=bool)
    allowed[1] = allowed[:, 2] = False
    found = attention_gradients(q, k, v, d, d[..., 0], allowed=allowed, of_bias=lambda x: x)
    for name, at in (("query", 1), ("key", 2), ("value", 2)):
        assert not found[name][0][:, at].any() and not found[name][1][:, at].any()
        assert found[name][1][:, 0].all()
    assert not found["bias"][1][:, ~allowed].any() and found["bias"][1][:, allowed].all()


def test_half_precision_adds_the_roundings_of_the_forward_pass():
    rng = np.random.default_rng(5)
    q, k, v, d = (rng.normal(size=(2, 16, 8)).astype(np.float16).astype(float) for _ in range(4))
    narrow, wide = (attention_gradients(q, k, v, d, dtype=dtype) for dtype in ("float16", "float32"))
    fused = attention_gradients(q, k, v, d, dtype="float16", rounds_weights=True)
    for name in ("query", "key", "value"):
        assert (wide[name][1] < narrow[name][1]).all() and (narrow[name][1] < fused[name][1]).all()


@pytest.mark.parametrize(("dtype", "stages"), [("float64", 3), ("float32", 3), ("float16", 2)])
def test_each_bound_is_at_least_as_wide_as_the_one_before(dtype, stages):
    rng = np.random.default_rng(6)
    arrays = [rng.normal(size=(2, 16, 8)) for _ in range(4)]
    found = [*gradient_bounds(*arrays, dtype=dtype, sink=np.zeros(2), of_bias=lambda x: x)]
    assert len(found) == stages and str(found[-1]) == str(
        attention_gradients(*arrays, dtype=dtype, sink=np.zeros(2), of_bias=lambda x: x)
    )
    for name, (x, last) in found[-1].items():
        for before, after in pairwise(found):
            assert (before[name][0] == x).all() and (before[name][1] <= after[name][1]).all(), name
        assert not found[0][name][1].any() and last.all()


# planted faults


def judged(cls, most):
    """Judge a kernel in float32 on small problems of the covering design; return what was found first, or None."""
    backend, rng = find("numpy", None, ["float32"]), np.random.default_rng(0)
    with registered(GradientPlugin(cls)):
        judge = judge_of(backend, "float32", rng).of(OP, NAME)
        design = design_of(OP, FEATURES[OP], "float32", rng, more={"room": ("small",)})
        for count, row in enumerate(islice(chain(design, design.random(rng)), most), 1):
            problem = drawn(OP, row, np.random.default_rng(int(rng.integers(2**32))), rng)
            try:
                judge.judge(problem)
            except AssertionError as error:
                return SimpleNamespace(count=count, error=str(error).partition("\n")[0], problem=str(problem))
    return None


def test_a_right_kernel_passes():
    assert judged(WholeGradients, PAIRS) is None


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_found(name):
    found = judged(FAULTS[name], PAIRS)
    assert found is not None, f"not found: {FAULTS[name].__doc__}"
    print(f"{FAULTS[name].__doc__}: found by problem {found.count}: {found.error}; {found.problem}")


def test_there_are_at_least_30_faults():
    assert len(FAULTS) >= 30


def test_axes_of_a_kernel_follow_its_features():
    """A kernel that declares nothing is never asked for gradients of lse, of a bias, or of a sink."""
    axes = axes_of_gradients((), half=False)
    assert axes["towards"] == ["out", "out of a state"] and axes["d_bias"] == axes["d_sink"] == [False]
    assert "both" in axes_of_gradients({"d_lse"}, half=False)["towards"]


def test_a_weight_that_counts_as_0_in_the_output_may_do_so_in_the_gradients():
    """Beside a sink the only key has a weight of 1e-37: kernels return an output of 0, from which delta is 0."""
    query, key, value, d_out = (np.full((1, 1, 1, 4), x) for x in (1.0, -42.0, 3.0, 1.0))
    exact, bound = attention_gradients(query, key, value, d_out, dtype="float32", sink=np.ones(1))["sink"]
    assert abs(exact[0]) > 1e-37
    assert abs(exact[0]) <= bound[0] < 1e-28
