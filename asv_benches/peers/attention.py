"""torch's fused attention."""

from __future__ import annotations

from typing import Any

import numpy as np

from mha_core.bench.attention import Attention
from mha_core.bench.timing import Work


def sdpa(problem: Attention) -> Work:
    """torch's; a window is a mask given as an array, which is made beforehand."""
    import torch

    query, key, value = map(torch.from_numpy, problem.arrays())
    mask = None if problem.window is None else torch.from_numpy(problem.seen(np.arange(problem.queries)))
    attend = torch.nn.functional.scaled_dot_product_attention

    def call() -> Any:
        return attend(query, key, value, attn_mask=mask, is_causal=problem.causal)

    return Work(call, lambda out: out.numpy(), mode=torch.inference_mode)
