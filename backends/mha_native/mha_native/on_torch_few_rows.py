"""Linear maps of few rows of torch tensors on the CPU."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.functional import linear as linear_of_torch

from mha_core.plugin import Call

from . import few_rows
from .team import team


def supports(call: Call) -> str | None:
    """Return why the kernel does not compute a call, or None."""
    return few_rows.supports(call) if call.device.type == "cpu" else f"computes on the CPU, not on {call.device.type}"


def linear(x: Any, w: Any, b: Any) -> Any:
    """x w + b; by torch for tensors that are no plain arrays in memory, such as sparse ones and those of other classes."""
    if not all(part is None or _is_array(part) for part in (x, w, b)):
        return linear_of_torch(x, w.mT, b)
    out: Any = torch.empty((*x.shape[:-1], w.shape[1]), dtype=x.dtype, device=x.device)
    rows, to = x.resolve_neg().reshape(-1, x.shape[-1]), out.view(-1, w.shape[1])
    w, b = w.resolve_neg(), None if b is None else b.resolve_neg()
    kind, threads = "f" if x.dtype == torch.float32 else "H", torch.get_num_threads()
    few_rows.write(rows, w, b, to, kind=kind, threads=threads, team=team(), at=_at, dense=torch.Tensor.contiguous)
    return out


def _is_array(x: Any) -> bool:
    return type(x) in (torch.Tensor, torch.nn.Parameter) and x.layout is torch.strided and x.data_ptr() != 0


def _at(x: Any) -> tuple[int, Any]:
    size = x.itemsize
    return x.data_ptr(), tuple(step * size for step in x.stride())
