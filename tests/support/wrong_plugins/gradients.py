"""Kernels for torch that declare gradients and cut some or all of them off, and one fault that needs bfloat16."""

from dataclasses import replace

import torch

from mha_core.algebra.attention import attention_state as right  # autograd passes through it
from mha_core.plugin import AttentionState


def gradient_cut(p):
    with torch.no_grad():
        return right(p)


def gradient_of_the_key_cut(p):
    return right(p.with_arrays(p.query, p.key.detach(), p.value))


def query_rounded_in_bfloat16(p):
    """Scale the query in its own dtype, then use a scale of 1."""
    return right(p.with_arrays(p.query * p.scale, p.key, p.value, scale=1.0))


def gradient_of_the_sink_cut(p):
    return right(p if p.sink is None else replace(p, sink=p.sink.detach()))


def gradient_of_the_bias_cut(p):
    return right(replace(p, bias=replace(p.bias, array=p.bias.array.detach())) if hasattr(p.bias, "array") else p)


def gradient_of_lse_cut(p):
    out, lse = right(p)
    return AttentionState(out, None if lse is None else lse.detach())


def gradient_of_wide_values_rounded(p):
    """Right, but for gradients of values wider than 32, which pass through bfloat16."""
    out, lse = right(p)
    return AttentionState(out if p.value.shape[-1] <= 32 else Rounded.apply(out), lse)


def tangent_of_the_value_cut(p):
    return right(p.with_arrays(p.query, p.key, WithoutTangent.apply(p.value)))


def one_value_for_all(p):
    return right(p.with_arrays(p.query, p.key, FirstOfAll.apply(p.value)))


class Identity(torch.autograd.Function):
    @staticmethod
    def forward(x):
        return x.clone()

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, towards):
        return towards

    @staticmethod
    def jvp(ctx, tangent):
        return tangent.clone()

    @staticmethod
    def vmap(info, in_dims, x):
        return x.clone(), in_dims[0]


class Rounded(Identity):
    """The identity; the gradient is rounded to bfloat16."""

    @staticmethod
    def backward(ctx, towards):
        return towards.to(torch.bfloat16).to(towards.dtype)


class WithoutTangent(Identity):
    """The identity; the forward gradient is 0."""

    @staticmethod
    def jvp(ctx, tangent):
        return tangent * 0


class FirstOfAll(Identity):
    """The identity; under vmap, the first element for all."""

    @staticmethod
    def vmap(info, in_dims, x):
        return x.select(in_dims[0], 0), None
