"""Attention weights of a covering design: those of a right kernel pass, and those of wrong ones are found."""

import numpy as np
import pytest
from sample_kernels import registered

from mha_conformance.cases import weights
from mha_conformance.find import find
from mha_conformance.judge.designed import judge_design
from mha_conformance.judge.held import judge_of
from mha_core.plugin import Kernel, hookimpl
from mha_core.shared import FEATURES

OP = "attention_weights"
FAULTS = (
    *("lse is of the chosen columns", "rows beyond 256 are left out", "the last column is the first", "columns occur once"),
    *("rows are in order", "softcap after the bias", "the sink counts in a given lse only", "three heads in turn"),
    *("the last of 1000 keys counts as 0", "no dropout"),
)
chosen = {"fault": None}


def kernel(p, lse, rows, cols, num_keys):
    """Return the weights in float64, all of them before some are chosen, with a fault."""
    fault, keys = chosen["fault"], p.structure.keys
    q, k = p.query.astype(float), np.zeros((*p.key.shape[:-2], num_keys, p.key.shape[-1]))
    k[..., keys.start : keys.stop, :] = p.key
    grid, heads = p.grid(range(q.shape[-2]), range(num_keys)), np.arange(q.shape[-3])
    in_turn = fault == "three heads in turn" and p.num_groups == 3
    k = k[..., heads % k.shape[-3] if in_turn else heads // p.num_groups, :, :]
    if fault == "the last of 1000 keys counts as 0" and num_keys > 1000:
        k[..., -1, :] = 0
    s = p.scale * (q @ np.swapaxes(k, -1, -2))
    steps = [lambda s: s if p.softcap is None else p.softcap * np.tanh(s / p.softcap)]
    steps.append(lambda s: s if p.bias is None else p.bias.added(np.broadcast_to(s, grid.shape), grid))
    for step in reversed(steps) if fault == "softcap after the bias" else steps:
        s = step(s)
    s = s if p.mask is None else np.where(p.mask.block(grid), s, -np.inf)
    if lse is None or fault == "lse is of the chosen columns":
        of = s[..., list(cols)] if fault == "lse is of the chosen columns" else s
        lse = np.logaddexp.reduce(of, axis=-1, initial=-np.inf)
        if p.sink is not None and fault != "the sink counts in a given lse only":
            lse = np.logaddexp(lse, p.sink.astype(float)[:, None])
    lse = lse.astype(float)[..., None]
    with np.errstate(over="ignore"):  # of wrong scores, with the right lse
        every = np.where(lse == -np.inf, 0, np.exp(s - np.where(lse == -np.inf, 0, lse)))
    if p.dropout is not None and fault != "no dropout":
        every = np.where(p.dropout.kept(grid, p.rows_shape), every / (1 - p.dropout.rate), 0)
    if fault == "rows beyond 256 are left out":
        every[..., 256:, :] = 0
    if fault == "the last column is the first" and isinstance(cols, tuple):
        cols = [col % max(num_keys - 1, 1) for col in cols]
    cols, rows = (
        (sorted({*cols}) if fault == "columns occur once" else cols),
        sorted(rows) if "in order" in str(fault) else rows,
    )
    return every[..., list(rows), :][..., list(cols)].astype(p.query.dtype)


class Plugin:
    name = "weights"

    @hookimpl
    def mha_kernels(self):
        return [Kernel("numpy", OP, "under test", 1, f"{__name__}:kernel", opt_in=True, handles=FEATURES[OP])]


def judged(fault, **settings):
    chosen["fault"] = fault
    judge = judge_of(find("numpy", None, ["float32"], **settings), "float32", np.random.default_rng(0))
    with registered(Plugin()):
        return judge_design(judge, OP, "under test", FEATURES[OP])


def test_a_right_kernel_computes_every_problem():
    verdict = judged(None, quick=True)
    assert verdict.computed > 200 and not verdict.refused


@pytest.mark.parametrize("fault", FAULTS)
def test_a_wrong_kernel_is_found(fault):
    with pytest.raises(AssertionError, match=r"within|has shape"):
        judged(fault)


@pytest.mark.parametrize("length", [0, 1, 2, 7, 300])
def test_a_part_is_within_the_length_and_indices_count_from_both_ends_and_repeat(length, rng):
    every = np.arange(length)
    for _ in range(50):
        ascending = every[weights.part_of("slice", length, rng)]
        assert {*np.diff(ascending)} <= {1, 2, 3} or {*np.diff(ascending)} <= {-1, -2}
        assert len(every[weights.part_of("one", length, rng)]) == min(1, length) and weights.part_of("none", length, rng) == []
        indices = weights.part_of("indices", length, rng)
        assert not length or (min(indices) < 0 <= max(indices) and len({*every[indices]}) < len(indices))
