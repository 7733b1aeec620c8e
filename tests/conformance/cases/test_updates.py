"""Updates of a covering design: the algebra's are right, and those of wrong kernels are found."""

import numpy as np
import pytest
from sample_kernels import registered

from mha_conformance.find import find
from mha_conformance.judge.designed import judge_design, whole_design
from mha_conformance.judge.held import judge_of
from mha_core.plugin import Kernel, hookimpl


def right(w, gradient, m, v, *, learning_rate, beta_1, beta_2, eps, weight_decay, step, gradient_scale, fault=None):
    """A step of AdamW in float64, with a fault."""
    x, g, m, v = (np.asarray(each, dtype=np.float64) for each in (w, gradient, m, v))
    g = g if fault == "the gradient is not scaled" else g * gradient_scale
    m, v = beta_1 * m + (1 - beta_1) * g, beta_2 * v + (1 - beta_2) * g * g
    count = min(step + 1, 1000) if fault == "after 1000 steps the corrections stay" else step + 1
    c_1, c_2 = 1 - beta_1**count, 1 - beta_2**count
    root = np.sqrt(v / c_2 + eps) if fault == "eps is in the root" else np.sqrt(v / c_2) + eps
    decay = 0 if fault == "weights do not decay" else learning_rate * weight_decay
    if fault == "weights decay after the step":
        x = (1 - decay) * (x - learning_rate * m / c_1 / root)
    else:
        x = (1 - decay) * x - learning_rate * m / c_1 / root
    if fault == "rows beyond 20,000 are left out" and x.shape[0] > 20_000:
        x[20_000:] = w[20_000:]
    if fault == "w is updated in place":
        w[...] = x
    return x.astype(w.dtype), *(each.astype(np.float32 if w.dtype != np.float64 else w.dtype) for each in (m, v))


FAULTS = (
    *("the gradient is not scaled", "eps is in the root", "weights do not decay", "weights decay after the step"),
    *("after 1000 steps the corrections stay", "rows beyond 20,000 are left out", "w is updated in place"),
)
chosen = {"fault": None}


def kernel(*arrays, **settings):
    return right(*arrays, **settings, fault=chosen["fault"])


class Plugin:
    name = "updates"

    @hookimpl
    def mha_kernels(self):
        return [Kernel("numpy", "adamw", "under test", 1, f"{__name__}:kernel", opt_in=True)]


def judged(fault):
    chosen["fault"] = fault
    backend = find("numpy", None, ["float32"])
    with registered(Plugin()):
        return judge_design(judge_of(backend, "float32", np.random.default_rng(0)), "adamw", "under test", ())


def test_a_right_kernel_computes_every_problem():
    verdict = judged(None)
    assert verdict.computed == len(whole_design("adamw", False, True, 0)[1]) and not verdict.refused


@pytest.mark.parametrize("fault", FAULTS)
def test_a_wrong_kernel_is_found(fault):
    with pytest.raises(Exception, match=r"within|read-only|changed|written|other bits"):
        judged(fault)
