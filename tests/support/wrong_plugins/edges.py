"""Kernels that are wrong only beyond an edge: an act of ``ACTS`` where a condition holds.

They are right on every shorter, narrower or simpler problem, so a list of problems written by hand does not find them all.
"""

from dataclasses import replace

import numpy as np

from mha_core.plugin import AttentionState

from .dense import right as right
from .dense import without

CONDITIONS = {
    "long_keys": lambda p: p.key.shape[-2] > 1000,
    "keys_of_257": lambda p: p.key.shape[-2] == 257,
    "keys_of_15": lambda p: p.key.shape[-2] == 15,
    "long_queries": lambda p: p.query.shape[-2] > 4095,
    "width_80": lambda p: p.query.shape[-1] == 80,
    "width_1": lambda p: p.query.shape[-1] == 1,
    "wide_values": lambda p: p.value.shape[-1] > 160,
    "groups_of_three": lambda p: p.num_groups == 3,
    "two_batch_axes": lambda p: len(p.batch_shape) == 2,
    "shared_query": lambda p: p.query.shape[:-3] != p.batch_shape,
    "negative_scale": lambda p: p.scale < 0,
    "far_offset": lambda p: isinstance(p.offset, int) and p.offset >= 70,
    "negative_offset": lambda p: isinstance(p.offset, int) and p.offset < 0,
    "offset_array": lambda p: not isinstance(p.offset, int),
    "no_lse": lambda p: "lse" not in p.asked,
    "huge_scores": lambda p: p.query.size and abs(p.query).max() > 500,
    "tiny_scores": lambda p: p.query.size and abs(p.query).max() < 1e-4,
    "many_sequences": lambda p: len(p.structure.packed or ()) > 255,
    "empty_sequence": lambda p: 0 in (p.structure.packed or ()),
    "mask_of_heads": lambda p: np.ndim(p.structure.array) == 3,
    "length_0": lambda p: p.structure.key_lengths is not None and 0 in p.structure.key_lengths,
    "bias_of_keys": lambda p: _bias(p) is not None and _bias(p).shape[-2] == 1,
    "infinite_bias": lambda p: _bias(p) is not None and np.isinf(_bias(p)).any(),
    "large_sink": lambda p: p.sink is not None and p.sink.size and p.sink.max() > 15,
    "loose_softcap": lambda p: p.softcap is not None and p.softcap > 10,
}


def _bias(p):
    return getattr(p.bias, "array", getattr(p.bias, "b", None))


def _dropped(p):
    if not p.key.shape[-2]:
        return right(p)
    value = p.value.copy()
    value[..., -1, :] = 0
    return right(replace(p, value=value))


def _shifted(p):
    out, lse = right(p)
    return AttentionState(np.roll(out, 1, axis=-2), lse)


def _aliased(p):
    out, lse = right(p)
    return AttentionState(np.broadcast_to(out[..., :1, :, :], out.shape).copy(), lse)


def _rounded(p):
    out, lse = right(p)
    return AttentionState(out.astype(np.float16).astype(out.dtype), lse)


ACTS = {
    "drops": _dropped,
    "shifts": _shifted,
    "aliases": _aliased,
    "rounds": _rounded,
    **{f"ignores_the_{name}": without(**{name: True}) for name in ("mask", "bias", "sink", "softcap")},
}


def __getattr__(name):
    """Return the kernel of a condition and an act, such as ``long_keys_drops``: elsewhere it is right."""
    for condition, holds in CONDITIONS.items():
        act = ACTS.get(name.removeprefix(f"{condition}_"))
        if act is not None:
            return lambda p: act(p) if holds(p) else right(p)
    raise AttributeError(name)
