"""A right attention kernel for NumPy, in steps that wrong kernels replace.

It computes all L x S scores at once; its only fault is the memory that this takes (promise 13).
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from mha_core.plugin import AttentionState


def widen(p):
    """Return query, key and value in the compute dtype, with a key head for each query head."""
    query, key, value = (x.astype(p.compute_dtype) for x in (p.query, p.key, p.value))
    return query, np.repeat(key, p.num_groups, axis=-3), np.repeat(value, p.num_groups, axis=-3)


def scores(p, query, key):
    return query @ np.swapaxes(key, -1, -2) * p.scale


def softcap(p, s):
    return s if p.softcap is None else (p.softcap * np.tanh(s / p.softcap)).astype(s.dtype)


def grid_of(p):
    return p.grid(range(p.query.shape[-2]), p.structure.keys)


def bias(p, s, grid_of=grid_of):
    """Return the scores with the bias added, or what a score function makes of them."""
    if p.bias is None:
        return s
    return p.bias.added(np.broadcast_to(s, (*p.rows_shape, s.shape[-1])), grid_of(p))


def allowed(p, *, wider=(0, 0), but="", grid_of=grid_of):
    """Return the mask's structure as booleans, with the band ``wider`` at both ends and without the part ``but``."""
    structure, (queries, keys) = p.structure, (p.query.shape[-2], p.key.shape[-2])
    i, j = np.arange(queries)[:, None], np.arange(keys)[None, :]
    seen = np.ones((queries, keys), dtype=bool)
    low, high = (None, None) if but == "band" else structure.band
    if low is not None:
        seen = seen & (j - i >= low - wider[0])
    if high is not None:
        seen = seen & (j - i <= high + wider[1])
    if structure.key_lengths is not None and but != "key_lengths":
        seen = seen & (j < structure.key_lengths[..., None, None, None])
    if structure.packed is not None and but != "packed":
        sequence = np.repeat(np.arange(len(structure.packed)), structure.packed)
        seen = seen & (sequence[:, None] == sequence[None, :])
    if structure.array is not None:
        seen = seen & structure.array
    if structure.rest is not None:
        seen = seen & structure.rest.block(grid_of(p))
    return seen


def mask(p, s):
    return s if p.mask is None else np.where(allowed(p), s, -np.inf)


def weigh(p, s):
    """Return (weights, lse) from the scores. The sink is one more score, without a value."""
    top = s.max(axis=-1, keepdims=True, initial=-np.inf)
    sink = None if p.sink is None else p.sink.astype(s.dtype)[:, None, None]
    top = top if sink is None else np.maximum(top, sink)
    shift = np.where(np.isfinite(top), top, 0)
    e = np.exp(s - shift)
    total = e.sum(axis=-1, keepdims=True) + (0 if sink is None else np.exp(sink - shift))
    with np.errstate(divide="ignore"):
        lse = shift + np.log(total)
    return e / np.where(total == 0, 1, total), lse[..., 0]


def attend(p, s, value):
    """Return (out, lse); a row that sees no key is 0, whatever the values are."""
    weights, lse = weigh(p, s)
    if p.dropout is not None:
        weights = np.where(p.dropout.kept(grid_of(p), p.rows_shape), weights / np.asarray(1 - p.dropout.rate, s.dtype), 0)
    return np.where(np.isneginf(lse)[..., None], 0, weights @ value), lse


@dataclass(frozen=True)
class Dense:
    """Attention in steps, which is right if no step is replaced."""

    widen: Callable = widen
    scores: Callable = scores
    order: tuple = (softcap, bias, mask)
    attend: Callable = attend

    def __call__(self, p):
        query, key, value = self.widen(p)
        s = self.scores(p, query, key)
        for step in self.order:
            s = step(p, s)
        out, lse = self.attend(p, s, value)
        shape = p.rows_shape
        return AttentionState(
            np.broadcast_to(out, (*shape, value.shape[-1])).astype(p.query.dtype),
            np.broadcast_to(lse, shape).astype(p.compute_dtype),
        )


right = Dense()


def without(option):
    """Return a kernel that ignores an option, although it declares it."""
    return lambda p: right(replace(p, **{option: None}))


def changed(change):
    """Return a kernel whose result (out, lse) is ``change(p, out, lse)`` of the right one."""
    return lambda p: AttentionState(*change(p, *right(p)))
