"""Cross-entropies of a covering design: the algebra's and other right ones pass, and wrong ones are found."""

import math

import numpy as np
import pytest

from mha_conformance.cases.losses import axes_of_cross_entropy, cross_entropy_problem
from mha_conformance.find import find
from mha_conformance.judge.designed import judge_design, whole_design
from mha_conformance.judge.held import judge_of
from mha_core.algebra import losses

pytestmark = pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning", "ignore:invalid:RuntimeWarning")


def judge(dtype="float32"):
    return judge_of(find("numpy", None, [dtype]), dtype, np.random.default_rng(0))


def judged(dtype="float32"):
    return judge_design(judge(dtype), "cross_entropy", "algebra", ())


def row(**changes):
    """Return the axes of a plain problem, with changes."""
    plain = {"rows": (3,), "width": 4, "logits": "finite", "labels": "classes", "ignore": -1, "integers": "int64"}
    plain |= {"layout": "contiguous", "spread": 1.0, "label_smoothing": 0.0, "towards": 1.0, "pulls": "once"}
    return plain | changes


def rows(dtype="float32"):
    return whole_design("cross_entropy", dtype == "float16", dtype == "float32", 0)[1]


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
def test_the_right_one_computes_every_problem(dtype):
    verdict = judged(dtype)
    assert verdict.computed >= len(rows(dtype)) and not verdict.refused


def test_every_kind_of_logits_and_labels_occurs(rng):
    axes = axes_of_cross_entropy()
    for name in ("logits", "labels", "ignore", "integers"):
        assert {each[name] for each in rows()} == set(axes[name])
    for kind in ("some are -inf", "some rows are NaN", "ignored rows are NaN"):
        for _ in range(20):
            problem = cross_entropy_problem(row(logits=kind, labels="some are ignored"), rng)
            x, ignored = problem.floats["x"], problem.others["labels"] == -1
            assert ignored.any()
            if kind == "ignored rows are NaN":
                assert np.isnan(x[ignored]).all() and not np.isnan(x[~ignored]).any()
            if kind == "some rows are NaN":
                assert np.isnan(x).any()


# other right ones


def in_sequence(terms):
    """The sum of rows, one term after another."""
    return np.add.accumulate(terms, axis=-1, dtype=terms.dtype)[..., -1:] if terms.shape[-1] else terms.sum(-1, keepdims=True)


def flushed(x):
    return np.where(np.abs(x) < np.finfo(np.float32).tiny, np.float32(0), x)


def by_two(bits):
    """exp as a power of two, with as many bits of log2(e)."""
    factor = np.float32(round(math.log2(math.e) * 2 ** (bits - 1)) / 2 ** (bits - 1))
    return lambda t: np.exp2(t * factor)


def pairwise(terms):
    return terms.sum(axis=-1, keepdims=True)


TWINS = {
    "sums in sequence": (np.exp, in_sequence, lambda x: x),
    "powers of two": (by_two(24), pairwise, lambda x: x),
    "flushes": (np.exp, pairwise, flushed),
    "all three": (by_two(24), in_sequence, flushed),
}


def twin(monkeypatch, exp, total, flush):
    """Make the cross-entropy one in float32 that is written with these functions."""

    def of_rows(logits, labels, ignore):
        x, y = logits.reshape(-1, logits.shape[-1]).astype(np.float32), labels.reshape(-1, 1).astype(np.int64)
        counted = np.ones(y.shape, dtype=bool) if ignore is None else y != ignore
        known, x = (y >= 0) & (y < x.shape[1]), np.where(counted, x, np.float32(0))
        largest = x.max(axis=-1, keepdims=True)
        t = x - np.where(largest == -np.inf, np.float32(0), largest)
        w = flush(exp(t))
        sums = total(w)
        at = np.arange(x.shape[1]) == np.where(known, y, 0)
        included = t != -np.inf
        num_included = np.maximum(included.sum(-1, keepdims=True), 1).astype(np.float32)
        scale = np.where(counted, np.where(known, np.float32(1) / np.float32(max(1, counted.sum())), np.float32(np.nan)), 0)
        return t, w, np.where(sums == 0, np.float32(1), sums), at, included, num_included, scale.astype(np.float32)

    def loss(xp, x, y, *, ignore, label_smoothing):
        t, _, sums, at, included, num_included, scale = of_rows(x, y, ignore)
        s, rest, log = np.float32(label_smoothing), np.float32(1 - label_smoothing), np.log(sums)
        each = log - np.where(at, t, np.float32(0)).sum(-1, keepdims=True)
        if s:
            each = rest * each + s * (log - total(np.where(included, t, np.float32(0))) / num_included)
        each = np.where(scale == 0, np.float32(0), each * np.where(np.isnan(scale), scale, np.float32(1)))
        whole = total(each.T)[0] / np.float32(max(1, (scale != 0).sum()))
        return np.asarray(flush(whole).reshape(()), dtype=x.dtype)

    def gradient(xp, x, y, d_out, *, ignore, label_smoothing):
        t, _, sums, at, included, num_included, scale = of_rows(x, y, ignore)
        s, rest, p = np.float32(label_smoothing), np.float32(1 - label_smoothing), flush(exp(t - np.log(sums)))
        d = np.where(at, p - rest, p) - np.where(included, s / num_included, np.float32(0))
        d = np.where(scale == 0, np.float32(0), d * (scale * np.float32(d_out)))
        return flush(d).reshape(x.shape).astype(x.dtype)

    monkeypatch.setattr(losses, "cross_entropy", loss)
    monkeypatch.setattr(losses, "cross_entropy_vjp", gradient)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("name", TWINS)
def test_another_right_one_passes(monkeypatch, name, dtype):
    twin(monkeypatch, *TWINS[name])
    assert judged(dtype).computed >= len(rows(dtype))


@pytest.mark.parametrize("name", TWINS)
def test_another_right_one_passes_where_probabilities_are_tiny(monkeypatch, rng, name):
    """Some are subnormal, and the gradient of the loss multiplies what they lose."""
    twin(monkeypatch, *TWINS[name])
    for _ in range(20):
        judge().judge_once(cross_entropy_problem(row(rows=(1,), width=4000, spread=30.0, towards=8.0), rng))


WRONG_TWINS = {
    "log2(e) has 20 bits": (by_two(20), pairwise, lambda x: x),
    "numbers below 1e-30 are flushed": (np.exp, pairwise, lambda x: np.where(np.abs(x) < 1e-30, np.float32(0), x)),
    "terms are summed in half precision": (np.exp, lambda x: pairwise(x.astype(np.float16)).astype(x.dtype), lambda x: x),
}


@pytest.mark.parametrize("name", WRONG_TWINS)
def test_one_a_little_beyond_its_bound_is_found(monkeypatch, name):
    twin(monkeypatch, *WRONG_TWINS[name])
    with pytest.raises(AssertionError, match=r"^cross_entropy"):
        judged()


# wrong ones


def counted(y, ignore):
    return max(1, (np.asarray(y) != ignore).sum())


FAULTS = {
    "smoothing is left out": lambda loss, x, y, i, s: loss(x, y, i, 0.0),
    "smoothing is a little less": lambda loss, x, y, i, s: loss(x, y, i, s * 0.99),
    "labels that do not count are counted": lambda loss, x, y, i, s: loss(x, y, i, s) * counted(y, i) / max(1, y.size),
    "it is a sum": lambda loss, x, y, i, s: loss(x, y, i, s) * (y.size if i is None else counted(y, i)),
    "the label that does not count is -100": lambda loss, x, y, i, s: loss(x, y, -100, s),
    "an unknown label is a class": lambda loss, x, y, i, s: loss(x, np.where((y < x.shape[-1]) | (y == i), y, 0), i, s),
    "labels below 0 count from the end": lambda loss, x, y, i, s: loss(
        x, np.where((y < 0) & (y != (0 if i is None else i)), x.shape[-1] + y.astype(int), y), i, s
    ),
    "NaN that does not count is seen": lambda loss, x, y, i, s: loss(x, y, i, s) + 0 * np.sum(np.where(np.isnan(x), x, 0)),
    "NaN is a small number": lambda loss, x, y, i, s: loss(np.nan_to_num(x, posinf=np.inf, neginf=-np.inf), y, i, s),
    "infinity is a large number": lambda loss, x, y, i, s: loss(np.maximum(x, -1e5), y, i, s),
    "rows beyond 20,000 are left out": lambda loss, x, y, i, s: (
        loss(x[:20_000], y[:20_000], i, s) if y.ndim else loss(x, y, i, s)
    ),
    "it is computed in half precision": lambda loss, x, y, i, s: loss(x.astype(np.float16), y, i, s),
    "large logits are clipped": lambda loss, x, y, i, s: loss(np.where(np.isinf(x), x, np.clip(x, -500, 500)), y, i, s),
    "a row without a class is NaN": lambda loss, x, y, i, s: (
        loss(x, y, i, s) + (np.nan if x.size and (x == -np.inf).all(-1).any() else 0)
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_wrong_loss_is_found(monkeypatch, fault):
    right = losses.cross_entropy

    def wrong(xp, x, y, *, ignore, label_smoothing):
        def loss(x, y, ignore, smoothing):
            return right(xp, x, y, ignore=ignore, label_smoothing=smoothing)

        return np.asarray(FAULTS[fault](loss, x, y, ignore, label_smoothing), dtype=x.dtype)

    monkeypatch.setattr(losses, "cross_entropy", wrong)
    with pytest.raises(AssertionError, match=r"^cross_entropy\[\] is "):
        judged()


WRONG_GRADIENTS = {
    "it is that of the sum": lambda d, d_out, y: d * max(1, y.size),
    "d_out is left out": lambda d, d_out, y: d / np.where(d_out == 0, 1, d_out),
    "the last class has none": lambda d, d_out, y: np.where(np.arange(d.shape[-1]) < max(1, d.shape[-1] - 1), d, 0),
    "it is rounded to half precision": lambda d, d_out, y: d.astype(np.float16),
}


@pytest.mark.parametrize("fault", WRONG_GRADIENTS)
def test_a_wrong_gradient_is_found(monkeypatch, fault):
    right = losses.cross_entropy_vjp

    def wrong(xp, x, y, d_out, **options):
        return WRONG_GRADIENTS[fault](right(xp, x, y, d_out, **options), d_out, y).astype(x.dtype)

    monkeypatch.setattr(losses, "cross_entropy_vjp", wrong)
    with pytest.raises(AssertionError, match=r"^cross_entropy d_logits\["):
        judged()
