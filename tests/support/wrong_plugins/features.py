"""Kernels that declare a feature and ignore it."""

from functools import partial

from .dense import allowed, without
from .dense import right as right
from .masks import masked_by

ignores_softcap, ignores_sink, ignores_bias = map(without, ("softcap", "sink", "bias"))
ignores_causal = masked_by(partial(allowed, but="band"))
ignores_key_lengths = masked_by(partial(allowed, but="key_lengths"))
ignores_packed = masked_by(partial(allowed, but="packed"))
casual = right  # it declares "casual", so it is never chosen for causal masks; no result shows that


def crashes(p):
    raise RuntimeError("out of luck")
