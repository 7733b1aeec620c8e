"""The gradient of an embedding: rows summed by id."""

from __future__ import annotations

import numpy as np

from .scratch import scratch
from .threads import run

_COLUMNS = 1 << 17  # numbers of the gathered rows for which another thread is worth waking


def embedding_vjp(d_out: np.ndarray, ids: np.ndarray, *, num_rows: int) -> np.ndarray:
    """Row i is the sum of the rows of ``d_out`` whose id is i; ids below 0 count from the end. Returns (num_rows, d).

    Rows are sorted by id. An id that occurs once needs a copy only; the others need one call for each id.
    """
    rows, at = d_out.reshape(-1, d_out.shape[-1]), ids.reshape(-1).astype(np.int64)
    at[at < 0] += num_rows
    order = np.argsort(at, kind="stable")
    at = at[order]
    first = np.flatnonzero(np.concatenate([[True], at[1:] != at[:-1]]))
    count = np.diff(first, append=len(at))
    single, several = first[count == 1], first[count > 1]
    runs = list(zip(several.tolist(), count[count > 1].tolist(), at[several].tolist(), strict=True))
    sums = np.zeros((num_rows, rows.shape[1]), dtype=rows.dtype)

    def sum_runs(span: slice) -> None:
        for start, length, i in runs[span]:
            picked = scratch("rows", (length, rows.shape[1]), rows.dtype)
            np.take(rows, order[start : start + length], axis=0, out=picked, mode="clip")
            np.add.reduce(picked, axis=0, out=sums[i])

    with np.errstate(all="ignore"):  # NaN and infinity in, NaN and infinity out
        sums[at[single]] = rows[order[single]]
        each = max(1, _COLUMNS * len(runs) // max(1, len(at) * rows.shape[1]))
        run(sum_runs, [slice(start, start + each) for start in range(0, len(runs), each)])
    return sums
