"""Kernels of pieces and layers, with formulas that are nearly right."""

import math

import numpy as np

import mha_core as mha

_erf = np.frompyfunc(math.erf, 1, 1)


def gelu(x, *, approximate):
    if approximate == "tanh":
        return (x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2).astype(x.dtype)
    wide = x.astype(np.float64)
    return (wide * (1 + _erf(wide / math.sqrt(2)).astype(np.float64)) / 2).astype(x.dtype)


def gelu_always_tanh(x, *, approximate):
    return gelu(x, approximate="tanh")


def _normed(x, centred, count, weight, bias, eps):
    y = centred / np.sqrt((centred**2).sum(axis=-1, keepdims=True) / max(1, count) + eps)
    y = y if weight is None else y * weight
    return (y if bias is None else y + bias).astype(x.dtype)


def layer_norm(x, weight, bias, *, eps, ddof=0):
    wide = x.astype(np.float64)
    return _normed(x, wide - wide.mean(axis=-1, keepdims=True), x.shape[-1] - ddof, weight, bias, eps)


def layer_norm_ddof(x, weight, bias, *, eps):
    """Divide the variance by n - 1."""
    return layer_norm(x, weight, bias, eps=eps, ddof=1)


def rms_norm(x, weight, *, eps):
    return _normed(x, x.astype(np.float64), x.shape[-1], weight, None, eps)


def rms_norm_centred(x, weight, *, eps):
    return layer_norm(x, weight, None, eps=eps)


def rms_norm_in_half_precision(x, weight, *, eps):
    """Square in the dtype of x: the square of 300 overflows float16."""
    with np.errstate(over="ignore"):
        mean = (x * x).mean(axis=-1, keepdims=True, dtype=x.dtype)
    y = x / np.sqrt(mean + np.asarray(eps, dtype=x.dtype))
    return (y if weight is None else y * weight).astype(x.dtype)


def rotary(x, cos, sin, *, interleaved):
    y = np.copy(x)
    half = cos.shape[-1]
    first, second = (slice(0, 2 * half, 2), slice(1, 2 * half, 2)) if interleaved else (slice(half), slice(half, 2 * half))
    y[..., first] = x[..., first] * cos - x[..., second] * sin
    y[..., second] = x[..., second] * cos + x[..., first] * sin
    return y


def rotary_pairs_swapped(x, cos, sin, *, interleaved):
    return rotary(x, cos, sin, interleaved=not interleaved)


def linear(x, w, b):
    return x @ w if b is None else x @ w + b


def linear_writes_to_x(x, w, b):
    """Add a small number to x in place."""
    y = linear(x, w, b)
    if x.flags.writeable:
        x += np.asarray(2.0**-8, dtype=x.dtype)
    return y


# layers


def encoder_layer(layer, x, *, mask=None, norm_first=None):
    def norm(part, y):
        return mha.layer_norm(y, part.weight, part.bias, eps=part.eps)

    first = layer.norm_first if norm_first is None else norm_first
    for sublayer, part in ((lambda y: layer.attention(y, mask=mask), layer.norm_1), (layer.feed_forward, layer.norm_2)):
        x = x + sublayer(norm(part, x)) if first else norm(part, x + sublayer(x))
    return x


def encoder_layer_always_post_norm(layer, x, *, mask=None):
    return encoder_layer(layer, x, mask=mask, norm_first=False)


def encoder_layer_without_mask(layer, x, *, mask=None):
    return encoder_layer(layer, x)
