"""Peer for attention: torch's fused scaled_dot_product_attention."""

from __future__ import annotations

from typing import Any

import numpy as np

from mha_conformance.bench.attention import Attention
from mha_conformance.bench.timing import Work


def sdpa(problem: Attention) -> Work:
    """Return the call of torch's attention; a window becomes a boolean mask array, made in advance."""
    import torch

    query, key, value = (torch.from_numpy(x).to(getattr(torch, problem.dtype)) for x in problem.arrays())
    mask = None if problem.window is None else torch.from_numpy(problem.seen(np.arange(problem.queries)))
    attend = torch.nn.functional.scaled_dot_product_attention

    def call() -> Any:
        return attend(query, key, value, attn_mask=mask, is_causal=problem.causal, enable_gqa=problem.kv_heads is not None)

    return Work(call, lambda out: out.float().numpy(), mode=torch.inference_mode)
