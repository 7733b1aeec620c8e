"""The update of AdamW, by torch's fused function."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from mha_core.plugin import Call

from .activations import supports as supports_plain


def supports(call: Call) -> str | None:
    """Return why an update is not supported, or None."""
    if call.device.type == "cuda" and call.dtype == torch.float32:
        return "rounds beta_2 to float32 on cuda before it subtracts it from 1, which changes v from the fifth digit on"
    if 0 in (size for _, shape in call.shapes for size in shape):
        return "does not support empty axes"  # on cuda it requires equal strides, which empty arrays keep when they are copied
    return supports_plain(call)


def adamw(
    w: Tensor,
    gradient: Tensor,
    m: Tensor,
    v: Tensor,
    *,
    learning_rate: float,
    beta_1: float,
    beta_2: float,
    eps: float,
    weight_decay: float,
    step: int,
    gradient_scale: Any = 1.0,
) -> tuple[Tensor, Tensor, Tensor]:
    """One step of AdamW, as ``mha_core.algebra.updates.adamw``. It writes into m and v, but not into w."""
    if isinstance(gradient_scale, Tensor) or gradient_scale != 1:
        gradient = gradient * gradient_scale
    new, m, v = w.clone(memory_format=torch.contiguous_format), m.contiguous(), v.contiguous()
    steps = torch.full((), step + 1, dtype=torch.float32, device=w.device)
    rates: dict[str, Any] = {"lr": learning_rate, "beta1": beta_1, "beta2": beta_2, "weight_decay": weight_decay, "eps": eps}
    torch._fused_adamw_([new], [gradient.contiguous()], [m], [v], [], [steps], amsgrad=False, maximize=False, **rates)
    return new, m, v
