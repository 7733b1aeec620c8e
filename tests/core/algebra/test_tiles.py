"""Tiles of a band are integers: what they say of every range of queries and keys is what a boolean matrix says."""

import numpy as np
import pytest
from native import needs_native
from properties import given, settings, st

import mha_core as mha
from mha_core.algebra.structure import structure_of
from mha_core.algebra.tiles import Limits, heads_together, pieces

LENGTH, KEYS = 24, 20
many = settings(max_examples=600)  # few draws have queries that all see a key beside keys that some of them see


@st.composite
def bands(draw):
    """Return limits that do not cross."""
    low, high = (draw(st.none() | st.integers(-16, 24)) for _ in range(2))
    return Limits(*sorted((low, high))) if low is not None and high is not None else Limits(low, high)


@st.composite
def ranges(draw, length, least=0):
    start = draw(st.integers(0, length - least))
    return range(start, draw(st.integers(start + least, length)))


def seen(band):
    """Return the matrix that is True where the band lets a query see a key."""
    distance = np.arange(KEYS) - np.arange(LENGTH)[:, None]
    low, high = -99 if band.low is None else band.low, 99 if band.high is None else band.high
    return (distance >= low) & (distance <= high)


def members(index, condition):
    """Return the members of a range at which a condition is True."""
    return [i for i in index if condition[i]]


@many
@given(bands(), ranges(LENGTH, least=1), ranges(KEYS))
def test_keys_of_queries(band, rows, keys):
    block = seen(band)[rows.start : rows.stop]
    assert list(band.keys_of(rows, keys)) == members(keys, block.any(axis=0))
    assert list(band.keys_of(rows, keys, every=True)) == members(keys, block.all(axis=0))
    assert len(band.keys_of(rows, range(KEYS))) <= band.most_keys(len(rows), KEYS)
    reached = band.keys_of(rows, keys)
    assert keys.start <= reached.start <= reached.stop <= keys.stop  # also where it is empty


@many
@given(bands(), ranges(KEYS, least=1), ranges(LENGTH))
def test_queries_of_keys(band, cols, rows):
    block = seen(band)[:, cols.start : cols.stop]
    assert list(band.rows_of(cols, rows)) == members(rows, block.any(axis=1))
    assert list(band.rows_of(cols, rows, every=True)) == members(rows, block.all(axis=1))


@many
@given(bands(), ranges(LENGTH, least=1), ranges(KEYS), st.integers(1, KEYS), st.integers(1, KEYS))
def test_each_pair_in_the_band_is_in_one_tile(band, rows, keys, size, edge):
    times, visible = np.zeros((LENGTH, KEYS), dtype=int), seen(band)
    for tile in band.tiles(rows, keys, size, edge):
        place = slice(tile.rows.start, tile.rows.stop), slice(tile.cols.start, tile.cols.stop)
        times[place] += 1
        assert 0 < len(tile.cols) <= (edge if tile.cut else size)
        assert visible[place].any(axis=1).all() if tile.cut else visible[place].all()
    inside = np.zeros((LENGTH, KEYS), dtype=bool)
    inside[rows.start : rows.stop, keys.start : keys.stop] = True
    assert (times <= inside).all() and (times[visible & inside] == 1).all()


@given(ranges(40), st.integers(1, 45), st.booleans())
def test_pieces_are_few_and_cover_the_range(index, size, even):
    cut = pieces(index, size, even=even)
    assert [i for piece in cut for i in piece] == list(index)
    assert len(cut) == -(-len(index) // size)
    assert all(0 < len(piece) <= size for piece in cut)
    if even and cut:
        assert max(map(len, cut)) == -(-len(index) // len(cut))


@given(st.integers(1, 6), st.integers(1, 6), st.integers(1, 40), st.booleans())
def test_each_head_is_computed_once(batch, heads, size, even):
    times = np.zeros((batch, heads), dtype=int)
    for share in heads_together(batch, heads, size, even=even):
        times[share] += 1
        assert times[share].size <= size
    assert (times == 1).all()


@st.composite
def problems(draw):
    """Return a mask, the numbers of queries and keys, and a query_offset."""
    left, right = (draw(st.none() | st.integers(0, 80)) for _ in range(2))
    mask = mha.window(left, right) & mha.prefix(draw(st.integers(1, 60)))
    return mask, draw(st.integers(1, 70)), draw(st.integers(1, 50)), draw(st.integers(-70, 70))


def structure(mask, queries, keys, offset):
    return structure_of(np, mask, num_queries=queries, num_keys=keys, offset=offset)


@given(problems(), st.data())
def test_a_structure_counts_the_caller_s_keys(problem, data):
    mask, queries, keys, offset = problem
    rows = data.draw(ranges(queries, least=1))
    x = np.ones((queries, 1)), np.ones((keys, 1))
    weights = mha.attention_weights(*x, mask=mask, query_offset=offset)[rows.start : rows.stop]
    assert list(structure(*problem).keys_of(rows)) == np.flatnonzero(weights.any(axis=0)).tolist()


@needs_native
@pytest.mark.usefixtures("native")
@settings(max_examples=60)
@given(problems().filter(lambda problem: structure(*problem).keys), st.data())
def test_the_compiled_kernel_reaches_the_same_pairs(problem, data):
    """With equal scores and a unit vector for each key as its value, out is 0 for keys that a query does not see."""
    mask, queries, keys, offset = problem
    rows = data.draw(ranges(queries, least=1))
    query, key, value = np.zeros((2, queries, 4)), np.zeros((1, keys, 4)), np.eye(keys)[None]
    with mha.use_kernel("attention", "native"), mha.use_kernel("attention_vjp", "native"):
        out, pullback = mha.vjp(
            lambda value: mha.scaled_dot_product_attention(query, key, value, mask=mask, query_offset=offset), value
        )
        d_out = np.zeros_like(out)
        d_out[:, rows.start : rows.stop] = 1
        (d_value,) = pullback(d_out)
    reached = list(structure(*problem).keys_of(rows))
    assert np.flatnonzero(out[:, rows.start : rows.stop].any(axis=(0, 1))).tolist() == reached
    assert np.flatnonzero(d_value.any(axis=(0, 2))).tolist() == reached
