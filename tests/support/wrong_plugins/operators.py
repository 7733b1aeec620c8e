"""Operators of mutation, which edges.py applies where a condition holds."""

from dataclasses import replace

import numpy as np

from .dense import changed, right, without


def drops(p):
    if not p.key.shape[-2]:
        return right(p)
    value = p.value.copy()
    value[..., -1, :] = 0
    return right(replace(p, value=value))


shifts = changed(lambda p, out, lse: (np.roll(out, 1, axis=-2), lse))
aliases = changed(lambda p, out, lse: (np.broadcast_to(out[..., :1, :, :], out.shape).copy(), lse))
rounds = changed(lambda p, out, lse: (out.astype(np.float16).astype(out.dtype), lse))
ignores_the_mask, ignores_the_bias, ignores_the_sink, ignores_the_softcap = map(without, ("mask", "bias", "sink", "softcap"))
