"""Kernels whose masks let too many keys through, too few, or the wrong ones."""

import numpy as np

from .dense import Dense, allowed, bias, softcap
from .dense import right as right


def masked_by(see):
    """Return dense attention with ``see(p)`` as its mask."""
    return Dense(order=(softcap, bias, lambda p, s: s if p.mask is None else np.where(see(p), s, -np.inf)))


causal_off_by_one = masked_by(lambda p: allowed(p, wider=(0, 1)))
window_too_wide = masked_by(lambda p: allowed(p, wider=(1, 0)))
mask_turned = masked_by(lambda p: ~allowed(p))
first_head_of_the_mask = masked_by(
    lambda p: allowed(p)[..., :1, :, :] if p.structure.array is not None and p.structure.array.ndim > 2 else allowed(p)
)


def _by_fours(p):
    """Queries 0 to 3 see what query 3 may see, in half precision, as in pytorch #195910."""
    last = np.minimum(np.arange(p.query.shape[-2]) // 4 * 4 + 3, p.query.shape[-2] - 1)
    return np.broadcast_to(allowed(p), (*p.rows_shape, p.key.shape[-2]))[..., last, :]


causal_by_fours = masked_by(lambda p: _by_fours(p) if p.query.dtype == np.float16 else allowed(p))
# the band contains the offset already
aligned_at_the_end = masked_by(
    lambda p: allowed(p, wider=(0, p.key.shape[-2] - p.query.shape[-2] if p.structure.band != (None, None) else 0))
)


def stand_in(number):
    """Return a kernel that replaces masked scores by a low number. Rows that see no key are still empty."""

    def step(p, s):
        if p.mask is None:
            return s
        seen = np.broadcast_to(allowed(p), s.shape)
        return np.where(seen, s, np.where(seen.any(axis=-1, keepdims=True), number, -np.inf)).astype(s.dtype)

    return Dense(order=(softcap, bias, step))


minus_ten_thousand = stand_in(-1e4)
minus_a_billion = stand_in(-1e9)


def _added(p, s):
    """Add a low number to masked scores instead of replacing them, which only lowers a high score."""
    if p.mask is None:
        return s
    seen = np.broadcast_to(allowed(p), s.shape)
    s = s + np.where(seen, 0, -1e9).astype(s.dtype)
    return np.where(seen.any(axis=-1, keepdims=True), s, -np.inf)


added = Dense(order=(softcap, bias, _added))
