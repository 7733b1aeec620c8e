"""Options of attention of 2 elements, 4 heads, 9 queries and 13 keys on torch, by name, and small arrays for it."""

import numpy as np
import torch

import mha_core as mha

B, H, L, S = 2, 4, 9, 13

OPTIONS = {
    "nothing": lambda t: {},
    "causal at the start": lambda t: {"mask": mha.causal(), "query_offset": 0},
    "causal at the end": lambda t: {"mask": mha.causal(), "query_offset": S - L},
    "causal before the keys": lambda t: {"mask": mha.causal(), "query_offset": -3},
    "window": lambda t: {"mask": mha.window(2, 1), "query_offset": 1},
    "window of the past": lambda t: {"mask": mha.window(3, 0), "query_offset": S - L},
    "chunks": lambda t: {"mask": mha.chunks(4), "query_offset": 2},
    "lengths": lambda t: {"mask": mha.key_lengths(t([5, 13]))},
    "lengths and causal": lambda t: {"mask": mha.key_lengths(t([5, 13])) & mha.causal(), "query_offset": 0},
    "no key for one": lambda t: {"mask": mha.key_lengths(t([0, 7]))},
    "array": lambda t: {"mask": t(np.random.default_rng(1).random((B, 1, L, S)) < 0.4)},
    "array of heads": lambda t: {"mask": t(np.random.default_rng(2).random((H, L, S)) < 0.4)},
    "bias": lambda t: {"bias": t(np.random.default_rng(3).normal(size=(H, L, S)))},
    "bias of rows": lambda t: {"bias": t(np.random.default_rng(3).normal(size=(L, 1))), "mask": mha.prefix(11)},
    "bias of -inf": lambda t: {"bias": t(np.where(np.arange(L) == 2, -np.inf, 0.0)[:, None] + np.zeros((L, S)))},
    "alibi": lambda t: {"bias": mha.alibi(H), "mask": mha.causal(), "query_offset": S - L},
    "sink": lambda t: {"sink": t(np.linspace(-1, 2, H)), "mask": mha.window(1, 0), "query_offset": -2},
    "scale": lambda t: {"scale": 0.7},
}
"""Functions of what makes a tensor of an array."""


def tensor(x, dtype=torch.float64):
    """Return an array as a tensor, of this dtype if its numbers are floating."""
    x = torch.asarray(np.asarray(x))
    return x.to(dtype) if x.is_floating_point() else x


def seeded(*shape):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(sum(shape)))
