"""Random arrays of the normal distribution."""

import numpy as np

SEED = 20261123


def normal(*shape, dtype=np.float64):
    return np.random.default_rng(SEED + sum(shape)).standard_normal(shape).astype(dtype)
