"""Blocks that a lazy library computes one after another, by the function ``depends`` of its namespace."""

from dataclasses import replace

import numpy as np
import pytest

import mha_core as mha
from mha_core.algebra import attention, attention_vjp, blocks
from mha_core.ops.attend import prepare

CASES = {
    "blocks": ((2, 300, 4), {"mask": mha.causal()}),
    "slices of the batch": ((6, 2, 40, 4), {}),
    "packed sequences": ((2, 300, 4), {"mask": mha.packed([100, 60, 80, 60])}),
}
"""Shapes of queries, keys and values, and options."""


class InTurn:
    """A namespace with ``depends``, which notes how many blocks were computed when it returned an array."""

    def __init__(self, xp):
        self.xp, self.blocks, self.returned = xp, 0, []

    def __getattr__(self, name):
        return getattr(self.xp, name)

    def depends(self, x, y):
        assert y.shape
        self.returned.append((x.copy(), self.blocks))
        return self.returned[-1][0]

    def watched(self, block):
        """Return the function of a block, which checks that its query was returned after the block before."""

        def call(p, *arguments, **keywords):
            made = [count for x, count in self.returned if x is p.query]
            assert made == ([self.blocks] if self.blocks else [])
            self.blocks += 1
            return block(p, *arguments, **keywords)

        return call


@pytest.mark.parametrize("case", CASES)
def test_each_block_is_computed_after_the_one_before(case, rng, monkeypatch):
    monkeypatch.setattr(blocks, "_DENSE", 1 << 10)
    monkeypatch.setattr(blocks, "_BLOCK", 1 << 13)
    shape, options = CASES[case]
    *arrays, d_out = (rng.normal(size=shape) for _ in range(4))
    _, plain = prepare(*arrays, **options)
    expected = attention.attention_state(plain)
    space = InTurn(plain.xp)
    monkeypatch.setattr(attention, "block_state", space.watched(attention.block_state))
    state = attention.attention_state(replace(plain, xp=space))
    assert space.blocks > 2
    np.testing.assert_allclose(state.out, expected.out, rtol=0, atol=1e-14)

    space = InTurn(plain.xp)
    wanted = attention_vjp.attention_vjp(plain, state, d_out, None, {"query", "key"})
    monkeypatch.setattr(attention_vjp, "block_gradients", space.watched(attention_vjp.block_gradients))
    found = attention_vjp.attention_vjp(replace(plain, xp=space), state, d_out, None, {"query", "key"})
    assert space.blocks > 2
    for name in ("query", "key"):
        np.testing.assert_allclose(getattr(found, name), getattr(wanted, name), rtol=0, atol=1e-13)


def test_a_namespace_without_it_and_the_first_block_keep_the_problem(rng):
    _, problem = prepare(*(rng.normal(size=(2, 3, 4)) for _ in range(3)))
    assert problem.after(problem.value) is problem
    lazy = replace(problem, xp=InTurn(problem.xp))
    assert lazy.after() is lazy and lazy.after(None) is lazy
