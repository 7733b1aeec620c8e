"""Faults of kernels of ``attention_vjp``, each a change of one step of ``WholeGradients``, and the plugin that has one of them.

``wrong_option_gradients`` has those of biases, sinks and masks.
"""

from functools import cached_property

import numpy as np

from mha_core.dispatch.contract import FEATURES
from mha_core.plugin import Kernel, hookimpl
from whole_gradients import WholeGradients, summed_to

NAME = "whole arrays"
FAULTS = {}
"""A class for each fault, by the name of the function that changes the step; its docstring says what is wrong."""


def changes(step):
    """Make a fault of a function of the call and what the step, or its argument, rightly is."""

    def add(function):
        right = getattr(WholeGradients, step)
        if isinstance(right, cached_property):
            wrong = cached_property(lambda self: function(self, right.func(self)))
            wrong.__set_name__(None, step)
        else:
            wrong = lambda self, *given: function(self, right(self, *given), *given)  # noqa: E731
        fields = {step: wrong, "__doc__": function.__doc__}
        FAULTS[function.__name__] = type(function.__name__, (WholeGradients,), fields)
        return function

    return add


def half(x):
    return np.asarray(x).astype(np.float16).astype(np.float64)


def without(x, keys):
    """Return weights, or gradients of scores, without those of some keys."""
    x = x.copy()
    x[..., keys] = 0
    return x


# scores and weights


@changes("da")
def scale_one_percent_off(self, da):
    """the scale is 1% off"""
    return 1.01 * da


@changes("da")
def scale_positive(self, da):
    """the sign of the scale is lost"""
    return da if self.scale >= 0 else -da


@changes("of_key")
def key_not_scaled(self, d_key):
    """the gradient of the key lacks the scale"""
    return d_key / (self.scale or 1.0)


@changes("slope")
def no_slope(self, slope):
    """the slope of the softcap is missing"""
    return np.ones_like(slope)


@changes("slope")
def slope_not_squared(self, slope):
    """the slope of the softcap is 1 - tanh"""
    return slope if self.problem.softcap is None else 1 - self.capped / self.problem.softcap


@changes("lse")
def lse_in_half(self, lse):
    """lse is rounded to half precision"""
    return half(lse)


@changes("weights")
def weights_in_half(self, weights):
    """weights are rounded to half precision"""
    return half(weights)


@changes("weights")
def weights_not_normalised(self, weights):
    """the weights of a row are relative to the greatest"""
    return weights / np.maximum(weights.max(axis=-1, keepdims=True, initial=0), 1e-30)


@changes("weights")
def weights_without_the_sink(self, weights):
    """the sink does not count in the weights"""
    return weights / np.where(self.blind, 1, weights.sum(axis=-1))[..., None]


@changes("ds")
def eight_bits(self, ds):
    """the gradients of the scores keep 8 bits"""
    return ds * (1 + 2.0**-8 * np.sign(np.sin(1e3 * ds)))


# delta


@changes("delta")
def no_delta(self, delta):
    """delta is missing"""
    return -self.d_lse


@changes("delta")
def delta_in_half(self, delta):
    """delta is rounded to half precision"""
    return half(delta)


@changes("out")
def out_of_the_first_query(self, out):
    """delta has the output of the first query"""
    return out[..., :1, :] + 0 * out


@changes("d_lse")
def d_lse_ignored(self, d_lse):
    """d_lse is ignored"""
    return 0 * d_lse


@changes("d_lse")
def d_lse_of_the_other_sign(self, d_lse):
    """d_lse has the wrong sign"""
    return -d_lse


@changes("d_lse")
def d_lse_of_the_first_head(self, d_lse):
    """all heads have the d_lse of the first"""
    return d_lse[..., :1, :] + 0 * d_lse


@changes("ds")
def last_feature_missing(self, ds):
    """the last of several features of the values is left out of the gradients of the scores"""
    kept = np.arange(self.value.shape[-1]) != max(1, self.value.shape[-1] - 1)
    of_weights = self.kept * ((self.d_out * kept) @ np.swapaxes(self.value, -1, -2))
    return self.weights * (of_weights - self.delta[..., None])


@changes("kept")
def dropout_ignored(self, kept):
    """dropout is ignored"""
    return 1.0


@changes("kept")
def dropout_not_divided(self, kept):
    """weights that are kept are not divided by 1 - rate"""
    return np.sign(kept)


# blocks


@changes("ds")
def last_block_only(self, ds):
    """only the last block of 16 keys counts"""
    return without(ds, slice(0, (max(ds.shape[-1], 1) - 1) // 16 * 16))


@changes("ds")
def last_key_dropped(self, ds):
    """the last of several keys is dropped"""
    return without(ds, slice(max(1, ds.shape[-1] - 1), None))


@changes("weights")
def seventeenth_key_dropped(self, weights):
    """the 17th key is dropped"""
    return without(weights, slice(16, 17))


@changes("of_query")
def last_query_dropped(self, d_query):
    """the last of several queries has no gradient"""
    return d_query * (np.arange(d_query.shape[-2]) != max(1, d_query.shape[-2] - 1))[:, None]


@changes("d_out")
def last_head_dropped(self, d_out):
    """the d_out of the last of several heads is ignored"""
    return d_out * (np.arange(d_out.shape[-3]) != max(1, d_out.shape[-3] - 1))[:, None, None]


# sums


@changes("over_groups")
def groups_not_summed(self, right, x):
    """the query heads of a key head are not summed: the first is used"""
    return x[..., 0, :, :]


@changes("by_key_head")
def groups_tiled(self, right, x, shape):
    """query heads are tiled over key heads, not in groups"""
    tiled = x.reshape(*x.shape[:-3], self.problem.num_groups, shape[-3], *x.shape[-2:])
    return summed_to(tiled.sum(axis=-4), shape)


@changes("summed")
def broadcast_not_summed(self, right, x, shape):
    """axes that broadcast are not summed: the first element is used"""
    x = x[(0,) * (x.ndim - len(shape))] if 0 not in x.shape else summed_to(x, x.shape[x.ndim - len(shape) :])
    for axis, size in enumerate(shape):
        x = np.take(x, [0], axis=axis) if size == 1 and x.shape[axis] else x
    return summed_to(x, shape)


@changes("summed")
def broadcast_averaged(self, right, x, shape):
    """axes that broadcast are averaged"""
    return right * (np.prod(shape) / x.size if x.size else 1.0)


@changes("of_value")
def values_of_one_element(self, d_value):
    """all elements of the batch have the gradient of the first value"""
    return d_value[:1] + 0 * d_value if d_value.ndim > 3 else d_value


class Plugin:
    """Registers a class as a kernel for NumPy that declares every feature; the last one made computes."""

    def __init__(self, cls):
        chosen.append(cls)

    @hookimpl
    def mha_kernels(self):
        load, handles = f"{__name__}:compute", FEATURES["attention_vjp"]
        yield Kernel("numpy", "attention_vjp", NAME, api=1, load=load, handles=handles, opt_in=True)


chosen = []


def compute(problem, state, d_out, d_lse, wanted):
    with np.errstate(all="ignore"):
        return chosen[-1](problem, state, d_out, d_lse, wanted).gradients()
