"""Masks that are functions of a pair's indices, and maps of their tiles."""

import numpy as np
import pytest

import mha_core as mha
from mha_core.algebra.functions import BLOCK, codes_of, name_of
from mha_core.algebra.grid import Grid, Relation
from mha_core.algebra.parts import Part
from mha_core.dispatch.backend import load

XP = load("numpy").xp


def grid(rows, cols, offset=0, leading=(2, 3)):
    return Grid(XP, None, rows, cols, offset, np.float64, leading)


def test_a_function_receives_the_indices_of_the_whole_problem():
    received = []

    def function(batch, head, query, key):
        received.append((batch, head, query, key))
        return (batch + head + query + key) % 2 == 0

    block = mha.mask_function(function).block(grid(range(4, 6), range(1, 4), np.asarray([10, 20])))
    ((batch, head, query, key),) = received
    assert batch[:, 0, 0, 0].tolist() == [0, 1]
    assert head[:, 0, 0].tolist() == [0, 1, 2]
    assert query[:, 0, :, 0].tolist() == [[14, 15], [24, 25]]
    assert key.tolist() == [[1, 2, 3]]
    assert block.shape == (2, 3, 2, 3)


def test_batch_elements_are_numbered_in_the_order_of_memory():
    mask = mha.mask_function(lambda batch, head, query, key: batch == 4)
    block = mask.block(grid(range(1), range(1), leading=(2, 3, 1)))
    assert block[..., 0, 0, 0].tolist() == [[False, False, False], [False, True, False]]


def test_a_part_has_the_indices_of_the_whole_problem():
    mask = mha.mask_function(lambda batch, head, query, key: (7 * head + 3 * query + key) % 5 < 2)
    part = Part(range(3, 9, 2), range(2, 12, 3), 4, range(1, 3), 3)
    whole = mask.block(grid(tuple(part.rows), tuple(part.cols), 4))
    assert (mask.part(XP, part).block(grid(range(3), range(4), leading=(2, 2))) == whole[..., 1:3, :, :]).all()


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (True, "mask_function(<lambda>) returned bool; expected an array of booleans, made of what it received"),
        (np.ones((2, 3)), "mask_function(<lambda>) returned an array of dtype float64; expected booleans"),
    ],
)
def test_results_of_another_kind_are_refused(result, message):
    x = np.ones((1, 2, 4))
    with pytest.raises(TypeError) as caught:
        mha.scaled_dot_product_attention(x, x, x, mask=mha.mask_function(lambda *indices: result))
    assert str(caught.value) == message


def test_a_result_of_another_shape_is_refused():
    x = np.ones((1, 2, 4))

    def wide(batch, head, query, key):
        return np.ones((5, 2), dtype=bool)

    with pytest.raises(ValueError, match=r"the result of mask_function\(wide\) has shape \(5, 2\); expected a shape that"):
        mha.scaled_dot_product_attention(x, x, x, mask=mha.mask_function(wide))


def test_the_relation_that_an_author_gives_is_used():
    answers = {True: Relation.ALL, False: Relation.NONE, None: Relation.SOME}
    for answer, relation in answers.items():
        mask = mha.mask_function(lambda *_: None, relation=lambda queries, keys, answer=answer: answer)
        assert mask.relation(grid(range(2), range(2))) is relation
    bounds = []
    mask = mha.mask_function(lambda *_: None, relation=lambda *args: bounds.append(args))
    mask.relation(grid(range(3, 9), range(2, 5), 10))
    assert bounds == [((13, 18), (2, 4))]
    wrong = mha.mask_function(lambda *_: None, relation=lambda queries, keys: "some")
    with pytest.raises(TypeError, match=r"relation=...\) is 'some'; expected True, False or None"):
        wrong.relation(grid(range(2), range(2)))


def test_a_function_is_not_called_where_its_relation_is_known():
    def function(batch, head, query, key):
        blocks.append((query.min(), key.max()))
        return query >= key

    def relation(queries, keys):
        return True if queries[0] >= keys[1] else False if queries[1] < keys[0] else None

    blocks, x = [], np.random.default_rng(0).standard_normal((2, 700, 4))
    mask = mha.mask_function(function, relation=relation)
    out = mha.scaled_dot_product_attention(x, x, x, mask=mask)
    assert np.allclose(out, mha.scaled_dot_product_attention(x, x, x, mask=mha.causal()), atol=1e-12)
    assert all(query <= key for query, key in blocks)


@pytest.mark.parametrize(("queries", "keys"), [(1, 1), (64, 64), (65, 63), (200, 130), (7, 300)])
def test_codes_are_those_of_the_pairs(queries, keys):
    rng = np.random.default_rng(queries)
    pairs = (rng.random((queries, keys)) < 0.5) & ((np.arange(queries)[:, None] // BLOCK + np.arange(keys) // BLOCK) % 3 > 0)
    pairs |= (np.arange(queries)[:, None] // BLOCK + np.arange(keys) // BLOCK) % 3 == 2
    codes = codes_of(np, pairs, queries, keys)
    for i, row in enumerate(codes):
        for j, code in enumerate(row):
            tile = pairs[i * BLOCK : (i + 1) * BLOCK, j * BLOCK : (j + 1) * BLOCK]
            assert code == (Relation.ALL if tile.all() else Relation.SOME if tile.any() else Relation.NONE)
    assert codes.shape == (-(-queries // BLOCK), -(-keys // BLOCK))
    row_alone = pairs[:1]
    assert (
        codes_of(np, row_alone, queries, keys) == codes_of(np, np.broadcast_to(row_alone, pairs.shape), queries, keys)
    ).all()


def test_functions_have_names_in_messages():
    from functools import partial

    def function():
        pass

    assert name_of(partial(partial(function))).endswith("function")
    assert name_of(3) == "int"
