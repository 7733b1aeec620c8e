"""Sequences laid end to end, in one launch: torch's attention of varying lengths, which is FlashAttention on CUDA.

Source: Dao 2023, FlashAttention-2. Not yet run on a GPU, and so chosen only by ``use_kernel("attention", "varlen")``.
"""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import torch

from mha_core.plugin import AttentionProblem, AttentionState, Call


def supports(call: Call) -> str | None:
    if call.device.type != "cuda":
        return f"runs on CUDA, not on {call.device.type}"
    if call.dtype not in (torch.float16, torch.bfloat16):
        return f"computes in half precision, not in {call.dtype}"
    if "packed" not in call.features:
        return "is for packed sequences"
    query = call.shape("query")
    assert query is not None
    if len(query) != 3:
        return "takes no batch axes: the sequences are the batch"
    if 0 in (size for _, shape in call.shapes for size in shape):
        return "has no empty axes"
    if query[-1] % 8 or query[-1] > 256:
        return f"wants a head_dim that is a multiple of 8 up to 256, not {query[-1]}"
    try:
        from torch.nn.attention.varlen import AuxRequest, varlen_attn  # noqa: F401
    except ImportError:
        return f"is not in torch {torch.__version__}"
    return None


def attention(p: AttentionProblem) -> AttentionState:
    """(H, T, D) -> (T, H, D) and back: views. A band counts alike in all sequences, since queries and keys are laid alike."""
    from torch.nn.attention.varlen import varlen_attn

    lengths = p.structure.packed or ()
    ends = torch.tensor([0, *accumulate(lengths)], dtype=torch.int32, device=p.device)
    low, high = p.structure.band
    query, key, value = (x.transpose(0, 1) for x in (p.query, p.key, p.value))  # type: ignore[attr-defined]
    out: Any = varlen_attn(
        query,
        key,
        value,
        ends,
        ends,
        max(lengths),
        max(lengths),
        scale=p.scale,
        window_size=(-1 if low is None else -low, -1 if high is None else high),
        enable_gqa=p.num_groups > 1,
    )
    return AttentionState(out.transpose(0, 1), None)  # type: ignore[arg-type]
