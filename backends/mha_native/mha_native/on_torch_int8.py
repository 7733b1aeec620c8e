"""Linear maps of int8 weights on torch tensors on the CPU."""

from __future__ import annotations

from typing import Any

import torch

from mha_core import Int8Weight
from mha_core.plugin import Call

from . import int8
from .team import team


def supports(call: Call) -> str | None:
    """Return why the kernel does not compute a call, or None."""
    return int8.supports(call) if call.device.type == "cpu" else f"computes on the CPU, not on {call.device.type}"


def linear_int8(x: Any, w: Int8Weight, b: Any) -> Any:
    """x w + b: each row of x is rounded to int8."""
    out: Any = torch.empty((*x.shape[:-1], w.shape[1]), dtype=x.dtype, device=x.device)
    rows, to = array(x.reshape(-1, x.shape[-1])), out.reshape(-1, w.shape[1]).numpy()
    int8.write(rows, w, b, to, dense=array, threads=torch.get_num_threads(), team=team())
    return out


def array(x: Any) -> Any:
    """Return a contiguous tensor as a NumPy array of the same memory."""
    return x.detach().resolve_neg().contiguous().numpy()
