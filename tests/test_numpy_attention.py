"""NumPy's attention kernel against float64: shapes, masks and strides that cross every boundary of its tiles."""

import itertools

import ml_dtypes
import numpy as np
import pytest

import mha_core as mha
from judged_attention import inputs, judge, normal
from mha_core.conformance.cases.problems import Limits, random_problem
from mha_numpy.attention import kernel, tiles
from properties import given, settings, st

LENGTHS = [1, 15, 16, 17, 63, 64, 65, 511, 512, 513, 1025]
ALIGNED = [(1, 1025), (1025, 1), (65, 513), (513, 65), (200, 200), (600, 600)]
OFFSETS = [-700, -513, -64, -1, 0, 1, 17, 64, 500, 1100]
BANDS = {
    "causal": (None, 0),
    "diagonal": (0, 0),
    "left": (3, None),
    "right": (None, 3),
    "a tile": (63, 0),
    "more than a tile": (65, 1),
    "wide": (300, 200),
    "wider than the problem": (5000, 5000),
}


def positions(query, key, offset=0):
    return np.arange(query.shape[-2])[:, None] + offset, np.arange(key.shape[-2])[None, :]


def band(query, key, left, right, offset=0):
    """The pairs that window(left, right) allows; causal is (None, 0)."""
    q, k = positions(query, key, offset)
    everywhere = np.ones((q.size, k.size), dtype=bool)
    return everywhere & (True if left is None else k >= q - left) & (True if right is None else k <= q + right)


# shapes


@pytest.mark.parametrize("num_keys", LENGTHS)
@pytest.mark.parametrize("length", LENGTHS)
def test_lengths(rng, length, num_keys):
    x = inputs(rng, length, num_keys)
    judge(*x)
    judge(*x, mask=mha.causal(), query_offset=num_keys - length, allowed=band(*x[:2], None, 0, num_keys - length))


@pytest.mark.parametrize(("dim", "width"), [(1, 1), (3, 70), (64, 16), (128, 1), (200, 300)])
def test_widths(rng, dim, width):
    judge(*inputs(rng, 130, 70, dim=dim, width=width))


@pytest.mark.parametrize("group", [1, 2, 3, 7])
@pytest.mark.parametrize("length", [1, 5, 100, 600])
def test_grouped_queries(rng, length, group):
    x = inputs(rng, length, 90, group=group, batch=(2,))
    heads = 2 * group
    judge(*x)
    judge(*x, mask=mha.window(20, 4), query_offset=3, allowed=band(*x[:2], 20, 4, 3), sink=normal(rng, heads))
    judge(*x, bias=normal(rng, heads, length, 90), mask=(mask := rng.random((heads, length, 90)) < 0.5), allowed=mask)
    q, k = positions(*x[:2])
    slopes = np.asarray(mha.alibi(heads).slopes)[:, None, None]
    judge(*x, bias=mha.alibi(heads), query_offset=0, whole_bias=-slopes * np.abs(q - k))


@pytest.mark.parametrize(
    ("batch", "heads"), [((), 3), ((1,), 50), ((37,), 3), ((3, 2), 5), ((2, 1, 3), 1), ((5, 7), 11), ((2,), 250)]
)
@pytest.mark.parametrize("length", [1, 33])
def test_many_small_heads_and_any_batch(rng, batch, heads, length):
    x = inputs(rng, length, 40, batch=batch, heads=heads)
    judge(*x)
    judge(*x, mask=mha.causal(), query_offset=40 - length, allowed=band(*x[:2], None, 0, 40 - length))
    judge(*x, mask=mha.causal() | mha.prefix(7), query_offset=0, allowed=band(*x[:2], None, 0) | (np.arange(40) < 7))
    mask = rng.random((*batch, heads, length, 40)) < 0.3
    judge(*x, mask=mask, allowed=mask, bias=normal(rng, *batch, heads, length, 40))


def test_arrays_of_two_axes_are_one_head(rng):
    query, key, value = (x[0, 0] for x in inputs(rng, 70, 90))
    state = mha.attention_state(query, key, value)
    whole = mha.attention_state(query[None], key[None], value[None])
    assert (state.out.tobytes(), state.lse.tobytes()) == (whole.out.tobytes(), whole.lse.tobytes())


@pytest.mark.parametrize(("q", "k", "v"), [((4,), (1,), (1,)), ((1,), (4,), (1,)), ((1,), (1,), (4,)), ((2, 1), (3,), (2, 3))])
def test_broadcast_batches(rng, q, k, v):
    query, key, value = inputs(rng, 70, 60)
    query, key, value = (normal(rng, *batch, *x.shape[1:]) for batch, x in zip((q, k, v), (query, key, value), strict=True))
    judge(query, key, value)
    judge(query, key, value, mask=mha.causal(), query_offset=0, allowed=band(query, key, None, 0))


# strides


def by_token(x):
    """Heads of a token adjacent in memory, as a projection returns them."""
    return np.swapaxes(np.swapaxes(x, -3, -2).copy(), -3, -2)


def overlapping(x):
    """Each row starts one element after the row before."""
    rows, columns = x.shape[-2:]
    flat = x.reshape(*x.shape[:-2], -1)[..., : rows + columns - 1].copy()
    return np.lib.stride_tricks.sliding_window_view(flat, columns, axis=-1)


def unaligned(x):
    return np.frombuffer(b"\0" + x.tobytes(), dtype=np.uint8)[1:].view(x.dtype).reshape(x.shape)


def read_only(x):
    x = x.copy()
    x.flags.writeable = False
    return x


STRIDES = {
    "by token": by_token,
    "slice of a wider array": lambda x: np.concatenate([x, x, x], axis=-1)[..., x.shape[-1] : 2 * x.shape[-1]],
    "stepped": lambda x: np.repeat(x, 2, axis=-1)[..., ::2],
    "every third": lambda x: np.repeat(x, 3, axis=-2)[..., ::3, :],
    "reversed": lambda x: x[..., ::-1, ::-1].copy()[..., ::-1, ::-1],
    "reversed heads": lambda x: x[::-1, ::-1].copy()[::-1, ::-1],
    "Fortran": np.asfortranarray,
    "broadcast": lambda x: np.broadcast_to(x[:1, :1], x.shape),
    "overlapping": overlapping,
    "unaligned": unaligned,
    "other byte order": lambda x: x.astype(x.dtype.newbyteorder()).astype(x.dtype),
    "read-only": read_only,
}


@pytest.mark.parametrize("view", STRIDES.values(), ids=STRIDES)
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
def test_strides_do_not_matter(rng, view, dtype):
    arrays = inputs(rng, 130, 150, batch=(3,), group=2, dtype=dtype)
    mask, bias = rng.random((3, 4, 130, 150)) < 0.7, normal(rng, 3, 4, 130, 150, dtype=dtype)
    for viewed in itertools.product((False, True), repeat=3):
        judge(*(view(x) if it else x for x, it in zip(arrays, viewed, strict=True)))
    judge(*map(view, arrays), mask=view(mask), bias=view(bias), allowed=view(mask))
    judge(*map(view, arrays), mask=mha.window(9, 9), query_offset=0, allowed=band(*arrays[:2], 9, 9))


# masks


@pytest.mark.parametrize(("left", "right"), BANDS.values(), ids=BANDS)
@pytest.mark.parametrize(("length", "num_keys"), ALIGNED)
def test_bands_of_every_alignment(rng, length, num_keys, left, right):
    x = inputs(rng, length, num_keys, heads=1)
    mask = mha.causal() if (left, right) == (None, 0) else mha.window(left, right)
    for offset in OFFSETS:
        allowed = band(*x[:2], left, right, offset)
        if allowed.any():  # otherwise no key remains
            judge(*x, mask=mask, query_offset=offset, allowed=allowed)


@pytest.mark.parametrize("left", range(60, 70))
def test_windows_about_as_wide_as_a_tile(rng, left):
    x = inputs(rng, 300, 300, heads=1, group=3)
    for right in (0, 1, left, 127):
        judge(*x, mask=mha.window(left, right), allowed=band(*x[:2], left, right))


@pytest.mark.parametrize("lengths", [[0, 0], [0, 300], [1, 299], [64, 65], [300, 300], [400, 7]])
@pytest.mark.parametrize("mask", [None, mha.causal(), mha.window(40, 8)])
def test_key_lengths(rng, lengths, mask):
    x = inputs(rng, 150, 300, batch=(2,), group=2)
    left, right = {None: (None, None), mha.causal(): (None, 0)}.get(mask, (40, 8))
    allowed = band(*x[:2], left, right, 20) & (np.arange(300) < np.asarray(lengths)[:, None, None, None])
    given = mha.key_lengths(np.asarray(lengths))
    judge(*x, mask=given if mask is None else given & mask, query_offset=20, allowed=allowed)
    judge(*x, mask=given if mask is None else mask & given, query_offset=20, allowed=allowed, sink=normal(rng, 4))
    bias = normal(rng, 2, 1, 150, 300)
    judge(*x, mask=given if mask is None else mask & given, query_offset=20, allowed=allowed, bias=bias)


@pytest.mark.parametrize("lengths", [[300], [1] * 300, [0, 100, 100, 0, 100], [7, 7, 286], [64, 65, 65, 106]])
@pytest.mark.parametrize(("left", "right"), [(None, None), (None, 0), (9, 9), (70, 0)])
def test_packed_sequences(rng, lengths, left, right):
    x = inputs(rng, 300, 300, batch=(2,), group=2)
    ids = np.repeat(np.arange(len(lengths)), lengths)
    allowed = band(*x[:2], left, right) & (ids[:, None] == ids)
    mask = mha.packed(lengths) & mha.window(left, right) if (left, right) != (None, None) else mha.packed(lengths)
    judge(*x, mask=mask, allowed=allowed)
    judge(*x, mask=mask & mha.key_lengths(np.asarray([290, 3])), allowed=allowed & (ids >= 0) & _shorter([290, 3], 300))
    judge(*x, mask=mask, allowed=allowed, bias=normal(rng, 4, 1, 300), sink=normal(rng, 4))


def _shorter(lengths, num_keys):
    return np.arange(num_keys) < np.asarray(lengths)[:, None, None, None]


@pytest.mark.parametrize("axes", list(itertools.product((False, True), repeat=4)), ids=str)
def test_arrays_broadcast_along_any_axis(rng, axes):
    x = inputs(rng, 100, 140, batch=(3,), group=2)
    shape = [n if whole else 1 for n, whole in zip((3, 4, 100, 140), axes, strict=True)]
    mask, bias = rng.random(shape) < 0.6, normal(rng, *shape)
    judge(*x, mask=mask, allowed=mask)
    judge(*x, bias=bias)
    # the tiles of a band start at any query and key
    judge(*x, mask=mha.window(20, 3) & mask, allowed=band(*x[:2], 20, 3, 5) & mask, bias=bias, query_offset=5)
    while len(shape) > 1 and shape[0] == 1:
        shape.pop(0)
    judge(*x, mask=mask.reshape(shape), bias=bias.reshape(shape), allowed=mask)


@pytest.mark.parametrize("offset", [-40, 0, 7, np.asarray([-5, 0, 60])], ids=str)
def test_biases_of_distance(rng, offset):
    x = inputs(rng, 90, 130, batch=(3,), group=2)
    q, k = positions(*x[:2], np.reshape(offset, (-1, 1, 1, 1)))
    alibi, table = mha.alibi(4), normal(rng, 32, 4)
    relative = mha.relative_bias(table, bidirectional=True, max_distance=50)
    whole = {
        alibi: -np.asarray(alibi.slopes)[:, None, None] * np.abs(q - k),
        relative: np.moveaxis(table[np.vectorize(relative.bucket)(k - q)[:, 0]], -1, 1),
    }
    causal, near = k <= q, (k >= q - 20) & (k <= q + 9)
    for bias, numbers in whole.items():
        judge(*x, bias=bias, query_offset=offset, whole_bias=numbers)
        judge(*x, bias=bias, mask=mha.causal(), query_offset=offset, whole_bias=numbers, allowed=causal)
        both = mha.window(20, 9) & mha.key_lengths(np.asarray([130, 64, 0]))
        judge(*x, bias=bias, mask=both, query_offset=offset, whole_bias=numbers, allowed=near & _shorter([130, 64, 0], 130))


def test_masks_that_are_evaluated_as_written(rng):
    x = inputs(rng, 600, 700, batch=(2,), heads=3)
    q, k = positions(*x[:2])
    judge(*x, mask=mha.chunks(150) | mha.prefix(90), query_offset=0, allowed=(q // 150 == k // 150) | (k < 90))
    judge(*x, mask=~mha.causal(), query_offset=0, allowed=k > q)
    judge(*x, mask=~mha.window(50, 50) & mha.key_lengths(650), query_offset=30, allowed=(np.abs(k - q - 30) > 50) & (k < 650))
    ids = rng.integers(0, 3, size=(2, 600)), rng.integers(0, 4, size=(2, 700))
    same = ids[0][:, None, :, None] == ids[1][:, None, None, :]
    judge(*x, mask=mha.segments(*ids), allowed=same)
    judge(*x, mask=mha.segments(*ids) & mha.causal(), query_offset=5, allowed=same & (k <= q + 5), sink=normal(rng, 3))
    offsets = np.asarray([-100, 200])
    judge(*x, mask=mha.causal(), query_offset=offsets, allowed=k <= q + offsets[:, None, None, None])


# other options


@pytest.mark.parametrize("scale", [0.0, -0.7, 1.0, 30.0, 1e4, 1e-30])
def test_any_scale(rng, scale):
    judge(*inputs(rng, 100, 120), scale=scale)
    judge(*inputs(rng, 5, 120), scale=scale)


@pytest.mark.parametrize("softcap", [0.01, 2.0, 30.0, 200.0])
@pytest.mark.parametrize("times", [1.0, 40.0])
def test_softcap(rng, softcap, times):
    x = inputs(rng, 100, 600, times=times)
    judge(*x, softcap=softcap)
    judge(*x, softcap=softcap, mask=mha.causal(), query_offset=500, allowed=band(*x[:2], None, 0, 500))
    judge(*x, softcap=softcap, sink=normal(rng, 2, times=5), bias=normal(rng, 2, 100, 600))


@pytest.mark.parametrize("sink", [0.0, -1.0, 50.0, 1e4, -1e4, -np.inf])
@pytest.mark.parametrize("length", [3, 200])
def test_sinks(rng, sink, length):
    x = inputs(rng, length, 600)
    sinks = np.asarray([sink, 0.5], dtype=np.float32)
    nobody = np.zeros((length, 600), dtype=bool)
    if np.isfinite(sink):
        judge(*x, sink=sinks)
        judge(*x, sink=sinks, mask=mha.causal(), query_offset=-1, allowed=band(*x[:2], None, 0, -1))
        judge(*x, sink=sinks, mask=nobody, allowed=nobody)
    else:  # a sink without weight
        with mha.use_kernel("attention", "tiles"):
            with_sink, without = mha.attention_state(*x, sink=sinks), mha.attention_state(*x)
        np.testing.assert_allclose(with_sink.out[:, 0], without.out[:, 0], rtol=1e-6, atol=1e-6)
        np.testing.assert_allclose(with_sink.lse[:, 0], without.lse[:, 0], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("times", [8.0, 40.0, 1e4])
@pytest.mark.parametrize(("length", "num_keys"), [(5, 600), (128, 128), (600, 1200)])
def test_scores_of_wide_range(rng, times, length, num_keys):
    x = inputs(rng, length, num_keys, times=times)
    judge(*x)
    judge(*x, mask=mha.window(100, 50), query_offset=0, allowed=band(*x[:2], 100, 50))
    judge(*x, sink=normal(rng, 2, times=times))


@pytest.mark.parametrize("dtype", [np.float64, np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize(("length", "num_keys"), [(1, 700), (64, 65), (600, 600)])
def test_other_dtypes(rng, dtype, length, num_keys):
    x = inputs(rng, length, num_keys, group=2, dtype=dtype, times=3)
    judge(*x)
    judge(*x, mask=mha.causal(), query_offset=0, allowed=band(*x[:2], None, 0))
    bias, sink = normal(rng, 4, length, num_keys, dtype=dtype), normal(rng, 4, dtype=dtype)
    mask = rng.random((length, num_keys)) < 0.5
    judge(*x, bias=bias, sink=sink, mask=mask, allowed=mask, softcap=3.0)


# all options together, in tiles of a few scores


@settings(derandomize=True, deadline=None, max_examples=300)
@given(
    seed=st.integers(0, 2**32 - 1),
    rows=st.sampled_from([1, 3, 8, 512]),
    scratch=st.sampled_from([64, 512, 4096, 1 << 15]),
    edge=st.sampled_from([1, 3, 64]),
    few=st.sampled_from([0, 4, 16]),
    held=st.sampled_from([10, 50, 500]),
    times=st.sampled_from([1.0, 8.0, 100.0]),
)
def test_any_problem_in_any_tiles(seed, rows, scratch, edge, few, held, times):
    p = random_problem(np.random.default_rng(seed), Limits(times=times, longest=24, widest=6, copies=3), dtype=np.float32)
    if 0 in (*p.query.shape, *p.key.shape, *p.value.shape) or (p.allowed is not None and not p.allowed.any()):
        return  # the algebra computes these
    with pytest.MonkeyPatch.context() as patch:
        limits = {"_ROWS": rows, "_SCRATCH": scratch, "_EDGE": edge, "_EDGE_PAIRS": 1, "_MIN_TASKS": 1, "_MASK_PAIRS": 64}
        for name, number in limits.items():
            patch.setattr(kernel, name, number)
        for name, number in {"_FEW": few, "_SLAB": 5, "_HELD": held, "_SHORT": 0}.items():
            patch.setattr(tiles, name, number)
        options = {name: x for name, x in p.options(lambda x: x).items() if x is not None}
        judge(p.query, p.key, p.value, allowed=p.allowed, **options)
