"""Parts of a problem: the states of all parts, computed with their own masks and biases, merge to the state of the problem."""

import numpy as np
import pytest
from sequence_problems import H, L, S, biases, masks, rng

import mha_core as mha
from mha_core.algebra.biases import as_bias
from mha_core.algebra.masks import Relation, as_mask
from mha_core.algebra.parts import Part
from mha_core.dispatch.backend import load

XP = load("numpy").xp


LAYOUTS = {
    "contiguous": [range(0, 9), range(9, 10), range(10, 23)],
    "striped": [range(i, 23, 3) for i in range(3)],
    "empty": [range(0, 0), range(0, 23)],
}


def keys_of(queries):
    return [range(x.start, x.stop if x.stop < L else S, x.step) for x in queries]


def by_parts(q, k, v, rows, cols, *, mask, bias, dropout, offset):
    states = []
    for own in rows:
        parts = []
        for others in cols:
            part = Part(own, others, offset)
            if part.relation(XP, mask) is Relation.NONE:
                continue
            a, b = (slice(x.start, x.stop, x.step) for x in (own, others))
            options = {"mask": part.mask(XP, mask), "bias": part.bias(XP, bias), "weight_dropout": part.dropout(XP, dropout)}
            parts.append(
                mha.attention_state(q[..., a, :], k[..., b, :], v[..., b, :], query_offset=part.query_offset, **options)
            )
        if parts:
            states.append((own, mha.merge_states(*parts)))
    return states


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("mask", masks())
@pytest.mark.parametrize("bias", biases())
def test_parts_merge_to_the_whole(layout, mask, bias):
    r = rng()
    q, k, v = (r.normal(size=(2, h, n, 6)) for h, n in ((H, L), (2, S), (2, S)))
    rows, mask, bias = LAYOUTS[layout], masks()[mask], biases()[bias]
    mask, bias = None if mask is None else as_mask(mask), None if bias is None else as_bias(bias)
    for offset, dropout in (
        (4, None),
        (0, mha.weight_dropout(0.3, seed=2)),
        (-3, mha.weight_dropout(0.3, keep=r.random((L, S)) < 0.7)),
    ):
        exact = mha.attention_state(q, k, v, mask=mask, bias=bias, query_offset=offset, weight_dropout=dropout)
        seen = np.zeros(L, bool)
        for own, state in by_parts(q, k, v, rows, keys_of(rows), mask=mask, bias=bias, dropout=dropout, offset=offset):
            index = list(own)
            seen[index] = True
            np.testing.assert_allclose(state.out, exact.out[..., index, :], rtol=1e-12, atol=1e-12)
            np.testing.assert_allclose(state.lse, exact.lse[..., index], rtol=1e-12, atol=1e-12)
        assert np.all(exact.lse[..., ~seen] == -np.inf)


def test_lengths_may_be_narrow_or_unsigned():
    lengths = np.asarray([200, 250], dtype=np.uint8)
    mask = Part(range(3), range(240, 310), 0).mask(XP, mha.key_lengths(lengths))
    assert mask.n.tolist() == [-40, 10]
    assert Part(range(3), range(300, 310), 0).mask(XP, mha.key_lengths(lengths)).n.tolist() == [-100, -50]
