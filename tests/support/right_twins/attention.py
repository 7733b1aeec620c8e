"""Right kernels of attention. Each replaces one or two steps of the dense kernel of ``wrong_plugins`` by an equal formula."""

from concurrent.futures import ThreadPoolExecutor
from functools import reduce

import numpy as np
from wrong_plugins.dense import Dense, attend, bias, grid_of, mask, softcap, weigh, widen

LOG2_E = np.log2(np.e)
NATURAL, OF_TWO = (np.exp, np.log, 1.0), (np.exp2, np.log2, LOG2_E)
"""Bases: the exponential, the logarithm, and what a natural logarithm is multiplied by."""


def wide(x):
    return x.astype(np.float64)


def flushed(x, times=1.0):
    """Return x with numbers as 0 that are smaller than the smallest normal one, times ``times``."""
    return np.where(np.abs(x) < times * np.finfo(x.dtype).tiny, x.dtype.type(0), x)


# states: the greatest score of a row, the sum of the exponentials relative to it, and the sum of the values times these


def state_of(s, value, *, exp=np.exp, product=np.matmul):
    top = s.max(axis=-1, keepdims=True, initial=-np.inf)
    e = exp(s - np.where(np.isneginf(top), s.dtype.type(0), top))
    return top, e.sum(axis=-1, keepdims=True), product(e, value)


def of_sink(p, s, base=NATURAL):
    sink = np.full((1, 1, 1), -np.inf, s.dtype) if p.sink is None else p.sink.astype(s.dtype)[:, None, None]
    return sink * s.dtype.type(base[2]), (sink > -np.inf).astype(s.dtype), s.dtype.type(0)


def merged(one, other, exp=np.exp):
    """Merge two states over disjoint keys (Milakov and Gimelshein 2018)."""
    top = np.maximum(one[0], other[0])
    shift = np.where(np.isneginf(top), top.dtype.type(0), top)
    terms = [[exp(part[0] - shift) * x for x in part[1:]] for part in (one, other)]
    return top, *(a + b for a, b in zip(*terms, strict=True))


def finished(state, base=NATURAL):
    """Divide, and return (out, lse)."""
    top, total, out = state
    with np.errstate(divide="ignore"):
        lse = (top + base[1](total)) / total.dtype.type(base[2])
    empty = total == 0
    return np.where(empty, total.dtype.type(0), out / np.where(empty, total.dtype.type(1), total)), lse[..., 0]


def late(base=NATURAL, **steps):
    """Divide by the sum of the exponentials after the product with the values."""
    exp = steps.setdefault("exp", base[0])
    return lambda p, s, value: finished(merged(of_sink(p, s, base), state_of(s, value, **steps), exp), base)


def tiles_of(size, order=iter, over=reduce):
    """Attend tile by tile; ``order`` and ``over`` say in which order states are merged."""

    def attend(p, s, value):
        tiles = (slice(start, start + size) for start in range(0, max(1, s.shape[-1]), size))
        states = [state_of(s[..., tile], value[..., tile, :]) for tile in tiles]
        return finished(over(merged, list(order([of_sink(p, s), *states]))))

    return attend


def pairwise(merge, states):
    while len(states) > 1:
        states = [reduce(merge, states[at : at + 2]) for at in range(0, len(states), 2)]
    return states[0]


def split(p, s, value):
    """Merge finished states of three shares of the keys, as decoding on many processors does."""
    shares = np.array_split(np.arange(s.shape[-1]), 3)
    states = [finished(state_of(s[..., share], value[..., share, :])) for share in shares]
    again = [(lse[..., None], (lse[..., None] > -np.inf).astype(s.dtype), out) for out, lse in states]
    return finished(reduce(merged, [of_sink(p, s), *again]))


def early(product=np.matmul):
    """Divide before the product with the values."""

    def attend(p, s, value):
        weights, lse = weigh(p, s)
        return product(weights, value), lse

    return attend


# sums


def one_by_one(weights, value, *, add=lambda total, term: total + term):
    total = weights[..., :0] @ value[..., :0, :]
    for key in range(value.shape[-2]):
        total = add(total, weights[..., key : key + 1] * value[..., key : key + 1, :])
    return total


def with_flushes(weights, value, flushed=flushed):
    """Flush every factor, term and partial sum."""
    return one_by_one(flushed(weights), flushed(value), add=lambda total, term: flushed(total + flushed(term)))


def compensated(weights, value):
    """Kahan's sum."""
    lost = np.zeros((), value.dtype)

    def add(total, term):
        nonlocal lost
        term = term - lost
        after = total + term
        lost = (after - total) - term
        return after

    return one_by_one(weights, value, add=add)


def in_float64(x, y):
    return (wide(x) @ wide(y)).astype(y.dtype)


def backwards(x, y):
    return x[..., ::-1] @ y[..., ::-1, :]


def of_features(size):
    """Scores as sums over blocks of features."""

    def product(x, y):
        blocks = (slice(at, at + size) for at in range(0, max(1, x.shape[-1]), size))
        return sum(np.einsum("...ik,...kj->...ij", x[..., block], y[..., block, :]) for block in blocks)

    return product


def fused(x, y):
    """Multiply and add with one rounding."""
    total = x[..., :0] @ y[..., :0, :]
    for at in range(x.shape[-1]):
        total = (wide(total) + wide(x[..., at : at + 1]) * wide(y[..., at : at + 1, :])).astype(y.dtype)
    return total


def transposed(x, y):
    return np.swapaxes(np.swapaxes(y, -1, -2) @ np.swapaxes(x, -1, -2), -1, -2)


def scores_by(product):
    return lambda p, query, key: product(query, np.swapaxes(key, -1, -2)) * query.dtype.type(p.scale)


def scaled_query(p, query, key):
    return (query * query.dtype.type(p.scale)) @ np.swapaxes(key, -1, -2)


def root_of_scale(p, query, key):
    """Multiply both factors by the root of the scale, as torch does."""
    root = query.dtype.type(np.sqrt(abs(p.scale)))
    return (query * root * query.dtype.type(np.sign(p.scale))) @ np.swapaxes(key * root, -1, -2)


def by_groups(p, query, key):
    """All query heads of a key head are rows of one product."""
    lead, (heads, rows, width), groups = query.shape[:-3], query.shape[-3:], p.num_groups
    together = query.reshape(*lead, heads // groups, groups * rows, width)
    s = together @ np.swapaxes(key[..., ::groups, :, :], -1, -2)
    return s.reshape(*s.shape[:-3], heads, rows, s.shape[-1]) * query.dtype.type(p.scale)


# weights


def by_lse(p, s, value):
    """Take the weights from lse, in a second pass."""
    lse = weigh(p, s)[1]
    return np.exp(s - np.where(np.isneginf(lse), s.dtype.type(0), lse)[..., None]) @ value, lse


def extra_key(p, s, value):
    """The sink is one more key, whose value is 0."""
    sink = np.broadcast_to(of_sink(p, s)[0], (*s.shape[:-1], 1))
    zero = np.zeros((*value.shape[:-2], 1, value.shape[-1]), value.dtype)
    return finished(state_of(np.concatenate([s, sink], axis=-1), np.concatenate([value, zero], axis=-2)))


def extra_feature(p, s, value):
    """The sum of the exponentials is one more feature of the values, which are 1."""
    top, _, out = state_of(s, np.concatenate([value, np.ones_like(value[..., :1])], axis=-1))
    return finished(merged(of_sink(p, s), (top, out[..., -1:], out[..., :-1])))


def reciprocal(p, s, value):
    top, total, out = merged(of_sink(p, s), state_of(s, value))
    _, lse = finished((top, total, out))
    return out * np.where(total == 0, total, 1 / np.where(total == 0, total.dtype.type(1), total)), lse


def rows_in_threads(p, s, value):
    with ThreadPoolExecutor(3) as pool:
        states = list(pool.map(lambda rows: attend(p, s[..., rows, :], value), np.array_split(np.arange(s.shape[-2]), 3)))
    return tuple(np.concatenate(x, axis=axis) for x, axis in zip(zip(*states, strict=True), (-2, -1), strict=True))


# bases


def power_of_two(x):
    return np.exp2(x * x.dtype.type(LOG2_E))


def in_base_2(p, s, log2_e=LOG2_E):
    return s * s.dtype.type(log2_e)


def scaled_to_base_2(p, query, key):
    """scale log2(e) is rounded once, as in FlashAttention."""
    return query @ np.swapaxes(key, -1, -2) * query.dtype.type(p.scale * LOG2_E)


def softcap_in_base_2(p, s):
    cap = None if p.softcap is None else s.dtype.type(p.softcap * LOG2_E)
    return s if cap is None else cap * np.tanh(s / cap)


def bias_in_base_2(p, s):
    if p.bias is not None and p.bias.feature == "score_function":
        return in_base_2(p, bias(p, s * s.dtype.type(1 / LOG2_E)))
    return s if p.bias is None else s + in_base_2(p, p.bias.block(grid_of(p)).astype(s.dtype))


ORDER = softcap, bias, mask
ORDER_IN_BASE_2 = softcap_in_base_2, bias_in_base_2, mask
ATTENTION = {
    "the weights are divided before the product with the values": Dense(),
    "they are divided after it": Dense(attend=late()),
    "they are multiplied by a reciprocal": Dense(attend=reciprocal),
    "the weights are exponentials of score - lse": Dense(attend=by_lse),
    "the sink is one more key": Dense(attend=extra_key),
    "the sum of the exponentials is one more feature": Dense(attend=extra_feature),
    "an exponential is a power of two": Dense(attend=late(exp=power_of_two)),
    "an exponential is the square of a root": Dense(attend=late(exp=lambda x: np.exp(x / 2) ** 2)),
    "scores are multiplied by log2(e)": Dense(order=(*ORDER, in_base_2), attend=late(OF_TWO)),
    "log2(e) is part of the scale": Dense(scores=scaled_to_base_2, order=ORDER_IN_BASE_2, attend=late(OF_TWO)),
    "tiles of 1 key": Dense(attend=tiles_of(1)),
    "tiles of 48 keys": Dense(attend=tiles_of(48)),
    "tiles of 16 keys, the last first": Dense(attend=tiles_of(16, order=reversed)),
    "tiles of 5 keys, merged in pairs": Dense(attend=tiles_of(5, over=pairwise)),
    "three finished states are merged": Dense(attend=split),
    "rows in three threads": Dense(attend=rows_in_threads),
    "values are added one by one": Dense(attend=late(product=one_by_one)),
    "values are added by Kahan": Dense(attend=late(product=compensated)),
    "values are added in float64": Dense(attend=late(product=in_float64)),
    "values are added from the last": Dense(attend=late(product=backwards)),
    "all is float64": Dense(widen=lambda p: [wide(x) for x in widen(p)]),
    "scores by fused multiplications and additions": Dense(scores=scores_by(fused)),
    "scores of 8 features at a time": Dense(scores=scores_by(of_features(8))),
    "scores are transposed": Dense(scores=scores_by(transposed)),
    "the query is scaled": Dense(scores=scaled_query),
    "query and key are scaled by the root": Dense(scores=root_of_scale),
    "the query heads of a group are rows of one product": Dense(scores=by_groups),
    "products below 2^-126 are flushed to 0 before the division": Dense(attend=late(product=with_flushes)),
    "products below 2^-126 are flushed to 0 after the division": Dense(attend=early(with_flushes)),
    "weights below 2^-100 are flushed to 0": Dense(attend=late(exp=lambda x: flushed(np.exp(x), 2.0**26))),
}
