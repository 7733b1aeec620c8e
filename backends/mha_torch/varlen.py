"""Sequences of different lengths in one launch: torch's varlen attention, which is FlashAttention on CUDA.

It supports packed sequences, and padded batches with a length for each element. Source: Dao 2023, FlashAttention-2. It has not
been run on a GPU yet, so it is chosen only by ``use_kernel("attention", "varlen")``.
"""

from __future__ import annotations

import inspect
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from mha_core.plugin import AttentionProblem, AttentionState, Call

_PARAMETERS = {"scale", "window_size", "enable_gqa", "seqused_k"}


def supports(call: Call) -> str | None:
    if call.device.type != "cuda":
        return f"runs on CUDA, not on {call.device.type}"
    if call.dtype not in (torch.float16, torch.bfloat16):
        return f"supports float16 and bfloat16, not {call.dtype}"
    query = call.shape("query")
    assert query is not None
    if 0 in (size for _, shape in call.shapes for size in shape):
        return "does not support empty axes"
    if not call.option("scale") > 0:
        return "may return NaN when scale <= 0"
    if query[-1] % 8 or query[-1] > 256:
        return f"needs a head_dim that is a multiple of 8 up to 256, not {query[-1]}"
    return _length_reason(call.features, len(query)) or _torch_reason()


def _length_reason(features: frozenset[str], ndim: int) -> str | None:
    """Return why the mask or the number of axes is not supported, or None."""
    if {"packed", "key_lengths"} <= features or not features & {"packed", "key_lengths"}:
        return "needs either packed sequences or key lengths"
    if "packed" in features:
        return None if ndim == 3 else f"supports packed sequences without batch axes, not with {ndim - 3}"
    if ndim != 4:
        return f"supports key lengths with one batch axis, not with {ndim - 3}"
    if features & {"causal", "window"}:
        return "would align the band to the end of each length, not of the keys"
    return "supports key lengths only without a gradient" if "gradient" in features else None


def _torch_reason() -> str | None:
    """Return why this version of torch is not supported, or None."""
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return f"is not in torch {torch.__version__}"
    missing = _PARAMETERS - set(inspect.signature(varlen_attn).parameters)
    return f"lacks the options {', '.join(sorted(missing))} in torch {torch.__version__}" if missing else None


def attention(p: AttentionProblem) -> AttentionState:
    return _packed(p) if p.structure.packed is not None else _padded(p)


def _packed(p: AttentionProblem) -> AttentionState:
    """Attend (H, T, D) as (T, H, D), a view. Query and key lengths are equal, so a band means the same in each sequence."""
    lengths = p.structure.packed or ()
    low, high = p.structure.band
    window = (-1 if low is None else -low, -1 if high is None else high)
    query, key, value = (x.transpose(0, 1) for x in (p.query, p.key, p.value))  # type: ignore[union-attr]
    ends = _ends(p, lengths)
    out = _varlen(p, query, key, value, (ends, ends), (max(lengths), max(lengths)), window_size=window)
    return AttentionState(out.transpose(0, 1), None)  # type: ignore[arg-type]


def _padded(p: AttentionProblem) -> AttentionState:
    """Attend (B, H, L, D) as (B L, H, D). A query without keys returns 0 (promise 1)."""
    batch, _, queries, _ = p.query.shape
    keys = p.key.shape[-2]
    query, key, value = (x.transpose(1, 2).flatten(0, 1) for x in (p.query, p.key, p.value))  # type: ignore[union-attr]
    ends = (_ends(p, [queries] * batch), _ends(p, [keys] * batch))
    key_lengths: Any = p.structure.key_lengths
    lengths = key_lengths.expand(batch).clamp(0, keys).to(torch.int32)
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
