"""Sequences of varying lengths in one launch: torch's varlen attention, which is FlashAttention on CUDA.

Packed sequences as they lie, and padded batches with a length for each element. Source: Dao 2023, FlashAttention-2.
Not yet run on a GPU, and so chosen only by ``use_kernel("attention", "varlen")``.
"""

from __future__ import annotations

import inspect
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from mha_core.plugin import AttentionProblem, AttentionState, Call

_ASKED = {"scale", "window_size", "enable_gqa", "seqused_k"}


def supports(call: Call) -> str | None:
    if call.device.type != "cuda":
        return f"runs on CUDA, not on {call.device.type}"
    if call.dtype not in (torch.float16, torch.bfloat16):
        return f"computes in half precision, not in {call.dtype}"
    query = call.shape("query")
    assert query is not None
    if 0 in (size for _, shape in call.shapes for size in shape):
        return "has no empty axes"
    if query[-1] % 8 or query[-1] > 256:
        return f"wants a head_dim that is a multiple of 8 up to 256, not {query[-1]}"
    return _against_lengths(call.features, len(query)) or _against_torch()


def _against_lengths(features: frozenset[str], axes: int) -> str | None:
    if {"packed", "key_lengths"} <= features or not features & {"packed", "key_lengths"}:
        return "is for packed sequences, or else for key lengths"
    if "packed" in features:
        return None if axes == 3 else "takes packed sequences without batch axes: they are the batch"
    if axes != 4:
        return f"takes key lengths with one batch axis, not with {axes - 3}"
    if features & {"causal", "window"}:
        return "aligns a band at the end of each length, not of the keys"
    return "takes key lengths where no gradient is recorded" if "gradient" in features else None


def _against_torch() -> str | None:
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return f"is not in torch {torch.__version__}"
    missing = _ASKED - set(inspect.signature(varlen_attn).parameters)
    return f"lacks {', '.join(sorted(missing))} in torch {torch.__version__}" if missing else None


def attention(p: AttentionProblem) -> AttentionState:
    return _packed(p) if p.structure.packed is not None else _padded(p)


def _packed(p: AttentionProblem) -> AttentionState:
    """(H, T, D) -> (T, H, D) and back: views. A band counts alike in all sequences, since queries and keys are laid alike."""
    lengths = p.structure.packed or ()
    low, high = p.structure.band
    window = (-1 if low is None else -low, -1 if high is None else high)
    query, key, value = (x.transpose(0, 1) for x in (p.query, p.key, p.value))  # type: ignore[attr-defined]
    ends = _ends(p, lengths)
    out = _varlen(p, query, key, value, (ends, ends), (max(lengths), max(lengths)), window_size=window)
    return AttentionState(out.transpose(0, 1), None)  # type: ignore[arg-type]


def _padded(p: AttentionProblem) -> AttentionState:
    """(B, H, L, D) -> (B L, H, D) and back; a query without keys is 0 (promise 1)."""
    batch, _, queries, _ = p.query.shape
    keys = p.key.shape[-2]
    query, key, value = (x.transpose(1, 2).flatten(0, 1) for x in (p.query, p.key, p.value))  # type: ignore[attr-defined]
    ends = (_ends(p, [queries] * batch), _ends(p, [keys] * batch))
    given: Any = p.structure.key_lengths
    lengths = given.expand(batch).clamp(0, keys).to(torch.int32)
    out = _varlen(p, query, key, value, ends, (queries, keys), seqused_k=lengths)
    out = out.unflatten(0, (batch, queries)).transpose(1, 2)
    return AttentionState(torch.where((lengths == 0)[:, None, None, None], 0, out), None)  # type: ignore[arg-type]


def _ends(p: AttentionProblem, lengths: Any) -> Tensor:
    return torch.tensor([0, *accumulate(lengths)], dtype=torch.int32, device=p.device)


def _varlen(
    p: AttentionProblem, query: Any, key: Any, value: Any, ends: tuple[Tensor, Tensor], longest: tuple[int, int], **options: Any
) -> Any:
    from torch.nn.attention.varlen import varlen_attn

    return varlen_attn(query, key, value, *ends, *longest, scale=p.scale, enable_gqa=p.num_groups > 1, **options)
