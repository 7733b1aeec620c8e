"""Terms of each query that gradients of attention need, by one kernel (cuda/rows.cu), and gradients in the arrays' shapes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Set
from itertools import product
from typing import Any

from mha_core.algebra.attention_vjp import RowTerms
from mha_core.plugin import AttentionGradients, AttentionProblem, AttentionState, sink_gradient, sum_to

from .. import launch, products
from ..launch import Launch, c_name

_WARPS = 4  # warps of a thread block; each takes one row


def rows_of(p: AttentionProblem, state: AttentionState, d_out: Any, d_lse: Any) -> RowTerms:
    """Return lse and delta, (B, H, L) in the compute dtype, and d_out, (B, H, L, E), whose batch axes are merged into one."""
    xp = p.xp
    *_, heads, rows, width = shape = tuple(state.out.shape)
    batch = math.prod(shape[:-3])
    out, d_out = (xp.reshape(x, (batch, heads, rows, width)) for x in (state.out, d_out))
    lse: Any = xp.reshape(state.lse, (batch, heads, rows))
    d_lse = d_lse if d_lse is None else xp.reshape(d_lse, lse.shape)
    where: dict[str, Any] = {"dtype": p.compute_dtype, "device": p.device}
    rows_to = RowTerms(lse=xp.empty(lse.shape, **where), d_out=d_out, delta=xp.empty(lse.shape, **where))
    every_row_sees = p.mask is None and p.bias is None and not p.structure.features
    if not every_row_sees:
        rows_to = rows_to._replace(d_out=xp.empty(d_out.shape, dtype=d_out.dtype, device=p.device))
    sink = None if p.sink is None else xp.astype(p.sink, p.compute_dtype, copy=False)
    sink = sink if sink is None or sink.strides[0] == sink.dtype.itemsize else sink.copy()
    launch.run(_row_terms(out, d_out, lse, d_lse, sink, rows_to, writes_d_out=not every_row_sees))
    return rows_to


def _row_terms(out: Any, d_out: Any, lse: Any, d_lse: Any, sink: Any, to: RowTerms, *, writes_d_out: bool) -> Launch:
    import numpy

    read = ((out, 4), (d_out, 4), (lse, 3), (d_lse, 3))
    return Launch(
        "rows.cu",
        "row_terms",
        (f"DTYPE={c_name(out.dtype)}", f"SCORE={c_name(to.lse.dtype)}"),
        grid=-(-math.prod(lse.shape) // _WARPS),
        block=32 * _WARPS,
        args=(
            *(argument for x, axes in read for argument in products.with_strides(x, axes)),
            *(sink, to.lse, to.delta, to.d_out if writes_d_out else None),
            *map(numpy.int32, out.shape),
        ),
    )


def over_batches(
    p: AttentionProblem, rows: RowTerms, sums: dict[str, Any]
) -> Iterator[tuple[tuple[int, ...], RowTerms, dict[str, Any]]]:
    """Yield each index of the batch axes before the last, with the rows and the gradients of its problem."""
    batch = p.batch_shape
    size = batch[-1] if batch else 1
    for at, index in enumerate(product(*map(range, batch[:-1]))):
        place = index if batch else (None,)  # without batch axes, add one
        yield index, RowTerms(*(x[at * size : (at + 1) * size] for x in rows)), {name: x[place] for name, x in sums.items()}


def gradients_of(
    p: AttentionProblem, sums: dict[str, Any], rows: RowTerms, wanted: Set[str], *, bias: Any = None
) -> AttentionGradients:
    """Return gradients of whole batches in the shapes and dtypes of the arrays, with that of the sink."""
    sums = {name: sum_to(p.xp, x, getattr(p, name).shape) for name, x in sums.items()}
    sums = {name: p.xp.astype(x, p.query.dtype, copy=False) for name, x in sums.items()}
    return AttentionGradients(**sums, bias=bias, sink=sink_gradient(p, rows) if "sink" in wanted else None)
