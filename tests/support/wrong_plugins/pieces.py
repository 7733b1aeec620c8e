"""Kernels of pieces and layers, with formulas that are nearly right: the right ones are the algebra's."""

from dataclasses import replace
from functools import partial

import numpy as np

from mha_core.algebra import activations, norms, positions

gelu, rotary = partial(activations.gelu, np), partial(positions.rotary, np)
layer_norm, rms_norm, linear = (partial(piece, np) for piece in (norms.layer_norm, norms.rms_norm, norms.linear))


def gelu_always_tanh(x, *, approximate):
    return gelu(x, approximate="tanh")


def layer_norm_ddof(x, weight, bias, *, eps):
    """Divide the variance by n - 1."""
    wide = x.astype(np.float64)
    y = (wide - wide.mean(axis=-1, keepdims=True)) / np.sqrt(
        wide.var(axis=-1, keepdims=True, ddof=min(1, x.shape[-1] - 1)) + eps
    )
    y = y if weight is None else y * weight
    return (y if bias is None else y + bias).astype(x.dtype)


def layer_norm_without_nan(x, weight, bias, *, eps):
    return layer_norm(np.where(np.isnan(x), 0, x), weight, bias, eps=eps)


def rms_norm_centred(x, weight, *, eps):
    return layer_norm(x, weight, None, eps=eps)


def rms_norm_in_half_precision(x, weight, *, eps):
    """Square in the dtype of x: the square of 300 overflows float16."""
    with np.errstate(over="ignore"):
        mean = (x * x).mean(axis=-1, keepdims=True, dtype=x.dtype)
    y = x / np.sqrt(mean + np.asarray(eps, dtype=x.dtype))
    return (y if weight is None else y * weight).astype(x.dtype)


def rotary_pairs_swapped(x, cos, sin, *, interleaved):
    return rotary(x, cos, sin, interleaved=not interleaved)


def linear_writes_to_x(x, w, b):
    """Add a small number to x in place."""
    y = linear(x, w, b)
    if x.flags.writeable:
        x += np.asarray(2.0**-8, dtype=x.dtype)
    return y


def linear_int8_by(x, w, b, *, round_=np.rint, group=64, most=2**31):
    """x w + b by integers of x, which share a scale in each group; the sum of each two products is cut at ``most``."""
    y, x, values = 0, x.astype(np.float32), w.values.astype(np.float64)
    for at in range(0, x.shape[-1], group):
        part, rows = x[..., at : at + group], values[at : at + group]
        top = np.abs(part).max(axis=-1, keepdims=True, initial=0)
        unsigned = round_(part * (np.float32(127) / np.where(top == 0, 1, top))).astype(np.float64) + 128
        products = -128 * rows.sum(axis=0)
        for k in range(0, part.shape[-1], 2):
            products = products + np.clip(unsigned[..., k : k + 2] @ rows[k : k + 2], -most, most - 1)
        y = y + products * (top / np.float32(127))
    y = y * w.scale
    return (y if b is None else y + b).astype(w.scale.dtype)


def linear_int8(x, w, b):
    return linear_int8_by(x, w, b)


def linear_int8_saturates(x, w, b):
    """Add up pairs of products of unsigned and signed bytes in int16, as vpmaddubsw does."""
    return linear_int8_by(x, w, b, most=2**15)


def linear_int8_of_one_scale(x, w, b):
    return linear_int8_by(x, w, b, group=2**20)


def linear_int8_toward_zero(x, w, b):
    return linear_int8_by(x, w, b, round_=np.trunc)


def linear_int8_ties_away(x, w, b):
    return linear_int8_by(x, w, b, round_=lambda q: np.trunc(q + np.copysign(np.float32(0.5), q)))


# layers


def encoder_layer(layer, x, *, mask=None):
    for sublayer, norm in ((partial(layer.attention, mask=mask), layer.norm_1), (layer.feed_forward, layer.norm_2)):
        x = x + sublayer(norm(x)) if layer.norm_first else norm(x + sublayer(x))
    return x


def encoder_layer_always_post_norm(layer, x, *, mask=None):
    return encoder_layer(replace(layer, norm_first=False), x, mask=mask)


def encoder_layer_without_mask(layer, x, *, mask=None):
    return encoder_layer(layer, x)


def encoder_layer_of_each_sequence(layer, x, *, mask=None):
    if mask is None or any(True for _ in mask.arrays()):
        return encoder_layer(layer, x, mask=mask)
    sequences = x.reshape(-1, *x.shape[-2:])
    return np.stack([encoder_layer(layer, each, mask=mask) for each in sequences]).reshape(x.shape)
