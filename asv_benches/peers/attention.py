"""Peers for attention and its gradients: torch's fused attention and compiled flex_attention, jax.nn.dot_product_attention."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from mha_conformance.bench.attention import Attention
from mha_conformance.bench.gradients import AttentionBackward, AttentionStep
from mha_conformance.bench.timing import Work


def _attention(problem: Attention, *, records: bool = False) -> tuple[list[Any], Callable[[], Any]]:
    """Return query, key and value, and the call; a window becomes a boolean mask array, made in advance."""
    import torch

    arrays = [torch.from_numpy(x).to(getattr(torch, problem.query_dtype)).requires_grad_(records) for x in problem.arrays()]
    mask = None if problem.window is None else torch.from_numpy(problem.seen(np.arange(problem.queries)))
    attend = torch.nn.functional.scaled_dot_product_attention

    def call() -> Any:
        return attend(*arrays, attn_mask=mask, is_causal=problem.causal, enable_gqa=problem.kv_heads is not None)

    return arrays, call


def sdpa(problem: Attention) -> Work:
    """Return the call of torch's attention."""
    import torch

    return Work(_attention(problem)[1], lambda out: out.float().numpy(), mode=torch.inference_mode)


def flex(problem: Attention) -> Work:
    """Return the call of torch's flex_attention, compiled, with its map of blocks made in advance; causal or with a window."""
    import torch
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    span = problem.window or problem.queries
    arrays, _ = _attention(replace(problem, window=None))
    mask = create_block_mask(
        lambda batch, head, query, key: (key <= query) & (query - key < span),
        None,
        None,
        problem.queries,
        problem.queries,
        "cpu",
    )
    attend = torch.compile(flex_attention, fullgraph=True)
    return Work(lambda: attend(*arrays, block_mask=mask), lambda out: out.numpy(), mode=torch.inference_mode)


def sdpa_step(problem: AttentionStep) -> Work:
    """Return the call of torch's attention and of its own gradients."""
    import torch

    (arrays, call), d_out = _attention(problem, records=True), torch.from_numpy(problem.d_out())
    return Work(lambda: torch.autograd.grad(call(), arrays, d_out), lambda gradients: [x.numpy() for x in gradients])


def sdpa_backward(problem: AttentionBackward) -> Work:
    """Return torch's own gradients of its attention, after a call that is not timed."""
    import torch

    (arrays, call), d_out = _attention(problem, records=True), torch.from_numpy(problem.d_out())
    out = call()
    return Work(
        lambda: torch.autograd.grad(out, arrays, d_out, retain_graph=True), lambda gradients: [x.numpy() for x in gradients]
    )


def jax_nn(problem: Attention) -> Work:
    """Return the compiled call of JAX's attention, whose arrays are (batch, length, heads, head_dim)."""
    import jax

    def attend(*arrays: Any) -> Any:
        return jax.nn.dot_product_attention(*arrays, is_causal=problem.causal)

    return _compiled(problem, attend, lambda x: np.ascontiguousarray(np.swapaxes(x, 1, 2)))


def ours_on_jax(problem: Attention, backend: str) -> Work:
    """Return the compiled call of mha_core on JAX arrays."""
    import mha_core as mha

    mask = mha.causal() if problem.causal else None
    return _compiled(problem, lambda *arrays: mha.scaled_dot_product_attention(*arrays, mask=mask), lambda x: x)


def _compiled(problem: Attention, attend: Callable[..., Any], laid_out: Callable[[Any], Any]) -> Work:
    """Return a call under jit; with the gradients, if the problem has them. ``laid_out`` is its own inverse."""
    import jax

    arrays = [jax.numpy.asarray(laid_out(x)) for x in problem.arrays()]
    if not isinstance(problem, AttentionStep):
        call = jax.jit(attend)
        return Work(lambda: call(*arrays).block_until_ready(), lambda out: laid_out(np.asarray(out)))
    step, d_out = jax.jit(lambda d, *arrays: jax.vjp(attend, *arrays)[1](d)), jax.numpy.asarray(laid_out(problem.d_out()))
    return Work(
        lambda: jax.block_until_ready(step(d_out, *arrays)), lambda gradients: [laid_out(np.asarray(x)) for x in gradients]
    )
