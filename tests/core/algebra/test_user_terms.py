"""Masks and biases that users write: a class with the method ``block`` works wherever attention does."""

from dataclasses import dataclass

import numpy as np
import pytest
from sequence_problems import H, L, S, compare, problem

import mha_core as mha
from mha_core.algebra.parts import Part
from mha_core.dispatch.backend import load
from mha_core.distributed import heads_attention, ring_attention
from mha_core.plugin import Bias, Grid, Mask

B = 2
XP = load("numpy").xp


@dataclass(frozen=True, eq=False)
class Dilated(Mask):
    """Every ``step``-th position before the query's."""

    step: int
    reads_query_position = True

    def block(self, grid):
        distance = grid.query_position - grid.key_index
        return (distance >= 0) & (distance % self.step == 0)


class Odd(Mask):
    """A plain class: keys of an odd index, or those that the query's batch element may see."""

    def __init__(self, visible):
        self.visible = visible

    def block(self, grid):
        return (grid.key_index % 2 == 1) | self.visible[:, None, None, np.asarray(grid.cols)]


@dataclass(frozen=True, eq=False)
class Causal(Mask):
    """A mask that says what it is made of, so that kernels skip what it hides."""

    def block(self, grid):
        return mha.causal().block(grid)

    def conjuncts(self):
        yield mha.causal()


@dataclass(frozen=True, eq=False)
class Waves(Bias):
    """Depends on both positions."""

    length: float
    reads_query_position = True

    def block(self, grid):
        return grid.xp.sin(grid.xp.astype(grid.query_position * grid.key_index, grid.dtype) / self.length)


@dataclass(frozen=True, eq=False)
class Near(Bias):
    """Depends on the distance alone."""

    by_distance = True
    reads_query_position = True

    def block(self, grid):
        return grid.xp.exp(-grid.xp.astype(grid.xp.abs(grid.query_position - grid.key_index), grid.dtype))


@dataclass(frozen=True, eq=False)
class Tilt(Bias):
    """A learned slope for each head, with the rule for its gradient."""

    slopes: object

    def block(self, grid):
        return self.slopes[:, None, None] * grid.xp.astype(grid.key_index, grid.dtype)

    def sum(self, xp):
        return TiltSum(xp, self.slopes)


@dataclass(frozen=True, eq=False)
class PerElement(Bias):
    """A slope for each element of the batch."""

    slopes: object

    def block(self, grid):
        return self.slopes * grid.xp.astype(grid.key_index, grid.dtype)


class TiltSum:
    def __init__(self, xp, slopes):
        self.xp, self.total = xp, xp.zeros_like(slopes)

    def add(self, grid, d):
        by_head = self.xp.sum(d * self.xp.astype(grid.key_index, d.dtype), axis=(-2, -1))
        self.total = self.total + self.xp.sum(by_head, axis=tuple(range(by_head.ndim - 1)))

    def whole(self, device):
        return self.total


def rng():
    return np.random.default_rng(3)


MASKS = {
    "dilated": Dilated(3),
    "plain class": Odd(rng().random((B, S)) < 0.5),
    "conjuncts": Causal(),
    "not": ~Dilated(3),
    "or": Dilated(3) | mha.prefix(4),
    "and": Dilated(2) & mha.window(9, 4) & ~Odd(rng().random((B, S)) < 0.5),
}
BIASES = {"waves": Waves(7.0), "near": Near(), "tilt": Tilt(rng().normal(size=H))}
EVERY = {name: {"mask": mask} for name, mask in MASKS.items()} | {name: {"bias": bias} for name, bias in BIASES.items()}
EVERY["both"] = {"mask": MASKS["or"], "bias": BIASES["waves"]}
ARRAYS, OFFSET = problem()[0], {"query_offset": 3}
terms = pytest.mark.parametrize("options", EVERY.values(), ids=EVERY)


def as_arrays(options):
    """Return the same options with arrays in place of masks and biases."""
    grid = Grid(XP, None, range(L), range(S), 3, np.float64)
    return {name: term.block(grid) for name, term in options.items()}


def close(actual, exact):
    np.testing.assert_allclose(actual, exact, rtol=0, atol=1e-12)


@terms
def test_attention_equals_that_with_arrays(options):
    arrays, offset = ARRAYS, OFFSET
    close(
        mha.scaled_dot_product_attention(*arrays, **options, **offset),
        mha.scaled_dot_product_attention(*arrays, **as_arrays(options)),
    )
    close(
        mha.attention_weights(*arrays[:2], **options, **offset, rows=slice(3, 9)),
        mha.attention_weights(*arrays[:2], **as_arrays(options), rows=slice(3, 9)),
    )


@terms
def test_gradients_equal_those_with_arrays(options):
    arrays, offset = ARRAYS, OFFSET
    d = rng().normal(size=(B, H, L, 6))
    of_terms, of_arrays = (
        mha.vjp(mha.scaled_dot_product_attention, *arrays, **given)[1](d)
        for given in ({**options, **offset}, as_arrays(options))
    )
    for actual, expected in zip(of_terms, of_arrays, strict=True):
        close(actual, expected)


def test_the_gradient_of_an_array_follows_from_its_rule():
    arrays, offset = ARRAYS, OFFSET
    slopes, d = rng().normal(size=H), rng().normal(size=(B, H, L, 6))
    _, pull = mha.vjp(lambda s: mha.scaled_dot_product_attention(*arrays, bias=Tilt(s), **offset), slopes)
    by_pair = Tilt(slopes).block(Grid(XP, None, range(L), range(S), 3, np.float64))
    _, exact = mha.vjp(lambda b: mha.scaled_dot_product_attention(*arrays, bias=b), np.broadcast_to(by_pair, (H, L, S)).copy())
    close(pull(d)[0], (exact(d)[0] * np.arange(S)).sum((-2, -1)))


def test_what_a_mask_is_made_of_reaches_kernels():
    x = rng().normal(size=(H, L, 6))
    features = mha.explain("attention", x, x, x, mask=Causal()).features
    assert "causal" in features and "mask" not in features


@terms
@pytest.mark.parametrize("layout", ["contiguous", "zigzag", "striped"])
@pytest.mark.parametrize("attend", [ring_attention, heads_attention])
def test_ranks_equal_one_process_and_so_do_their_gradients(attend, layout, options):
    compare(2, attend, ARRAYS, layout, **options, **OFFSET)


@terms
def test_a_part_of_a_part_is_a_part(options):
    outer, inner = Part(range(2, 20, 2), range(1, 29, 3), 3), Part(range(1, 9, 3), range(8))
    for name, term in options.items():
        part = getattr(inner, name)(XP, getattr(outer, name)(XP, term))
        block = part.block(Grid(XP, None, range(3), range(8), 0, np.float64))
        exact = term.block(Grid(XP, None, (4, 10, 16), tuple(range(1, 25, 3)), 3, np.float64))
        np.testing.assert_array_equal(np.broadcast_to(block, exact.shape), exact)


@pytest.mark.parametrize("kind", ["array in a mask", "offsets of a mask", "array in a bias", "offsets of a bias"])
def test_a_large_batch_is_not_cut_where_a_part_has_arrays_of_the_batch(kind):
    """A batch without such arrays is computed in slices, which the arrays would not fit."""
    count, length = 256, 128
    r = rng()
    visible, offsets = r.random((count, length)) < 0.5, r.integers(0, 9, size=count)
    name, term = {
        "array in a mask": ("mask", Odd(visible)),
        "offsets of a mask": ("mask", mha.causal()),
        "array in a bias": ("bias", PerElement(r.normal(size=(count, 1, 1, 1)).astype(np.float32))),
        "offsets of a bias": ("bias", Near()),
    }[kind]
    query, key, value = (r.normal(size=(count, 8, length, 2)).astype(np.float32) for _ in range(3))
    part = Part(range(0, length, 2), range(1, length, 2), offsets)
    rows, cols = (slice(x.start, x.stop, x.step) for x in (part.rows, part.cols))
    x = query[:, :, rows], key[:, :, cols], value[:, :, cols]
    with mha.use_kernel("attention", "algebra"):
        state = mha.attention_state(*x, **{name: getattr(part, name)(XP, term)}, query_offset=part.query_offset)
        block = term.block(Grid(XP, None, tuple(part.rows), tuple(part.cols), offsets, np.float32))
        whole = np.broadcast_to(block, (count, 1, length // 2, length // 2))
        exact = mha.attention_state(*x, **{name: whole})
    np.testing.assert_allclose(state.out, exact.out, rtol=0, atol=1e-5)


def test_lengths_of_a_part_may_be_narrow_or_unsigned():
    lengths = mha.key_lengths(np.asarray([200, 250], dtype=np.uint8))
    assert Part(range(3), range(240, 310), 0).mask(XP, lengths).n.tolist() == [-40, 10]
    assert Part(range(3), range(300, 310), 0).mask(XP, lengths).n.tolist() == [-100, -50]
