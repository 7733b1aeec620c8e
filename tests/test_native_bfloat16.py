"""The compiled kernel in bfloat16, whose numbers lie in pairs where the processor multiplies pairs."""

import numpy as np
import pytest
import torch

import mha_core as mha
from mha_core.conformance.oracle.tolerance import assert_within, exact_attention
from native import chosen, needs_native

pytestmark = [needs_native, pytest.mark.usefixtures("native")]


def rounded(x):
    """Return the numbers as a tensor in bfloat16, and in float64."""
    x = torch.from_numpy(x).to(torch.bfloat16)
    return x, x.double().numpy()


def assert_right(query, key, value, options=None, **exact):
    (query, q), (key, k), (value, v) = map(rounded, (query, key, value))
    assert chosen(query, key, value, **(options or {})).startswith("attention: native (")
    got = mha.attention_state(query, key, value, **(options or {}))
    expected = exact_attention(q, k, v, dtype="bfloat16", rounds_weights=True, **exact)
    assert_within("out", got.out.double().numpy(), expected.out, expected.out_bound)
    assert_within("lse", got.lse.double().numpy(), expected.lse, expected.lse_bound)


@pytest.mark.parametrize("keys", [1, 2, 7, 16, 129, 131])
@pytest.mark.parametrize(("width", "value_width"), [(1, 1), (2, 3), (31, 33), (64, 64)])
def test_odd_numbers_of_keys_and_features_have_no_partner(rng, keys, width, value_width):
    query, key = rng.normal(size=(2, 50, width)), rng.normal(size=(2, keys, width))
    assert_right(query, key, rng.normal(size=(2, keys, value_width)))


@pytest.mark.parametrize("step", [1, 2, 3])
def test_rows_may_lie_anywhere(rng, step):
    """A row may begin at an odd number, and its numbers may lie apart."""
    whole = torch.from_numpy(rng.normal(size=(3, 2, 60, 40 * step + 1))).to(torch.bfloat16)
    query, key, value = whole[..., 1::step]
    dense = mha.scaled_dot_product_attention(query.contiguous(), key.contiguous(), value.contiguous())
    assert torch.equal(mha.scaled_dot_product_attention(query, key, value), dense)


def test_the_maximum_may_move_within_a_block_of_keys(rng):
    """Scores rise by far more than its step: pairs of weights that are known are scaled."""
    key = np.linspace(0, 20, 120)[:, None] * np.ones(8) + rng.normal(size=(120, 8)) / 8
    assert_right(np.ones((1, 48, 8)) * 2, key[None], rng.normal(size=(1, 120, 8)) + 3)


def test_a_weight_is_rounded_once_though_the_maximum_moves(rng):
    """In base 2 the scores are 0, then 31 for one key, where the maximum stays, then 32 for another, to which it moves."""
    key, value = np.zeros((1, 24, 2)), np.zeros((1, 24, 64))
    value[:, 8] = rng.uniform(0.77, 0.8, size=64)
    for _ in range(100):
        # numbers just above a power of two are rounded worst; the second feature is what bfloat16 drops from the first
        for at, score in ((8, rng.uniform(31.0, 31.06)), (16, rng.uniform(32.01, 32.1))):
            coarse = round(8 * score * np.log(2)) / 8
            key[:, at] = coarse, score * np.log(2) - coarse
        assert_right(np.ones((1, 16, 2)), key, value, {"scale": 1.0}, scale=1.0)


def test_hidden_keys_do_not_spoil_their_partners(rng):
    """The second key of a pair may be hidden, and hold anything."""
    query, key, value = (rng.normal(size=(1, 40, 16)) for _ in range(3))
    key[:, 33:], value[:, 33:] = np.nan, np.inf
    options = {"mask": mha.key_lengths(33)}
    q, k, v = (torch.from_numpy(x).to(torch.bfloat16) for x in (query, key, value))
    got = mha.scaled_dot_product_attention(q, k, v, **options)
    assert torch.equal(got, mha.scaled_dot_product_attention(q, k[:, :33], v[:, :33]))
