"""Kernels for torch that declare gradients and cut some or all of them off, and one fault that needs bfloat16."""

import torch

from mha_core.algebra.attention import attention_state


def right(p):
    """The algebra, through which autograd passes."""
    return attention_state(p)


def gradient_cut(p):
    with torch.no_grad():
        return attention_state(p)


def gradient_of_the_key_cut(p):
    return attention_state(p.with_arrays(p.query, p.key.detach(), p.value))


def query_rounded_in_bfloat16(p):
    """Scale the query in its own dtype, then use a scale of 1."""
    return attention_state(p.with_arrays(p.query * p.scale, p.key, p.value, scale=1.0))
