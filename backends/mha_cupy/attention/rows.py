"""What gradients of attention need of each query, by one kernel (cuda/rows.cu), and gradients in the shapes of the arrays."""

from __future__ import annotations

import math
from collections.abc import Set
from typing import Any, NamedTuple

from mha_core.plugin import AttentionGradients, AttentionProblem, AttentionState, sink_gradient, sum_to

from .. import launch, products
from ..launch import Launch, c_name

_WARPS = 4  # warps of a thread block; each takes one row


class Rows(NamedTuple):
    """lse, delta and d_out, with zeros for queries that see no key; (B, H, L) in the compute dtype, and (B, H, L, E)."""

    lse: Any
    delta: Any
    d_out: Any


def rows_of(p: AttentionProblem, state: AttentionState, d_out: Any, d_lse: Any) -> Rows:
    """Return delta = d_out . out - d_lse with lse and d_out, whose batch axes are merged into one."""
    xp = p.xp
    *_, heads, rows, width = shape = tuple(state.out.shape)
    batch = math.prod(shape[:-3])
    out, d_out = (xp.reshape(x, (batch, heads, rows, width)) for x in (state.out, d_out))
    lse: Any = xp.reshape(state.lse, (batch, heads, rows))
    d_lse = d_lse if d_lse is None else xp.reshape(d_lse, lse.shape)
    where: dict[str, Any] = {"dtype": p.compute_dtype, "device": p.device}
    found = Rows(xp.empty(lse.shape, **where), xp.empty(lse.shape, **where), d_out)
    every_row_sees = p.mask is None and p.bias is None and not p.structure.features
    if not every_row_sees:
        found = found._replace(d_out=xp.empty(d_out.shape, dtype=d_out.dtype, device=p.device))
    sink = None if p.sink is None else xp.astype(p.sink, p.compute_dtype, copy=False)
    sink = sink if sink is None or sink.strides[0] == sink.dtype.itemsize else sink.copy()
    launch.run(_row_terms(out, d_out, lse, d_lse, sink, found, writes_d_out=not every_row_sees))
    return found


def _row_terms(out: Any, d_out: Any, lse: Any, d_lse: Any, sink: Any, to: Rows, *, writes_d_out: bool) -> Launch:
    import numpy

    given = ((out, 4), (d_out, 4), (lse, 3), (d_lse, 3))
    strides = ((x, *map(numpy.int64, (0,) * axes if x is None else products.elements(x))) for x, axes in given)
    return Launch(
        "rows.cu",
        "row_terms",
        (f"DTYPE={c_name(out.dtype)}", f"SCORE={c_name(to.lse.dtype)}"),
        grid=-(-math.prod(lse.shape) // _WARPS),
        block=32 * _WARPS,
        args=(
            *(x for some in strides for x in some),
            *(sink, to.lse, to.delta, to.d_out if writes_d_out else None),
            *map(numpy.int32, out.shape),
        ),
    )


def gradients_of(
    p: AttentionProblem, sums: dict[str, Any], rows: Rows, wanted: Set[str], *, bias: Any = None
) -> AttentionGradients:
    """Return gradients of whole batches in the shapes and dtypes of the arrays, with that of the sink."""
    found = {name: sum_to(p.xp, x, getattr(p, name).shape) for name, x in sums.items()}
    found = {name: p.xp.astype(x, p.query.dtype, copy=False) for name, x in found.items()}
    return AttentionGradients(**found, bias=bias, sink=sink_gradient(p, rows) if "sink" in wanted else None)  # type: ignore[arg-type]
