"""Kernels for torch that claim gradients and do not give them, or not all of them; and what torch alone can do wrong."""

import torch

from mha_core.algebra.attention import attention_state


def right(p):
    """The algebra: autograd passes through it."""
    return attention_state(p)


def gradient_cut(p):
    with torch.no_grad():
        return attention_state(p)


def gradient_of_the_key_cut(p):
    return attention_state(p.with_arrays(p.query, p.key.detach(), p.value))


def query_rounded_in_bfloat16(p):
    """Scaled in place, in the dtype it came in; the scale is then 1."""
    return attention_state(p.with_arrays(p.query * p.scale, p.key, p.value, scale=1.0))
