"""The arrays of a gradient of attention as kernels receive them: four axes, the compute dtype, 0 for rows that see no key."""

from __future__ import annotations

import math
from collections.abc import Iterable, Set
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mha_core.plugin import AttentionGradients, AttentionProblem, AttentionState

from .shapes import four_axes

ARRAYS = ("query", "key", "value")


class GradientInputs(NamedTuple):
    """Query, key and value, the state, and its gradients; lse is 0 in rows that see no key, and so are query and gradients."""

    query: Tensor
    key: Tensor
    value: Tensor
    out: Tensor
    lse: Tensor
    d_out: Tensor
    d_lse: Tensor | None

    @property
    def delta(self) -> Tensor:
        """d_out . out - d_lse."""
        delta = (self.d_out * self.out).sum(-1)
        return delta if self.d_lse is None else delta - self.d_lse


def rows_of(p: AttentionProblem, state: AttentionState, d_out: Any, d_lse: Any) -> GradientInputs:
    """Return the arrays of a problem, selected so that nothing in a row that sees no key has an effect."""
    arrays: tuple[Any, ...] = (p.query, p.key, p.value, *state, d_out)
    query, key, value, out, lse, d_out = (x.to(p.compute_dtype) for x in arrays)
    if p.mask is not None or p.bias is not None:
        empty = lse == -math.inf
        query, d_out = (torch.where(empty[..., None], 0, x) for x in (query, d_out))
        lse = torch.where(empty, 0, lse)
        d_lse = d_lse if d_lse is None else torch.where(empty, 0, d_lse)
    if p.sink is not None and p.mask is not None:  # the lse of such a row is the sink
        empty = (lse == p.sink.to(lse.dtype)[:, None]) & (out == 0).all(-1)  # type: ignore[attr-defined]
        d_out = torch.where(empty[..., None] & ~d_out.isfinite(), 0, d_out)
    batch = p.batch_shape
    query, key, value, out, d_out = (four_axes(x, batch) for x in (query, key, value, out, d_out))
    d_lse = d_lse if d_lse is None else d_lse.to(lse.dtype).reshape(query.shape[:-1])
    return GradientInputs(query, key, value, out, lse.reshape(query.shape[:-1]), d_out, d_lse)


def gradients_of(
    p: AttentionProblem, wanted: Set[str], of_arrays: Iterable[Tensor | None], **of_options: Tensor
) -> AttentionGradients:
    """Return gradients of query, key and value on four axes in their shapes and dtypes, and ``of_options`` as they are."""
    gradients: dict[str, Any] = dict(of_options)
    for name, d in zip(ARRAYS, of_arrays, strict=True):
        if d is not None and name in wanted:
            x: Any = getattr(p, name)
            gradients[name] = d.reshape(*p.batch_shape, *d.shape[1:]).sum_to_size(x.shape).to(x.dtype)
    return AttentionGradients(**gradients)


def sink_gradient(p: AttentionProblem, x: GradientInputs) -> Tensor:
    """-e^(sink - lse) delta, summed over queries and batch: (H,)."""
    sink: Any = p.sink
    weights = torch.exp(sink.to(x.lse.dtype)[:, None] - x.lse)
    return -(weights * x.delta).sum((0, 2)).to(sink.dtype)
