"""The gradients of norms and embeddings, by torch's own backward functions."""

from __future__ import annotations

from collections.abc import Set

import torch
from torch import Tensor

Gradient = Tensor | None


def layer_norm_vjp(
    x: Tensor, weight: Gradient, bias: Gradient, d_out: Tensor, *, wanted: Set[str], eps: float
) -> tuple[Gradient, Gradient, Gradient]:
    """The gradients of x, weight and bias, as far as they are wanted; mean and spread of x are computed again."""
    width = x.shape[-1:]
    _, mean, inverse_spread = torch.native_layer_norm(x, width, None, None, eps)
    output_mask = [name in wanted for name in ("x", "weight", "bias")]
    gradients: tuple[Gradient, Gradient, Gradient] = torch.ops.aten.native_layer_norm_backward(
        d_out, x, width, mean, inverse_spread, weight, bias, output_mask
    )
    return gradients


def embedding_vjp(d_out: Tensor, ids: Tensor, *, num_rows: int) -> Tensor:
    """Row i is the sum of the rows of ``d_out`` whose id is i; ids below 0 count from the end.

    Half precision is summed in float32.
    """
    wide = d_out.dtype if d_out.dtype == torch.float64 else torch.float32
    ids = torch.where(ids < 0, ids + num_rows, ids)
    if not d_out.is_cpu:
        return _sorted_sums(d_out.to(wide), ids, num_rows).to(d_out.dtype)
    sums: Tensor = torch.ops.aten.embedding_dense_backward(d_out.to(wide), ids, num_rows, -1, False)
    return sums.to(d_out.dtype)


def _sorted_sums(rows: Tensor, ids: Tensor, count: int) -> Tensor:
    """Return the sum of the rows with each id, (count, width), with the same bits in each call.

    On CUDA, index_put_ sorts the ids first; embedding_dense_backward gave other bits in each call (torch 2.11, an H200).
    """
    return rows.new_zeros((count, rows.shape[-1])).index_put_((ids,), rows, accumulate=True)
