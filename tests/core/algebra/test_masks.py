"""Masks: the laws of their algebra, their three-valued relation to a block, and their structure."""

import numpy as np
import pytest
from properties import given, st
from refusals import refusals

import mha_core as mha
from mha_conformance.cases.masks import leaf_masks, random_mask
from mha_core.algebra.grid import Grid
from mha_core.algebra.masks import Relation
from mha_core.algebra.structure import structure_of

seeds = st.integers(0, 2**32 - 1)
make = np.asarray


def block(mask, rows, cols, offset=0):
    return mask.block(Grid(np, None, rows, cols, offset))


def relation(mask, rows, cols, offset=0):
    return mask.relation(Grid(np, None, rows, cols, offset))


@given(seeds)
def test_a_block_and_its_relation_are_those_of_the_whole_mask(seed):
    rng = np.random.default_rng(seed)
    queries, keys, offset = int(rng.integers(1, 9)), int(rng.integers(1, 9)), int(rng.integers(-3, 4))
    mask = random_mask(rng, rng, np.arange(queries)[:, None] + offset, np.arange(keys), (2,), 2)
    allowed = mask.allowed
    rows, cols = (range(int(rng.integers(0, size)), size, int(rng.integers(1, 3))) for size in (queries, keys))
    got = np.broadcast_to(block(mask(make), rows, cols, offset), (2, 2, len(rows), len(cols)))
    expected = np.broadcast_to(allowed, (2, 2, queries, keys))[..., rows.start :: rows.step, cols.start :: cols.step]
    assert (got == expected).all()
    claim = relation(mask(make), rows, cols, offset)
    assert claim is Relation.SOME or (claim is Relation.ALL) == expected.all() == expected.any()


@pytest.mark.parametrize(
    ("mask", "none", "every"),
    [
        (mha.causal(), (range(0, 4), range(4, 8)), (range(4, 8), range(0, 5))),
        (mha.window(2, 1), (range(0, 4), range(5, 8)), (range(3, 4), range(1, 5))),
        (mha.chunks(4), (range(0, 4), range(4, 6)), (range(5, 7), range(4, 8))),
        (mha.prefix(3), (range(0, 2), range(3, 8)), (range(0, 9), range(0, 3))),
        (mha.packed([3, 0, 5]), (range(0, 3), range(3, 8)), (range(4, 7), range(3, 8))),
        (~mha.causal(), (range(4, 8), range(0, 5)), (range(0, 4), range(4, 8))),
        (mha.causal() & mha.prefix(3), (range(0, 2), range(3, 8)), (range(3, 5), range(0, 3))),
        (mha.causal() | mha.prefix(3), (range(0, 4), range(4, 8)), (range(0, 1), range(0, 3))),
    ],
)
def test_relation_finds_blocks_that_attend_nowhere_or_everywhere(mask, none, every):
    assert relation(mask, *none) is Relation.NONE
    assert relation(mask, *every) is Relation.ALL
    assert relation(mask, range(0, 8), range(0, 8)) is Relation.SOME


def test_masks_of_arrays_answer_some_without_reading_them():
    class Untouchable(np.ndarray):
        def read(self, *arguments, **options):
            raise AssertionError("the array was read")

        __bool__ = __int__ = __float__ = __index__ = __iter__ = __getitem__ = item = tolist = all = any = min = max = sum = read

    with pytest.raises(AssertionError, match="the array was read"):
        np.ones((4, 4)).view(Untouchable)[0, 0]
    array = np.ones((4, 4), dtype=bool).view(Untouchable)
    lengths = np.full(1, 9).view(Untouchable)
    for mask in (mha.array_mask(array), mha.key_lengths(lengths), mha.segments(lengths, lengths)):
        assert relation(mask, range(4), range(4)) is Relation.SOME
    assert relation(mha.causal(), range(4), range(4), np.zeros(1, dtype=int).view(Untouchable)) is Relation.SOME


def test_a_boolean_array_is_accepted_on_either_side_of_an_operator():
    array = np.tril(np.ones((3, 3), dtype=bool), 1)
    for mask in (mha.causal() & array, array & mha.causal()):
        assert (block(mask, range(3), range(3)) == np.tril(np.ones((3, 3)))).all()
    for mask in (mha.causal() | array, array | mha.causal()):
        assert (block(mask, range(3), range(3)) == array).all()


def attended(**options):
    return mha.scaled_dot_product_attention(np.eye(2), np.eye(2), np.eye(2), **options)


test_bad_masks_are_refused_with_what_was_expected = refusals(
    {
        TypeError: {
            "window(right) is float; expected an int": lambda: mha.window(0, 1.5),
            "key_lengths(n) is list; expected an int": lambda: mha.key_lengths([1, 2]),
            "mask is list; expected a mask such as causal(), or a boolean array": lambda: mha.array_mask([True]),
            "mask is int": lambda: mha.causal() & 1,
            "mask is the function causal; call it: mha.causal()": lambda: attended(mask=mha.causal),
            "mask is the function window; call it: mha.window(left, right)": lambda: mha.causal() & mha.window,
            "mask is the function prefix; call it: mha.prefix(n)": lambda: mha.chunks | mha.causal() & mha.prefix,
            "mask is the function attended; expected a mask such as causal(), or a b": lambda: attended(mask=attended),
            "combine masks with & | ~": lambda: mha.causal() and mha.prefix(3),
        },
        ValueError: {
            "window(left) is -1; expected an int of at least 0": lambda: mha.window(-1, 0),
            "window(left) is 18446744073709551616; expected an int of at least 0 and at": lambda: mha.window(2**64, 0),
            "expected an int of at least 0 and at most 2**62": lambda: mha.window(0, 2**62 + 1),
            "chunks(size) is 0; expected an int of at least 1": lambda: mha.chunks(0),
            "prefix(n) is 9223372036854775808; expected": lambda: mha.prefix(2**63),
            "prefix(n) is True": lambda: mha.prefix(True),
            "packed(lengths) is -1": lambda: mha.packed([3, -1]),
        },
    }
)


def structure(mask, queries=6, keys=6, offset=0):
    return structure_of(np, mask, num_queries=queries, num_keys=keys, offset=offset)


@pytest.mark.parametrize(
    ("mask", "features"),
    [
        (None, set()),
        (mha.causal(), {"causal"}),
        (mha.window(2, 0), {"window"}),
        (mha.window(2, 3) & mha.causal(), {"window"}),
        (mha.window(9, None), set()),
        (mha.window(None, 9), set()),
        (mha.prefix(4), set()),
        (mha.prefix(4) & mha.causal(), {"causal"}),
        (mha.key_lengths(np.ones(2, dtype=int)), {"key_lengths"}),
        (mha.packed([6]), set()),
        (mha.packed([2, 4]), {"packed"}),
        (mha.packed([2, 4]) & mha.causal(), {"packed", "causal"}),
        (mha.packed([2, 4]) & mha.window(2, 3), {"packed", "window"}),
        (mha.packed([2, 4]) & mha.window(3, 3), {"packed"}),
        (mha.chunks(6), set()),
        (mha.chunks(3), {"mask"}),
        (mha.array_mask(np.ones((6, 6), dtype=bool)), {"array_mask"}),
        (mha.causal() | mha.prefix(2), {"mask"}),
        (~(~mha.causal() | ~mha.prefix(4)), {"causal"}),
        (~~mha.causal(), {"causal"}),
    ],
)
def test_the_structure_names_the_features_of_a_mask(mask, features):
    assert structure(mask).features == features


def test_bands_are_intersected_and_include_the_offset():
    s = structure(mha.window(3, 2) & mha.causal(), queries=2, keys=8, offset=6)
    assert s.keys == range(3, 8)
    assert s.band == (0, 3)  # query 0 is at position 6, which is key 3 of those that remain
    assert structure(mha.causal(), queries=1, keys=8, offset=7).features == set()  # the last query sees every key


def test_keys_that_no_query_can_reach_are_dropped():
    assert structure(mha.prefix(4) & mha.window(None, 1), queries=2).keys == range(0, 3)
    assert structure(mha.causal(), offset=-9).keys == range(0)
    assert structure(mha.window(0, None) & ~mha.prefix(9)).keys == range(0)
    assert structure(mha.window(1, None), queries=2, offset=3).keys == range(2, 6)


def test_structure_and_mask_agree(rng):
    """The structure, evaluated for every pair, is the mask."""
    for _ in range(300):
        queries, keys, offset = (int(n) for n in (rng.integers(1, 8), rng.integers(1, 8), rng.integers(-3, 4)))
        mask = random_mask(rng, rng, np.arange(queries)[:, None] + offset, np.arange(keys), (2,), 2)
        s = structure(mask(make), queries, keys, offset)
        q, k = np.arange(queries)[:, None], np.arange(len(s.keys))[None, :]
        low, high = s.band
        whole = np.ones((2, 2, queries, len(s.keys)), dtype=bool)
        whole &= True if low is None else k - q >= low
        whole &= True if high is None else k - q <= high
        whole &= True if s.key_lengths is None else k < s.key_lengths[:, None, None, None]
        whole &= True if s.array is None else s.array
        if s.packed is not None:
            ids = np.repeat(np.arange(len(s.packed)), s.packed)
            whole &= ids[:, None] == ids[None, :]
        whole &= True if s.rest is None else block(s.rest, range(queries), s.keys, offset)
        expected = np.broadcast_to(mask.allowed, (2, 2, queries, keys))
        assert (whole == expected[..., s.keys.start : s.keys.stop]).all()
        outside = np.delete(expected, np.arange(s.keys.start, s.keys.stop), axis=-1)
        assert not outside.any()


def test_random_masks_include_every_kind(rng):
    kinds = {type(leaf(make)).__name__ for leaf in leaf_masks(rng, np.arange(5)[:, None], np.arange(5), (2,), 2)} - {"ndarray"}
    assert kinds == {"Band", "KeyLengths", "Chunks", "Segments", "ArrayMask", "Packed"}
