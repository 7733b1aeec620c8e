"""Cross-entropies of a covering design: the algebra's is right, and wrong ones are found."""

import numpy as np
import pytest

from mha_conformance.cases.losses import IGNORED, axes_of_cross_entropy
from mha_conformance.find import find
from mha_conformance.judge.designed import judge_design, whole_design
from mha_conformance.judge.held import judge_of
from mha_core.algebra import losses


def judged(dtype="float32"):
    backend = find("numpy", None, [dtype])
    return judge_design(judge_of(backend, dtype, np.random.default_rng(0)), "cross_entropy", "algebra", ())


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_the_right_one_computes_every_problem(dtype):
    verdict = judged(dtype)
    rows = whole_design("cross_entropy", dtype == "float16", dtype == "float32", 0)[1]
    assert verdict.computed == len(rows) and not verdict.refused
    assert {row["labels"] for row in rows} == set(axes_of_cross_entropy()["labels"])


def counted(labels):
    return max(1, (np.asarray(labels) != IGNORED).sum())


FAULTS = {
    "smoothing is left out": lambda loss, x, y, s: loss(x, y, 0.0),
    "smoothing is a little less": lambda loss, x, y, s: loss(x, y, s * 0.99),
    "labels that do not count are counted": lambda loss, x, y, s: loss(x, y, s) * counted(y) / max(1, y.size),
    "it is a sum": lambda loss, x, y, s: loss(x, y, s) * counted(y),
    "an unknown label is the first class": lambda loss, x, y, s: loss(x, np.where((y < x.shape[-1]) | (y == IGNORED), y, 0), s),
    "labels below 0 count from the end": lambda loss, x, y, s: loss(x, np.where(y == -1, x.shape[-1] - 1, y), s),
    "NaN that does not count is seen": lambda loss, x, y, s: loss(x, y, s) + 0 * np.sum(np.where(np.isnan(x), x, 0)),
    "infinity is a large number": lambda loss, x, y, s: loss(np.maximum(x, -1e4), y, s),
    "rows beyond 20,000 are left out": lambda loss, x, y, s: loss(x[:20_000], y[:20_000], s) if y.ndim else loss(x, y, s),
    "it is computed in half precision": lambda loss, x, y, s: loss(x.astype(np.float16), y, s).astype(x.dtype),
    "logits are not shifted": lambda loss, x, y, s: (
        loss(x, y, s) if np.exp(x).max(initial=0) < np.inf else loss(x * np.inf, y, s)
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning", "ignore:invalid:RuntimeWarning")
def test_a_wrong_loss_is_found(monkeypatch, fault):
    right = losses.cross_entropy

    def wrong(xp, x, y, *, ignore, label_smoothing):
        def loss(x, y, s):
            return right(xp, x, y, ignore=ignore, label_smoothing=s)

        return np.asarray(FAULTS[fault](loss, x, y, label_smoothing), dtype=x.dtype)

    monkeypatch.setattr(losses, "cross_entropy", wrong)
    with pytest.raises(AssertionError, match=r"^cross_entropy\[\] is "):
        judged()


WRONG_GRADIENTS = {
    "it is that of the sum": lambda xp, d, d_out, y: d * counted(y),
    "d_out is left out": lambda xp, d, d_out, y: d / np.where(d_out == 0, 1, d_out),
    "the last class has none": lambda xp, d, d_out, y: np.where(np.arange(d.shape[-1]) < max(1, d.shape[-1] - 1), d, 0),
    "it is rounded to half precision": lambda xp, d, d_out, y: d.astype(np.float16),
}


@pytest.mark.parametrize("fault", WRONG_GRADIENTS)
def test_a_wrong_gradient_is_found(monkeypatch, fault):
    right = losses.cross_entropy_vjp

    def wrong(xp, x, y, d_out, **options):
        return WRONG_GRADIENTS[fault](xp, right(xp, x, y, d_out, **options), d_out, y).astype(x.dtype)

    monkeypatch.setattr(losses, "cross_entropy_vjp", wrong)
    with pytest.raises(AssertionError, match=r"^cross_entropy d_logits\["):
        judged()
