"""Views of arrays of three axes or more, by the name of their layout in memory."""

import numpy as np


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


VIEWS = {
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
"""The numbers are those of the array, except where rows share memory."""
