"""The shapes that torch's fused kernels expect: four axes, and one head dimension."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812


def fits(query: Any, key: Any, value: Any) -> bool:
    """Return whether torch accepts the arrays unchanged: four axes, equal batch sizes and head dimensions."""
    return (
        query.ndim == key.ndim == value.ndim == 4
        and len(query) == len(key) == len(value)
        and query.shape[-1] == value.shape[-1]
    )


def contiguous_rows(x: Tensor) -> Tensor:
    """Return x, copied if its last axis is strided, which the kernel does not support."""
    return x if x.stride(-1) == 1 else x.contiguous()


def padded(x: Tensor, width: int) -> Tensor:
    """Return x with zeros behind its features, which change no score."""
    return F.pad(x, (0, width - x.shape[-1])) if x.shape[-1] < width else x


def four_axes(x: Tensor, batch: tuple[int, ...]) -> Tensor:
    """Return (..., h, l, d) as (batch, h, l, d), without a copy if there is at most one batch axis."""
    return x.expand(*batch, *x.shape[-3:]).reshape(math.prod(batch), *x.shape[-3:])


def mask_on_four_axes(mask: Tensor, batch: tuple[int, ...]) -> Tensor:
    """Return (..., h, l, s) with up to any number of axes as (batch, h, l, s), where each may be 1."""
    return four_axes(mask.reshape((1,) * (3 - mask.ndim) + tuple(mask.shape)), batch if mask.ndim > 3 else ())


def with_whole_rows(mask: Tensor, num_keys: int) -> Tensor:
    """Return the mask with a number for each key, side by side in memory, as torch's kernel for CUDA reads it."""
    return contiguous_rows(mask.expand(*mask.shape[:-1], num_keys))


def recorded_with_mask(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
    """Return the query; if of all four only the mask records a gradient, the query records one too, and adds 0 to that.

    Otherwise torch's kernel for CUDA would keep no log-sum-exp, and its backward pass would fail or read memory out of bounds:
    https://github.com/pytorch/pytorch/issues/148476.
    """
    if not mask.requires_grad or query.requires_grad or key.requires_grad or value.requires_grad:
        return query
    return torch.where(torch.zeros((), dtype=torch.bool, device=query.device), mask[(0,) * mask.ndim], query)
