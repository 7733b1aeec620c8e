"""torch as an array-API namespace: array-api-compat's, with gradients that are the same bits in each call."""

from __future__ import annotations

from typing import Any

import array_api_compat.torch as compat
import torch
from array_api_compat.torch import *  # noqa: F403


def pullback(function: Any, *arrays: Any) -> tuple[Any, Any]:
    """Return ``function(*arrays)``, and a function from the gradient of the result to those of the arrays.

    Raises TypeError if the function reads another tensor that requires a gradient, which would get none.
    """
    again = torch.is_grad_enabled()  # while gradients are differentiated
    with torch.enable_grad():
        result: Any = torch.func.vjp(function, *(arrays if again else [x.detach() for x in arrays]))
    if not again:
        refuse_gradient(result[0])
    return result


def refuse_gradient(scores: Any) -> None:
    """Raise TypeError if scores record a gradient where only a tensor that a score function reads can be the reason."""
    if scores.requires_grad:
        raise TypeError("a score function reads a tensor that requires a gradient: pass it in the arrays of mha.score_function")


def take(x: Any, indices: Any, /, *, axis: int | None = None) -> Any:
    """``take`` of the standard. On CUDA, the gradient of ``torch.index_select`` adds in any order; that of an index sorts."""
    if not x.is_cuda or (axis is None and x.ndim != 1):  # the latter is an error
        return compat.take(x, indices, axis=axis)
    return x[(slice(None),) * ((axis or 0) % x.ndim) + (indices.long(),)]  # torch reads uint8 as a mask
